// Photos that wait for a network, on this device only. They go out one after the other.
import { all, put, remove } from "./storage.js";

const WITHOUT_NETWORK = ["offline", "unreachable", "timeout", "gateway"];
const [FIRST_PAUSE_S, LONGEST_PAUSE_S] = [10, 300]; // between two tries
let [ask, onAnswer, onRefusal] = [async () => null, async () => {}, async () => {}];
let [isSending, pause, timer] = [false, FIRST_PAUSE_S, 0];

/**
 * Connect it; `send` asks for the answer to photos and a query.
 *
 * `answered` is called with each entry and its answer, `refused` with each entry and its problem.
 */
export function wireQueue({ send, answered, refused }) {
  [ask, onAnswer, onRefusal] = [send, answered, refused];
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

/** Send what waits until one fails; what the server refuses is deleted. */
export async function sendWaiting() {
  if (isSending || !navigator.onLine) return; // back online, this is called again
  isSending = true;
  try {
    for (const entry of (await all()).filter((each) => each.photos)) {
      if (!(await sendOne(entry))) break;
    }
  } finally {
    isSending = false;
  }
}

/** Whether the next one may be tried. */
async function sendOne(entry) {
  const answer = await ask(entry.photos, entry.query).catch((problem) => problem);
  if (answer.results) {
    pause = FIRST_PAUSE_S;
    await onAnswer(entry, answer);
    return true;
  }
  if (WITHOUT_NETWORK.includes(answer.code) || answer.retryable) {
    later();
    return false;
  }
  await remove(entry.id);
  await onRefusal(entry, answer);
  return true;
}
