// Past answers, and photos that wait for a network; both on this device only.
import { called } from "./cards.js";
import { button, by, element, minute, number, words } from "./page.js";
import { shrink } from "./shrink.js";
import { all, clear, isKept, put, remove } from "./storage.js";

const MOST = 30;
const SIDE = 160; // of the pictures, in pixels
const WITHOUT_NETWORK = ["offline", "unreachable", "timeout", "gateway"];
let openEntry = () => {};
let sendPhotos = async () => null;
let [isSending, pictures] = [false, []]; // pictures: addresses of those in the list

/** Connect the list; `onOpen` shows an entry again, `send` asks for the answer to photos. */
export function wireHistory(onOpen, send) {
  openEntry = onOpen;
  sendPhotos = send;
  by("forget").addEventListener("click", () => clear().then(show));
  window.addEventListener("online", sendWaiting);
  show();
  sendWaiting();
}

export async function keepAnswer(answer, photos, id) {
  await put({ id, answer: { ...answer, results: answer.results.slice(0, 100) }, picture: await shrink(photos[0], SIDE) });
  const old = (await all()).filter((entry) => entry.answer).slice(0, -MOST);
  for (const entry of old) await remove(entry.id);
  await show();
}

/** Keep photos to send later, if `problem` is that there is no network; returns their id, or null. */
export async function keepPhotos(photos, query, problem, id) {
  if (!WITHOUT_NETWORK.includes(problem?.code)) return null;
  const own = await put({ id, photos, query, picture: await shrink(photos[0], SIDE) });
  await show();
  return own;
}

/** Send what waits, one after the other, until one fails; what the server refuses is deleted. */
async function sendWaiting() {
  if (isSending || !navigator.onLine) return;
  isSending = true;
  for (const { id, photos, query } of (await all()).filter((each) => each.photos)) {
    const answer = await sendPhotos(photos, query).catch((problem) => problem);
    if (answer.results) {
      await keepAnswer(answer, photos, id);
      by("history-said").textContent = words.sentLater(nameOf(answer));
    } else if (WITHOUT_NETWORK.includes(answer.code) || answer.retryable) break;
    else {
      await remove(id);
      by("history-said").textContent = words.problems[answer.code]?.[0] ?? words.problems.unknown[0];
    }
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
  const text = entry.answer ? nameOf(entry.answer) : words.waits(number(entry.photos.length));
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

function nameOf(answer) {
  const [first] = answer.results.filter((result) => result.in_set);
  if (!first) return words.none;
  return answer.set.size > 1 ? words.andOthers(called(first.taxon), number(answer.set.size - 1)) : called(first.taxon);
}
