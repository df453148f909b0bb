// Shared by all pages: their language, their numbers, and elements that contain only text.
import { language, number, spoken } from "./language.js";

export { number, spoken };

/** The texts in the first available language of the browser, else in English; the others stay away. */
export const { default: words } = await import(`./words.${language}.js`);

export const english = language === "en";

export const by = (id) => document.getElementById(id);

/** Fill in the document: its language, texts and names of controls. */
export function speak() {
  document.documentElement.lang = language;
  for (const one of document.querySelectorAll("[data-say]")) one.textContent = words[one.dataset.say];
  for (const one of document.querySelectorAll("[data-name]")) {
    one.setAttribute("aria-label", words[one.dataset.name]);
  }
}

export function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

export function button(className, text, onClick) {
  const node = element("button", className, text);
  node.type = "button";
  node.addEventListener("click", onClick);
  return node;
}

export const fixed = (value, digits) =>
  number(value, { minimumFractionDigits: digits, maximumFractionDigits: digits });

export const percent = (share) =>
  number(share, { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const percentage = (share) => number(share, { style: "percent", maximumFractionDigits: 0 });

/** Several things in one sentence: a, b and c; of the type "disjunction": a, b or c. */
export const list = (items, type = "conjunction") =>
  new Intl.ListFormat(spoken, { type }).format(items.map(isolated));

/** A text written from right to left keeps its place in a sentence that is not. */
const isolated = (text) => (/[\u0590-\u08ff]/.test(text) ? `\u2068${text}\u2069` : text);

/** An interval; `format` writes each end. */
export const range = (ends, format) => ends.map(format).join("–");

export const day = (time) => new Intl.DateTimeFormat(spoken, { dateStyle: "long" }).format(new Date(time));

export const minute = (time) =>
  new Intl.DateTimeFormat(spoken, { dateStyle: "medium", timeStyle: "short" }).format(time);

/** A score for people: two significant digits. */
export function readable(score) {
  if (score >= 0.995) return fixed(score, 3);
  if (score >= 0.0995) return fixed(score, 2);
  if (score >= 0.001) return number(score, { minimumSignificantDigits: 2, maximumSignificantDigits: 2 });
  return score === 0 ? "0" : `<${number(0.001)}`;
}

/** What was counted, as photos or as groups of photos of one plant. */
export const counted = ({ rows }, images = 1) =>
  images > 1 ? words.groups(rows, images) : words.photos(rows);
