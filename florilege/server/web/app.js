// The page: photos in, the set out. All content from the server is shown as text, never as markup.
import { showAbout, showSet } from "./answer.js";
import { offerDecision } from "./decision.js";
import { markDial, showDial, wireDial } from "./dial.js";
import { changeEntry, keepAnswer, keepPhotos, wireNotebook } from "./notebook.js";
import { by, element, speak, words } from "./page.js";
import { areJustTaken, files, limitPhotos, showPicture, wirePhotos } from "./photos.js";
import { notesOf, offerPlace, placeQuery, readPlace } from "./place.js";
import { showProblem } from "./problems.js";
import { identify as ask, modelInfo, prepare } from "./service.js";
import { isAboutQuery, sendWaiting } from "./queue.js";
import { draw, ownStop, stopsOf } from "./sets.js";
import { announce, keepPage } from "./shell.js";

const PATIENCE_S = 60; // beyond the server's own deadline for an upload
const SUPERSEDED = "superseded"; // by a request with other photos of the plant, or another list

const narrow = window.matchMedia("(max-width: 52rem)");
const state = { card: null, answer: null, at: 0, asking: null, queued: null, entry: null, action: () => null, photos: files };

// ---- the model -------------------------------------------------------------------------------

async function loadCard() {
  if (state.card) return;
  const card = await modelInfo({ rules: false });
  state.card = card;
  announceModel(card);
  limitPhotos(card.limits.max_images);
  by("model").textContent = words.modelLine(card.model.name, card.model.version, card.classes);
  if (card.feedback_photos) by("private").textContent = words.privateUnless;
  by("one-plant").textContent = words.onePlant(card.limits.max_images);
  showLists(card.lists ?? []);
  offerPlace(card.places, () => files().length && identify());
}

/** Say that the model is another one than at the last visit. */
function announceModel({ model, classes }) {
  const [name, now] = ["florilege model", `${model.bundle_sha256} ${model.calibration_id}`];
  try {
    const last = localStorage.getItem(name);
    if (last && last !== now) announce(words.newModel(words.modelLine(model.name, model.version, classes)));
    localStorage.setItem(name, now);
  } catch {
    // the browser keeps nothing: each visit is the first one
  }
}

function showLists(lists) {
  const chosen = by("list").value;
  by("list").replaceChildren(...[["", words.allSpecies], ...lists.map((list) =>
    [list.name, words.listSize(list.name, list.classes)])].map(([value, text]) => {
    const option = element("option", "", text);
    option.value = value;
    return option;
  }));
  by("list").value = lists.some((list) => list.name === chosen) ? chosen : "";
  by("lists").hidden = lists.length === 0;
}

// ---- asking ----------------------------------------------------------------------------------

async function identify() {
  clear();
  const [originals, justTaken] = [files(), areJustTaken()];
  if (originals.length === 0) return start();
  state.asking?.abort(SUPERSEDED);
  const asking = new AbortController();
  const isShown = () => asking === state.asking; // else the person went on: only the notebook gets the answer
  const { queued, entry: before } = state;
  state.asking = asking;
  setBusy(true);
  const photos = [];
  for (const file of originals) photos.push(await prepare(file)); // one at a time: they may be large
  let query = {};
  const notes = notesOf(originals, justTaken);
  try {
    await loadCard();
    if (isShown()) await readPlace(originals, justTaken);
    if (isShown()) query = { list: by("list").value, ...placeQuery() };
    const onProgress = (share) => isShown() && showProgress(share);
    const answer = await askAbout(photos, query, asking, onProgress);
    const entry = { id: queued ?? (await before), ...(await notes) };
    const kept = keepAnswer(answer, photos, entry);
    kept.then(sendWaiting); // others may wait: now there is a network
    if (!isShown()) return;
    [state.queued, state.entry] = [null, kept];
    setBusy(false); // before the answer is scrolled to: what waits there takes room
    showAnswer(answer, entry, kept);
  } catch (problem) {
    if (asking.signal.reason === SUPERSEDED) return;
    const waiting = await keepPhotos(photos, query, await notes, problem, queued);
    if (!isShown()) return;
    state.queued = waiting;
    const isOutdated = isAboutQuery(problem);
    if (isOutdated) {
      state.card = null;
      await loadCard().catch(() => {}); // offers what the server has now
    }
    setBusy(false);
    showProblem(isOutdated ? { ...problem, retryable: true } : problem, identify, waiting ? words.queued : "");
  }
}

