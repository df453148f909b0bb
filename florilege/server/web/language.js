// The language of the pages, and how its people write numbers.

const LANGUAGES = ["en", "fr", "de", "es"];

const base = (tag) => tag.toLowerCase().split("-")[0];

/** The browser's tag of the first available language, such as fr-CH; and the language itself. */
export const spoken = navigator.languages.find((tag) => LANGUAGES.includes(base(tag))) ?? "en";
export const language = base(spoken);

/** A number as people of this language write it. */
export const number = (value, options) => new Intl.NumberFormat(spoken, options).format(value);

/**
 * A function that chooses between two forms of a text by the plural rules of a language, and
 * writes the number for "#".
 */
export function forms(tag) {
  const rules = new Intl.PluralRules(tag);
  return (n, one, other) => (rules.select(n) === "one" ? one : other).replace("#", number(n));
}
