// The page: photos in, the set out. Everything the server says is shown as text, never as markup.
import { averageK, draw, nearestPoint, place, pointsFor, readable, rollUp, sentence } from "./sets.js";

const MOST_BELOW = 4;
const PRESETS = [1, 2, 3, 5, 10];
const TICKS = [0, 0.01, 0.1, 0.5, 1];
const MOST_GENERA = 3;
const MOST_FAMILIES = 2;
const ADVICE = {
  unsupported_image_type: "This file is not a photo that can be read here. JPEG, PNG, WebP, HEIC and AVIF work.",
  image_unreadable: "The photo is damaged or was cut off on its way. Choose it again, or another one.",
  image_too_large: "The photo has too many pixels. A smaller copy shows a plant just as well.",
  body_too_large: "This is too much to send at once. Use a smaller copy of the photo, or fewer photos.",
  upload_too_slow: "The connection is too slow for this photo. Try a smaller copy, or try again.",
  wrong_number_of_images: "Too many photos of one plant. Remove some of them.",
  overloaded: "Many people are asking right now. Wait a moment, then try again.",
  queue_timeout: "Many people are asking right now. Wait a moment, then try again.",
  loading: "The server is just starting. Try again in a moment.",
  draining: "The server is restarting. Try again in a moment.",
  internal_error: "Something went wrong on the server, not with your photo.",
};

const by = (id) => document.getElementById(id);
const state = { card: null, photos: [], answer: null, index: 0, request: 0 };

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// ---- the model -------------------------------------------------------------------------------

async function loadCard() {
  if (state.card) return state.card;
  const response = await fetch("v1/model");
  if (!response.ok) throw await response.json();
  state.card = await response.json();
  state.index = nearestPoint(points(), state.card.default_k);
  showModel();
  by("k").addEventListener("input", () => choosePoint(Number(by("k").value)));
  showDial();
  return state.card;
}

const images = () => state.answer?.query.images ?? 1;
const points = () => pointsFor(averageK(state.card), images()).points;
const point = () => points()[state.index];

function showModel() {
  const { model, classes } = state.card;
  by("model").textContent = `${model.name} ${model.version}, ${classes} species, ` +
    `calibration ${model.calibration_id.slice(0, 8)}`;
}

// ---- the slider ------------------------------------------------------------------------------

function showDial() {
  const slider = by("k");
  slider.max = String(points().length - 1);
  const presets = PRESETS.filter((k) => points().some((one) => one.k === k));
  by("presets").replaceChildren(...presets.map((k) => {
    const button = element("button", "preset", String(k));
    button.type = "button";
    button.dataset.k = String(k);
    button.setAttribute("aria-label", `${k} on average`);
    button.addEventListener("click", () => choosePoint(nearestPoint(points(), k)));
    return button;
  }));
  markPoint();
}

function choosePoint(index) {
  state.index = index;
  markPoint();
  if (state.answer) showSet();
}

function markPoint() {
  const { k } = point();
  const slider = by("k");
  slider.value = String(state.index);
  slider.setAttribute("aria-valuetext", `${k} species on average`);
  slider.style.setProperty("--at", String(state.index / Math.max(1, points().length - 1)));
  by("k-value").textContent = Number.isInteger(k) ? k.toFixed(1) : String(k);
  for (const button of by("presets").children) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.k) === k));
  }
}

// ---- photos ----------------------------------------------------------------------------------

function setPhotos(files, { add = false } = {}) {
  const chosen = [...files];
  if (chosen.length === 0) return;
  if (!add) {
    state.photos.forEach((photo) => URL.revokeObjectURL(photo.url));
    state.photos = [];
  }
  state.photos.push(...chosen.map((file) => ({ file, url: URL.createObjectURL(file) })));
  showPhotos();
  identify();
}

function removePhoto(photo) {
  URL.revokeObjectURL(photo.url);
  state.photos = state.photos.filter((other) => other !== photo);
  showPhotos();
  identify();
}

