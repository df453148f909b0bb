// The field notebook: past answers, what the person says of them, and photos that wait for a network.
// All of it is on this device only. Export and import are loaded when somebody wants them.
import { called } from "./cards.js";
import { button, by, element, list, minute, words } from "./page.js";
import { problemTexts } from "./problems.js";
import { keepWaiting, wireQueue } from "./queue.js";
import { keepStorage, offerInstallation } from "./shell.js";
import { shrink } from "./shrink.js";
import { all, clear, isFull, isKept, put, remove } from "./storage.js";
import { isUnfamiliar } from "./verdict.js";

const MOST = 30; // past answers of which nobody has said anything; the others stay
const FIRST_SHOWN = 30;
const [SIDE, LIST_SIDE] = [1024, 160]; // of the pictures, in pixels
export const [NOT_LISTED, NOT_AN_ORGANISM, UNDECIDED] = ["not_listed", "not_an_organism", "undecided"];
let openEntry = () => {};
let pictures = []; // addresses of those in the list
let shown = FIRST_SHOWN;
let changing = Promise.resolve();

/**
 * Connect it; `open` shows an entry again, `send` asks for the answer to photos, `sent` is called
 * with an entry that waited, and its answer or problem.
 */
export function wireNotebook({ open, send, sent }) {
  openEntry = open;
  wireQueue({
    send,
    answered: async (entry, answer) => {
      await keepAnswer(answer, entry.photos, { ...entry, isUnseen: true });
      by("history-said").textContent = words.sentLater(nameOf({ answer }));
      sent(entry, answer);
    },
    refused: async (entry, problem) => {
      sayProblem(problem);
      await show();
      sent(entry, problem);
    },
    delayed: sayProblem,
  });
  by("forget").addEventListener("click", forget);
  by("export").addEventListener("click", async () => {
    const { exportNotebook } = await import("./notebook-files.js");
    await exportNotebook(await decided());
  });
  by("import").addEventListener("click", () => by("archive").click());
  by("archive").addEventListener("change", importFile);
  document.addEventListener("visibilitychange", () => document.hidden || show()); // another tab may have changed it
  show();
}

function sayProblem({ code }) {
  by("history-said").textContent = (problemTexts(code) ?? words.problems.unknown)[0];
}

/**
 * Keep an answer with what is known of its photos, such as their date and place; returns its id.
 *
 * It takes the place of the entry `id`, an earlier answer about this plant, unless that is decided.
 */
export async function keepAnswer(answer, photos, { id: before, date, place, isUnseen = false } = {}) {
  const id = (await all()).find((one) => one.id === before)?.confirmed ? null : before;
  const [photo, picture] = [await shrink(photos[0], SIDE), await shrink(photos[0], LIST_SIDE)];
  const own = await put({ id, answer, photo, picture, date, place, isUnseen });
  const old = (await all()).filter((entry) => entry.answer && !entry.confirmed && !entry.isUnseen).slice(0, -MOST);
  for (const entry of old) await remove(entry.id);
  await show();
  return own;
}

/** Keep photos to send later, if `problem` is that there is no network; returns the id, or null. */
export async function keepPhotos(photos, query, facts, problem, id) {
  const picture = await shrink(photos[0], LIST_SIDE);
  const own = await keepWaiting({ id, photos, query, picture, ...facts }, problem);
  if (own) keepStorage();
  await show();
  return own;
}

/** Note what the person says of an entry: one change after the other, or one would undo another. */
export function changeEntry(id, fields) {
  changing = changing.catch(() => {}).then(() => change(id, fields)); // one failure stops no later one
  return changing;
}

async function change(id, fields) {
  const entry = (await all()).find((one) => one.id === id);
  if (!entry) return;
  await put({ ...entry, ...fields });
  keepStorage();
  await show();
}

/** The entries that the person has said something of, or else all with an answer, oldest first. */
async function decided() {
  const answered = (await all()).filter((entry) => entry.answer);
  const own = answered.filter((entry) => entry.confirmed);
  return own.length ? own : answered;
}

/** Delete all, after a second tap. */
async function forget() {
  const count = (await all()).length;
  if (by("forget").dataset.count !== String(count)) {
    by("forget").dataset.count = String(count);
    by("forget").textContent = words.forgetAll(count);
    return;
  }
  await clear();
  await show();
}

async function importFile() {
  const [file] = by("archive").files;
  by("archive").value = "";
  if (!file) return;
  const { readNotebook } = await import("./notebook-files.js");
  const entries = await readNotebook(file).catch(() => null);
  for (const entry of entries ?? []) await put(entry);
  by("history-said").textContent = entries ? words.imported(entries.length) : words.notImported;
  await show();
}

async function show() {
  const entries = (await all()).reverse();
  pictures.forEach((address) => URL.revokeObjectURL(address));
  pictures = [];
  for (const id of ["export", "forget"]) by(id).hidden = entries.length === 0;
  by("empty-notebook").hidden = entries.length > 0;
  by("history-kept").hidden = entries.length === 0 && (await isKept()) && !isFull();
  by("history-kept").textContent = !(await isKept()) ? words.historyLost : isFull() ? words.historyFull : words.historyKept;
  by("history-kept").classList.toggle("note", isFull());
  delete by("forget").dataset.count;
  by("forget").textContent = words.forget;
  by("entries").replaceChildren(...entries.slice(0, shown).map(item));
  by("more-entries").hidden = entries.length <= shown;
  by("more-entries").onclick = () => { shown = Infinity; show(); };
  offerInstallation();
}

function item(entry, index) {
  const row = element("li");
  const text = entry.answer ? nameOf(entry) : words.waits(entry.photos.length);
  const opens = button("entry", "", () => {
    openEntry(entry);
    if (entry.isUnseen) changeEntry(entry.id, { isUnseen: false });
  });
  opens.disabled = !entry.answer;
  if (entry.picture) {
    const image = element("img");
    image.alt = "";
    image.loading = "lazy";
    image.src = URL.createObjectURL(entry.picture);
    pictures.push(image.src);
    opens.append(image);
  }
  const facts = [minute(entry.id), entry.place].filter(Boolean).join(" · ");
  opens.append(element("span", "", text), element("small", "", facts));
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

/** What the person said that the photo of an answer shows, by the id of that class. */
export function confirmedName(answer, classId) {
  if (classId === NOT_LISTED) return words.noneOfThese;
  if (classId === NOT_AN_ORGANISM) return words.notAnOrganism;
  if (classId === UNDECIDED) return words.undecided(answer.set.size);
  const result = answer.results.find((one) => one.class_id === classId);
  return result ? called(result.taxon) : classId;
}
