// The page: photos in, the set out. All content from the server is shown as text, never as markup.
import { showAbout, showSet } from "./answer.js";
import { confirmedName, offerFeedback } from "./feedback.js";
import { keepAnswer, keepConfirmed, keepPhotos, wireHistory } from "./history.js";
import { button, by, element, fixed, number, speak, words } from "./page.js";
import { areJustTaken, files, limitPhotos, showPicture, wirePhotos } from "./photos.js";
import { offerPlace, placeQuery, readPlace } from "./place.js";
import { showProblem } from "./problems.js";
import { identify as ask, modelInfo, prepare } from "./service.js";
import { averageK, draw, lowestThreshold, nearestPoint, pointsFor } from "./sets.js";

const PRESETS = [1, 2, 3, 5, 10];
const PATIENCE_S = 60; // beyond the server's own deadline for an upload
const MOST_RESULTS = 100; // nearly all sets of the slider are smaller

const narrow = window.matchMedia("(max-width: 52rem)");
const state = { card: null, answer: null, k: null, asking: null, queued: null, action: () => null };

// ---- the model -------------------------------------------------------------------------------

async function loadCard() {
  if (state.card) return;
  const card = await modelInfo();
  state.card = card;
  state.k ??= card.default_k;
  limitPhotos(card.limits.max_images);
  by("model").textContent = words.modelLine(card.model.name, card.model.version, card.classes);
  if (card.feedback_photos) by("private").textContent = words.privateUnless;
  by("one-plant").textContent = words.onePlant(card.limits.max_images);
  showLists(card.lists ?? []);
  offerPlace(card.places, () => files().length && identify());
}

function showLists(lists) {
  const chosen = by("list").value;
  by("list").replaceChildren(...[["", words.everywhere], ...lists.map((list) =>
    [list.name, words.listSize(list.name, list.classes)])].map(([value, text]) => {
    const option = element("option", "", text);
    option.value = value;
    return option;
  }));
  by("list").value = lists.some((list) => list.name === chosen) ? chosen : "";
  by("lists").hidden = lists.length === 0;
}

// ---- the slider ------------------------------------------------------------------------------

/** Settings of the slider; that of the answer alone where the model has others by now. */
function points() {
  const { set, model } = state.answer;
  if (model.calibration_id !== state.card?.model.calibration_id) return [set];
  return pointsFor(averageK(state.card), state.answer);
}

const index = () => nearestPoint(points(), state.k);

function showDial() {
  by("dial").hidden = points().length < 2;
  by("k").max = String(points().length - 1);
  const presets = PRESETS.filter((k) => points().some((one) => one.k === k));
  by("presets").replaceChildren(...presets.map((k) => {
    const preset = button("preset", number(k), () => choose(k));
    preset.dataset.k = String(k);
    preset.setAttribute("aria-label", words.dialText(k));
    return preset;
  }));
}

function choose(k) {
  state.k = k;
  show();
}

function markDial({ k }) {
  const slider = by("k");
  slider.value = String(index());
  slider.setAttribute("aria-valuetext", words.dialText(k));
  slider.style.setProperty("--at", String(index() / Math.max(1, points().length - 1)));
  by("k-value").textContent = fixed(k, Number.isInteger(10 * k) ? 1 : 2);
  for (const preset of by("presets").children) {
    preset.setAttribute("aria-pressed", String(Number(preset.dataset.k) === k));
  }
}

// ---- asking ----------------------------------------------------------------------------------

async function identify() {
  clear();
  if (files().length === 0) return start();
  state.asking?.abort();
  const asking = new AbortController();
  state.asking = asking;
  setBusy(true);
  const photos = [];
  for (const file of files()) photos.push(await prepare(file)); // one at a time: they may be large
  let query = {};
  try {
    await loadCard();
    await readPlace(files(), areJustTaken());
    query = { list: by("list").value, ...placeQuery() };
    const answer = await askAbout(photos, query, asking);
    keepAnswer(answer, photos, state.queued);
    if (asking !== state.asking) return;
    state.queued = null;
    setBusy(false); // before the answer is scrolled to: what waits there takes room
    showAnswer(answer);
  } catch (problem) {
    if (asking !== state.asking) return;
    state.queued = await keepPhotos(photos, query, problem, state.queued);
    setBusy(false);
    showProblem(problem, identify, state.queued ? words.queued : "");
  }
}

