// Where and when a photo was taken: what the photo itself says, and what the person says instead.
import { cameraData, positionOf } from "./exif.js";
import { by, element, fixed, spoken, words } from "./page.js";

const DEGREES = "([-+]?\\d+(?:[.,]\\d+)?)";
const POSITION = new RegExp(`^\\s*${DEGREES}(?:\\s*[,;]\\s*|\\s+)${DEGREES}\\s*$`);
let places = null; // what the model can use
let onChange = () => {};
let photosRead = [];
let isHere = false; // whether they were taken on this page just now

/** Offer what the model can use; `changed` is called when the place or month changes. */
export function offerPlace(offered, changed) {
  const { regions = null, calibrated = [] } = offered ?? {};
  places = calibrated.length ? offered : null;
  onChange = changed;
  by("places").hidden = !places;
  by("region-line").hidden = !regions;
  by("here-label").hidden = Boolean(regions);
  by("month-line").hidden = !calibrated.includes("region_and_month");
  offer("region", [["", words.regionUnknown], ...(regions ?? []).map((name) => [name, name])]);
  const name = new Intl.DateTimeFormat(spoken, { month: "long", timeZone: "UTC" });
  const months = Array.from({ length: 12 }, (_, at) => [at + 1, name.format(Date.UTC(2026, at))]);
  offer("month", [["", words.monthUnknown], ...months]);
  by("region").onchange = () => { unfold(); onChange(); };
  by("here").onchange = () => {
    unfold();
    if (isHere && by("here").checked && !by("spot").value) locate();
    else onChange();
  };
  by("month").onchange = onChange;
  by("spot").onchange = () => { sayPosition(); onChange(); };
  by("locate").onclick = () => locate();
  unfold();
}

function offer(id, options) {
  const before = by(id).value;
  by(id).replaceChildren(...options.map(([value, text]) => {
    const option = element("option", "", text);
    option.value = value;
    return option;
  }));
  by(id).value = options.some(([value]) => String(value) === before) ? before : "";
}

/** Show the month, and the position on a grid, once there is a place to use. */
function unfold() {
  by("where").hidden = places?.regions ? !by("region").value : !by("here").checked;
  for (const id of ["spot-line", "here-said", "locate"]) by(id).hidden = Boolean(places?.regions);
  sayPosition();
}

/**
 * Fill in where and when the photos of a plant were taken, as they say themselves.
 *
 * `justTaken` says that they were taken on this page, here and now. Further photos of the plant
 * change nothing that is already filled in.
 */
export async function readPlace(photos, justTaken) {
  if (!places || !photos.length) return;
  isHere = justTaken;
  if (photos[0] !== photosRead[0]) by("month").value = by("spot").value = "";
  photosRead = photos;
  const data = await Promise.all(photos.map(cameraData));
  if (photos !== photosRead) return; // others were chosen meanwhile
  const month = data.find((one) => one.month)?.month ?? (isHere ? new Date().getMonth() + 1 : "");
  by("month").value ||= month;
  const position = data.find((one) => one.position)?.position;
  if (position && !by("spot").value) showPosition(position);
  sayPosition();
  if (isHere && by("here").checked && !by("spot").value) locate();
}

/** Parameters of the request. */
export function placeQuery() {
  const month = by("month-line").hidden ? "" : by("month").value;
  if (places?.regions) return by("region").value ? { region: by("region").value, month } : {};
  const position = by("here").checked && writtenPosition();
  if (!places || !position) return {};
  // half a cell is precise enough, and says less of the person
  const step = places.cell_degrees / 2;
  const round = (degrees) => (Math.floor(degrees / step) + 0.5) * step;
  return { latitude: round(position.latitude), longitude: round(position.longitude), month };
}

const writtenPosition = () => positionIn(by("spot").value);

/** The position that a text such as 43.61, 3.88 or 43,61; 3,88 names, or null. */
export function positionIn(text) {
  const [, ...ends] = POSITION.exec(text) ?? [];
  return ends.length ? positionOf(...ends.map((end) => Number(end.replace(",", ".")))) : null;
}

const showPosition = (position) => { by("spot").value = positionText(position); };

const positionText = ({ latitude, longitude }, digits = 2) =>
  [latitude, longitude].map((degrees) => fixed(degrees, digits)).join("; ");

/** When and where photos were taken, for the notebook: as the person says, else as the photos do. */
export async function notesOf(photos, justTaken) {
  const data = await Promise.all(photos.map(cameraData));
  const today = justTaken ? new Date().toLocaleDateString("sv") : ""; // Sweden writes 2026-06-30
  const position = data.find((one) => one.position)?.position;
  const asked = places && (by("region").value || (by("here").checked && by("spot").value));
  return {
    date: data.find((one) => one.date)?.date ?? today,
    place: asked || (position ? positionText(position, 5) : ""),
  };
}

function sayPosition() {
  by("here-said").textContent = writtenPosition() ? words.located
    : by("spot").value ? words.placeUnreadable : words.placeMissing;
}

function locate() {
  const fail = () => { by("here-said").textContent = words.notLocated; };
  if (!navigator.geolocation) return fail();
  const place = ({ coords }) => { showPosition(coords); sayPosition(); onChange(); };
  navigator.geolocation.getCurrentPosition(place, fail, { maximumAge: 3.6e6, timeout: 2e4 });
}
