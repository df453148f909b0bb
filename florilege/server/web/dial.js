// The slider: the sets that one photo gives, from short to safe. Moving it asks nothing.
import { by, words } from "./page.js";
import { ownStop, stopsOf } from "./sets.js";
import { rateOf, shareText } from "./verdict.js";

/** Connect it; `onChange` is called with the position of a stop. */
export function wireDial(onChange) {
  by("k").addEventListener("input", () => onChange(Number(by("k").value)));
  by("shorter").addEventListener("click", () => onChange(0));
  by("safer").addEventListener("click", () => onChange(Number(by("k").max)));
}

/** Offer the sets of an answer, and say at each end how many species it means, and how safe. */
export function showDial(answer) {
  const stops = stopsOf(answer);
  by("dial").hidden = stops.length < 2;
  by("k").max = String(stops.length - 1);
  by("dial").style.setProperty("--own", String(ownStop(answer) / Math.max(1, stops.length - 1)));
  by("shorter-means").textContent = meaning(answer, stops[0]);
  by("safer-means").textContent = meaning(answer, stops.at(-1));
}

export function markDial(answer, at) {
  const [slider, stops] = [by("k"), stopsOf(answer)];
  slider.value = String(at);
  slider.setAttribute("aria-valuetext", meaning(answer, stops[at]));
  slider.style.setProperty("--at", String(at / Math.max(1, stops.length - 1)));
  by("k-value").textContent = words.found(stops[at].size);
  by("shorter").disabled = at === 0;
  by("safer").disabled = at === stops.length - 1;
}

function meaning(answer, stop) {
  const rate = rateOf(answer, stop);
  return rate ? words.sizeRate(stop.size, shareText(rate.value)) : words.found(stop.size);
}