async function askAbout(photos, query, asking, onProgress) {
  const { max_body_bytes: most, upload_deadline_s: deadline } = state.card.limits;
  if (photos.reduce((sum, photo) => sum + photo.size, 0) > most) throw { code: "body_too_large" };
  const timer = setTimeout(() => asking.abort(), 1000 * (deadline + PATIENCE_S));
  try {
    return await askForSlider(photos, query, { signal: asking.signal, onProgress });
  } finally {
    clearTimeout(timer);
  }
}

/** The answer with the sets of the slider. */
async function askForSlider(photos, query, options) {
  const answer = await ask(photos, { include: ["dial"], ...query }, options);
  if (answer.model.calibration_id !== state.card.model.calibration_id) {
    state.card = null; // the server has another model by now
    await loadCard();
  }
  return answer;
}

/** How much of the photos has been sent; the ring shows that the server works. */
function showProgress(share) {
  by("sent").hidden = share >= 1;
  by("sent").value = share;
}

/** Remove the last answer, so that it is never mistaken for the next one. */
function clear() {
  state.answer = null;
  by("said").textContent = "";
  for (const id of ["welcome", "problem", "result"]) by(id).hidden = true;
}

function setBusy(busy) {
  by("busy").hidden = !busy;
  by("sent").hidden = true;
  by("waiting").hidden = !busy;
  by("answer").setAttribute("aria-busy", String(busy));
}

// ---- the answer ------------------------------------------------------------------------------

/** Show a new answer; `entry` is what the notebook has of it, `kept` promises its id there. */
function showAnswer(answer, entry, kept) {
  const { feedback, feedback_licence: licence } = state.card;
  present(answer, entry, { feedback, licence, kept });
}

/** Show an entry of the notebook again, with the figures it had. */
async function showEntry(entry) {
  state.asking = state.queued = state.entry = null;
  clear();
  setBusy(false);
  if (entry.photo ?? entry.picture) showPicture(entry.photo ?? entry.picture);
  present(entry.answer, entry, { feedback: false, licence: null, kept: entry.id });
}

function present(answer, entry, { feedback, licence, kept }) {
  state.answer = answer;
  state.photos = () => (files().length ? files() : [entry.photo ?? entry.picture].filter(Boolean));
  by("details").open = false;
  state.action = offerDecision(answer, {
    entry, feedback, licence, redraw: show,
    widen: () => widen(answer),
    photo: () => state.photos()[0],
    keep: async (fields) => changeEntry(await kept, fields),
  });
  showDial(answer);
  showAbout(answer);
  move(ownStop(answer)); // that of another photo is nobody's choice for this one
  by("result").hidden = false;
  if (narrow.matches) by("answer").scrollIntoView();
}

/** Show the set at a stop of the slider. */
function move(at) {
  state.at = at;
  const stop = stopsOf(state.answer)[at];
  markDial(state.answer, at);
  showSet(state.answer, draw(state.answer.results, stop.size), stop, { action: state.action, compare });
}

async function compare(member) {
  const { openComparison } = await import("./compare.js");
  await openComparison(member, state.photos());
}

const show = () => move(state.at);

/** Show at least the whole set of the answer; returns whether less was shown. */
function widen(answer) {
  if (state.at >= ownStop(answer)) return false;
  move(ownStop(answer));
  return true;
}

// ---- wiring ----------------------------------------------------------------------------------

function start() {
  by("problem").hidden = true;
  by("welcome").hidden = false;
  loadCard().catch((problem) => showProblem(problem, start)).finally(keepPage);
}

/** On a phone the results come before the slider. */
function placeDial() {
  if (narrow.matches) by("show-all").after(by("dial"));
  else by("rollup").before(by("dial"));
}

speak();
placeDial();
narrow.addEventListener("change", placeDial);
wireNotebook({
  open: showEntry,
  send: (photos, query) => loadCard().then(() => askForSlider(photos, query)),
  sent: (entry, outcome) => { // the page still says that these photos wait
    if (entry.id !== state.queued) return;
    state.queued = null;
    clear();
    state.entry = entry.id;
    if (outcome.results) showAnswer(outcome, entry, entry.id);
    else showProblem(outcome);
  },
});
wireDial(move);
by("list").addEventListener("change", () => files().length && identify());
if (window.matchMedia("(pointer: coarse)").matches) {
  by("invite").textContent = words.inviteTouch;
  by("choose").classList.remove("primary");
  by("take").classList.add("primary");
  by("take").hidden = false;
}
wirePhotos((isSamePlant) => {
  state.queued = null;
  if (!isSamePlant) state.asking = state.entry = null;
  identify();
});
start();