async function askAbout(photos, query, asking) {
  const { max_body_bytes: most, upload_deadline_s: deadline } = state.card.limits;
  if (photos.reduce((sum, photo) => sum + photo.size, 0) > most) throw { code: "body_too_large" };
  const timer = setTimeout(() => asking.abort(), 1000 * (deadline + PATIENCE_S));
  try {
    return await askForSlider(photos, query, { signal: asking.signal, onProgress: showProgress });
  } finally {
    clearTimeout(timer);
  }
}

/** The answer with the classes that the slider can show: of 10,000, all would have 4 MB. */
async function askForSlider(photos, query, options) {
  const [include, max_results] = [["scores"], MOST_RESULTS];
  const answer = await ask(photos, { include, max_results, ...query }, options);
  if (answer.model.calibration_id !== state.card.model.calibration_id) {
    state.card = null; // the server now has other thresholds
    await loadCard();
  }
  const [last, min_score] = [answer.results.at(-1), lowestThreshold(averageK(state.card), query)];
  const isWhole = answer.results.length < MOST_RESULTS || last.score < min_score;
  return isWhole ? answer : ask(photos, { include, min_score, ...query }, options);
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

function showAnswer(answer) {
  state.answer = answer;
  const { feedback, feedback_licence: licence } = state.card;
  by("confirmed").hidden = true;
  const onKept = (classId) => keepConfirmed(answer, classId);
  state.action = !feedback ? () => null
    : offerFeedback(answer, licence, { widen: () => widen(answer), redraw: show, onKept });
  present(answer);
}

/** Show a past answer again, with the figures it had. */
async function showEntry({ answer, picture, confirmed }) {
  state.asking?.abort();
  [state.asking, state.queued] = [null, null];
  clear();
  setBusy(false);
  await loadCard().catch(() => null); // without a network the answer has its own figures
  state.answer = answer;
  state.k = answer.set.k;
  state.action = ({ class_id: id }) => (id === confirmed ? element("strong", "", `✓ ${words.thisIsIt}`) : null);
  by("feedback").hidden = true;
  by("confirmed").hidden = !confirmed;
  by("confirmed").textContent = confirmed ? words.confirmed(confirmedName(answer, confirmed)) : "";
  if (picture) showPicture(picture);
  present(answer);
}

function present(answer) {
  by("details").open = false;
  showDial();
  showAbout(answer);
  show();
  by("result").hidden = false;
  if (narrow.matches) by("answer").scrollIntoView();
}

function show() {
  const point = points()[index()];
  const results = draw(state.answer.results, point.lambda, state.answer.set.min_size);
  markDial(point);
  showSet(state.answer, results, point, state.action);
}

/** Show at least the whole set of the answer; returns whether less was shown. */
function widen(answer) {
  if (Number(by("result").dataset.size) >= answer.set.size) return false;
  choose(answer.set.k);
  return true;
}

// ---- wiring ----------------------------------------------------------------------------------

function start() {
  by("problem").hidden = true;
  by("welcome").hidden = false;
  loadCard().catch((problem) => showProblem(problem, start));
}

/** On a phone the results come before the slider. */
function placeDial() {
  if (narrow.matches) by("show-all").after(by("dial"));
  else by("rollup").before(by("dial"));
}

speak();
placeDial();
narrow.addEventListener("change", placeDial);
wirePhotos(() => {
  state.queued = null;
  identify();
});
wireHistory({
  open: showEntry,
  send: (photos, query) => loadCard().then(() => askForSlider(photos, query)),
  sent: (id, outcome) => { // the page still says that these photos wait
    if (id !== state.queued) return;
    state.queued = null;
    clear();
    if (outcome.results) showAnswer(outcome);
    else showProblem(outcome);
  },
});
by("k").addEventListener("input", () => choose(points()[Number(by("k").value)].k));
by("list").addEventListener("change", () => files().length && identify());
if (window.matchMedia("(pointer: coarse)").matches) {
  by("invite").textContent = words.inviteTouch;
  by("choose").classList.remove("primary");
  by("take").classList.add("primary");
  by("take").hidden = false;
}
start();
