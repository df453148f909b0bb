// Where and when a photo was taken, if the person says so: a region, or the device's location.
import { by, element, words } from "./page.js";

let position = null; // latitude and longitude, after consent
let places = null;

/** Offer what the model can use; `onChange` is called when the place changes. */
export function offerPlace(offered, onChange) {
  places = offered;
  by("places").hidden = !offered || offered.calibrated.length === 0;
  by("region").hidden = by("region-label").hidden = !offered?.regions;
  by("here-label").hidden = !offered || Boolean(offered.regions);
  by("region").replaceChildren(...["", ...(offered?.regions ?? [])].map((name) => {
    const option = element("option", "", name || words.regionUnknown);
    option.value = name;
    return option;
  }));
  by("region").onchange = onChange;
  by("here").onchange = () => (by("here").checked ? locate(onChange) : forget(onChange));
}

/** Parameters of the request; photos are taken to be of this month. */
export function placeQuery() {
  const month = new Date().getMonth() + 1;
  if (places?.regions && by("region").value) return { region: by("region").value, month };
  return position ? { ...position, month } : {};
}

function locate(onChange) {
  if (!navigator.geolocation) return fail();
  navigator.geolocation.getCurrentPosition(
    ({ coords }) => {
      // half a cell is precise enough, and says less of the person
      const step = places.cell_degrees / 2;
      const round = (degrees) => (Math.floor(degrees / step) + 0.5) * step;
      position = { latitude: round(coords.latitude), longitude: round(coords.longitude) };
      by("here-said").textContent = words.located;
      onChange();
    },
    fail,
    { maximumAge: 3.6e6, timeout: 2e4 },
  );
}

function fail() {
  by("here").checked = false;
  by("here-said").textContent = words.notLocated;
}

function forget(onChange) {
  position = null;
  by("here-said").textContent = "";
  onChange();
}
