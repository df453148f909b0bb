// Photos that wait for a network, on this device only. They go out one after the other.
import { all, put, remove } from "./storage.js";

const WITHOUT_NETWORK = ["offline", "unreachable", "timeout", "gateway"];
const UNUSABLE = ["unsupported_image_type", "image_unreadable", "image_too_large", "body_too_large",
  "wrong_number_of_images", "unreadable_file"];
const ABOUT_QUERY = ["unknown_list", "not_calibrated", "invalid_parameter", "unknown_parameter"];
const [FIRST_PAUSE_S, LONGEST_PAUSE_S] = [10, 300]; // between two tries
let [ask, onAnswer, onRefusal, onDelay] = [async () => null, async () => {}, async () => {}, () => {}];
let [isSending, pause, timer] = [false, FIRST_PAUSE_S, 0];

/** Whether a problem is that the server has another model by now, without the list or place of the query. */
export const isAboutQuery = ({ code } = {}) => ABOUT_QUERY.includes(code);

/**
 * Connect it; `send` asks for the answer to photos and a query.
 *
 * `answered` is called with each entry and its answer, `refused` with each entry and its problem,
 * `delayed` with a problem for which the photos go on waiting although there is a network.
 */
export function wireQueue({ send, answered, refused, delayed }) {
  [ask, onAnswer, onRefusal, onDelay] = [send, answered, refused, delayed];
  window.addEventListener("online", sendWaiting);
  window.addEventListener("pageshow", sendWaiting);
  document.addEventListener("visibilitychange", () => document.hidden || sendWaiting());
  sendWaiting();
}

/** Keep an entry with photos to send later, if `problem` is that there is no network; its id, or null. */
export async function keepWaiting(entry, problem) {
  if (!WITHOUT_NETWORK.includes(problem?.code)) return null;
  const id = await put(entry);
  later();
  return id;
}

/** Try again after a pause: a server that was away tells nobody that it is back. */
function later() {
  clearTimeout(timer);
  timer = setTimeout(sendWaiting, 1000 * pause);
  pause = Math.min(2 * pause, LONGEST_PAUSE_S);
}

/** Send what waits until one fails. Photos that cannot be used are deleted, no others. */
export async function sendWaiting() {
  if (isSending || !navigator.onLine) return; // back online, this is called again
  isSending = true;
  try {
    // One open page sends at a time, or each would send all of them; without https there are no locks.
    if (navigator.locks) await navigator.locks.request("florilege queue", sendAll);
    else await sendAll();
  } finally {
    isSending = false;
  }
}

async function sendAll() {
  const tried = [];
  const next = async () => (await all()).find(({ id, photos }) => photos && !tried.includes(id)); // the person may delete some meanwhile
  for (let entry = await next(); entry; entry = await next()) {
    tried.push(entry.id);
    if (!(await sendOne(entry))) return;
  }
}

/** Whether the next one may be tried. */
async function sendOne(entry) {
  const answer = await ask(entry.photos, entry.query).catch((problem) => problem);
  if (!(await all()).some(({ id }) => id === entry.id)) return true; // deleted meanwhile
  if (answer.results) {
    pause = FIRST_PAUSE_S;
    await onAnswer(entry, answer);
    return true;
  }
  const isOfProxy = answer.status === 413 && !answer.title; // whose limit may change, unlike the photo
  if (UNUSABLE.includes(answer.code) && !isOfProxy) {
    await remove(entry.id);
    await onRefusal(entry, answer);
    return true;
  }
  // Better an answer among all species than none.
  const isNarrowed = Object.values(entry.query ?? {}).some(Boolean);
  if (isAboutQuery(answer) && isNarrowed) return sendOne({ ...entry, query: {} });
  later();
  if (!WITHOUT_NETWORK.includes(answer.code)) onDelay(answer);
  return isOfProxy || answer.code === "internal_error"; // perhaps for this photo only
}
