// Past answers, and photos that wait for a network; both on this device only.
import { isUnfamiliar } from "./answer.js";
import { called } from "./cards.js";
import { confirmedName } from "./feedback.js";
import { button, by, element, list, minute, words } from "./page.js";
import { problemTexts } from "./problems.js";
import { shrink } from "./shrink.js";
import { all, clear, isKept, put, remove } from "./storage.js";

const MOST = 30;
const SIDE = 160; // of the pictures, in pixels
const WITHOUT_NETWORK = ["offline", "unreachable", "timeout", "gateway"];
const [FIRST_PAUSE_S, LONGEST_PAUSE_S] = [10, 300]; // between two tries to send what waits
let openEntry = () => {};
let sendPhotos = async () => null;
let onSent = () => {};
let [isSending, pictures] = [false, []]; // pictures: addresses of those in the list
let [pause, timer] = [FIRST_PAUSE_S, 0];
let keeping = Promise.resolve();

/**
 * Connect the list; `open` shows an entry again, `send` asks for the answer to photos, `sent` is
 * called with the id of photos that waited, and their answer or problem.
 */
export function wireHistory({ open, send, sent }) {
  openEntry = open;
  sendPhotos = send;
  onSent = sent;
  by("forget").addEventListener("click", () => clear().then(show));
  window.addEventListener("online", sendWaiting);
  document.addEventListener("visibilitychange", () => document.hidden || sendWaiting());
  show();
  sendWaiting();
}

export function keepAnswer(answer, photos, id) {
  keeping = store(answer, photos, id);
  return keeping;
}

async function store(answer, photos, id) {
  await put({ id, answer, picture: await shrink(photos[0], SIDE) });
  const old = (await all()).filter((entry) => entry.answer).slice(0, -MOST);
  for (const entry of old) await remove(entry.id);
  await show();
}

/** Note what the person said that the photo of an answer shows. */
export async function keepConfirmed(answer, classId) {
  await keeping; // the answer itself
  const entry = (await all()).find((one) => one.answer?.id === answer.id);
  if (entry) await put({ ...entry, confirmed: classId });
  await show();
}

/** Keep photos to send later, if `problem` is that there is no network; returns their id, or null. */
export async function keepPhotos(photos, query, problem, id) {
  if (!WITHOUT_NETWORK.includes(problem?.code)) return null;
  const own = await put({ id, photos, query, picture: await shrink(photos[0], SIDE) });
  await show();
  later();
  return own;
}

/** Try again after a pause: a server that was away tells nobody that it is back. */
function later() {
  clearTimeout(timer);
  timer = setTimeout(sendWaiting, 1000 * pause);
  pause = Math.min(2 * pause, LONGEST_PAUSE_S);
}

/** Send what waits, one after the other, until one fails; what the server refuses is deleted. */
async function sendWaiting() {
  if (isSending || !navigator.onLine) return; // back online, this is called again
  isSending = true;
  for (const { id, photos, query } of (await all()).filter((each) => each.photos)) {
    const answer = await sendPhotos(photos, query).catch((problem) => problem);
    if (answer.results) {
      pause = FIRST_PAUSE_S;
      await keepAnswer(answer, photos, id);
      by("history-said").textContent = words.sentLater(nameOf({ answer }));
    } else if (WITHOUT_NETWORK.includes(answer.code) || answer.retryable) {
      later();
      break;
    } else {
      await remove(id);
      by("history-said").textContent = (problemTexts(answer.code) ?? words.problems.unknown)[0];
    }
    onSent(id, answer);
  }
  isSending = false;
  await show();
}

async function show() {
  const entries = (await all()).reverse();
  pictures.forEach((address) => URL.revokeObjectURL(address));
  pictures = [];
  by("history").hidden = entries.length === 0;
  by("history-kept").textContent = (await isKept()) ? words.historyKept : words.historyLost;
  by("entries").replaceChildren(...entries.map(item));
}

function item(entry, index) {
  const row = element("li");
  const text = entry.answer ? nameOf(entry) : words.waits(entry.photos.length);
  const opens = button("entry", "", () => entry.answer && openEntry(entry));
  opens.disabled = !entry.answer;
  if (entry.picture) {
    const image = element("img");
    image.alt = "";
    image.src = URL.createObjectURL(entry.picture);
    pictures.push(image.src);
    opens.append(image);
  }
  opens.append(element("span", "", text), element("small", "", minute(entry.id)));
  const away = button("remove", "×", () => remove(entry.id).then(show));
  away.setAttribute("aria-label", words.remove(index + 1));
  row.append(opens, away);
  return row;
}

function nameOf({ answer, confirmed }) {
  if (confirmed) return `✓ ${confirmedName(answer, confirmed)}`;
  const [first, ...others] = answer.results.filter((result) => result.in_set);
  if (isUnfamiliar(answer)) return words.unfamiliar;
  if (!first) return words.none;
  return list([called(first.taxon), ...(others.length ? [words.further(others.length)] : [])]);
}