function showPhotos() {
  const [first] = state.photos;
  by("empty").hidden = true;
  by("shown").hidden = false;
  by("choose").textContent = "Choose another";
  showPreview(first);
  by("strip").hidden = state.photos.length < 2;
  by("strip").replaceChildren(...state.photos.map(thumbnail));
  by("more").hidden = state.photos.length >= (state.card?.limits.max_images ?? 5);
}

function showPreview(photo) {
  const image = by("photo");
  const caption = by("no-preview");
  image.hidden = false;
  caption.hidden = true;
  image.alt = `The photo to look at: ${photo.file.name}`;
  image.onerror = () => {
    image.hidden = true;
    caption.hidden = false;
    caption.textContent = `${photo.file.name} (this browser cannot show it)`;
  };
  image.src = photo.url;
}

function thumbnail(photo, index) {
  const item = element("li");
  const image = element("img");
  image.src = photo.url;
  image.alt = `Photo ${index + 1}`;
  const button = element("button", "remove", "×");
  button.type = "button";
  button.setAttribute("aria-label", `Remove photo ${index + 1}`);
  button.addEventListener("click", () => removePhoto(photo));
  item.append(image, button);
  return item;
}

// ---- asking ----------------------------------------------------------------------------------

async function identify() {
  const request = ++state.request;
  by("busy").hidden = false;
  by("drop").setAttribute("aria-busy", "true");
  try {
    await loadCard();
    const answer = await ask(state.photos.map((photo) => photo.file));
    if (request === state.request) showAnswer(answer);
  } catch (problem) {
    if (request === state.request) showProblem(problem);
  } finally {
    if (request === state.request) {
      by("busy").hidden = true;
      by("drop").removeAttribute("aria-busy");
    }
  }
}

async function ask(files) {
  const form = new FormData();
  files.forEach((file) => form.append("images", file, file.name));
  const query = new URLSearchParams({ include: "scores", k: String(state.card.default_k) });
  const response = await fetch(`v1/identify?${query}`, { method: "POST", body: form });
  const content = await response.json();
  if (!response.ok) throw content;
  return content;
}

function showProblem(problem) {
  const known = typeof problem?.code === "string";
  by("problem-title").textContent = known ? problem.title : "The server cannot be reached";
  by("problem-advice").textContent = known
    ? (ADVICE[problem.code] ?? capitalised(problem.detail))
    : "Check the connection, then try again.";
  by("problem-detail").textContent = known && ADVICE[problem.code] ? capitalised(problem.detail) : "";
  by("problem-id").textContent = known ? problem.instance : "";
  by("problem-id").parentElement.hidden = !known;
  by("again").hidden = known && !problem.retryable;
  by("problem").hidden = false;
  by("welcome").hidden = true;
  by("result").hidden = true;
  by("problem").scrollIntoView({ block: "nearest" });
}

const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// ---- the answer ------------------------------------------------------------------------------

function showAnswer(answer) {
  const { k } = point();
  state.answer = answer;
  state.index = nearestPoint(points(), k);
  showDial();
  by("unfamiliar").hidden = answer.rejection.verdict !== "suspect";
  by("problem").hidden = true;
  by("welcome").hidden = true;
  by("result").hidden = false;
  by("warnings").replaceChildren(...answer.warnings.map((w) => element("li", "", capitalised(w.detail))));
  showSet();
  if (window.matchMedia("(max-width: 52rem)").matches) by("answer").scrollIntoView();
}

function showSet() {
  const { k, lambda } = point();
  const results = draw(state.answer.results, lambda, averageK(state.card).min_size);
  const size = results.filter((result) => result.in_set).length;
  by("result").dataset.k = String(k);
  by("result").dataset.size = String(size);
  showHeadline(results[0], size);
  by("rollup").replaceChildren(...groups(results).map(chip));
  by("bars").replaceChildren(...results.slice(0, size + MOST_BELOW).map(row));
  showThreshold(lambda);
  const { calibrated } = pointsFor(averageK(state.card), images());
  by("sentence").textContent = sentence(point(), images(), calibrated);
}

function showHeadline(best, size) {
  by("kicker").textContent = size === 0 ? "Nothing scores high enough for this setting"
    : size === 1 ? "One species, no other comes close"
    : `It may be one of these ${size} species`;
  by("answer-title").textContent = size === 0 ? "No match" : best.taxon.scientific_name;
  by("best-common").textContent = size === 0 ? "" : names(best.taxon);
}

const names = (taxon) => taxon.common_names.map((one) => one.name).join(", ");

function groups(results) {
  const all = rollUp(results);
  const genera = all.filter((group) => group.rank === "genus").slice(0, MOST_GENERA);
  return [...genera, ...all.filter((group) => group.rank === "family").slice(0, MOST_FAMILIES)];
}

function chip(group) {
  const item = element("li", group.covers_set ? "covers" : "");
  item.append(element("span", "rank", group.rank), element("em", "", group.name));
  const share = `${group.score > 0.995 ? "over 99" : Math.round(100 * group.score)}\u00a0%`;
  item.append(element("span", "share", share));
  item.title = group.covers_set
    ? `Every species of the set belongs to this ${group.rank}`
    : `Holds ${share} of all scores`;
  return item;
}

function row(result) {
  const item = element("li", result.in_set ? "inside" : "below");
  item.dataset.classId = result.class_id;
  const label = element("div", "label");
  label.append(element("em", "name", result.taxon.scientific_name));
  const common = names(result.taxon);
  if (common) label.append(element("span", "common", common));
  const track = element("div", "track");
  const bar = element("div", "bar");
  bar.style.setProperty("--share", String(place(result.score)));
  track.append(bar);
  const score = element("span", "score", readable(result.score));
  score.title = String(result.score);
  item.append(label, track, score);
  item.append(element("span", "hidden", result.in_set ? ", in the set" : ", below the threshold"));
  return item;
}

function showThreshold(lambda) {
  const chart = by("bars").parentElement;
  chart.style.setProperty("--lambda", String(place(lambda)));
  by("lambda-label").textContent = `λ ${readable(lambda)}`;
  by("lambda-label").title = `threshold λ = ${lambda}`;
  by("ticks").replaceChildren(...TICKS.map((tick) => {
    const mark = element("span", "tick", String(tick));
    mark.style.setProperty("--share", String(place(tick)));
    return mark;
  }));
}

// ---- wiring ----------------------------------------------------------------------------------

function wire() {
  for (const [button, input] of [["choose", "file"], ["more", "files"], ["take", "camera"]]) {
    by(button).addEventListener("click", () => by(input).click());
    by(input).addEventListener("change", () => {
      setPhotos(by(input).files, { add: input === "files" });
      by(input).value = "";
    });
  }
  if (navigator.maxTouchPoints > 0) {
    by("take").hidden = false;
    by("invite").textContent = "Which plant is it?";
    by("hint").textContent = "Take a photo or choose one";
  }
  by("again").addEventListener("click", identify);
  wireDrop(by("drop"));
  document.addEventListener("paste", (event) => {
    setPhotos([...event.clipboardData.files].filter((file) => file.type.startsWith("image/")));
  });
}

function wireDrop(zone) {
  for (const name of ["dragover", "drop"]) {
    window.addEventListener(name, (event) => event.preventDefault());
  }
  for (const name of ["dragenter", "dragover"]) {
    zone.addEventListener(name, () => zone.classList.add("over"));
  }
  for (const name of ["dragleave", "drop"]) {
    zone.addEventListener(name, () => zone.classList.remove("over"));
  }
  zone.addEventListener("drop", (event) => setPhotos(event.dataTransfer.files));
}

wire();
loadCard().catch(showProblem);
