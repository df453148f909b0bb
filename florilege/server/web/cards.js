// A species as a card: its names, and a reference photo and a link if the model has them.
import { button, element, words } from "./page.js";

const MOST_OTHER_NAMES = 3;

/** Its first common name, else the scientific name. */
export const called = (taxon) => taxon.common_names[0]?.name ?? taxon.scientific_name;

/**
 * A list item, whose name is a heading of this level.
 *
 * `pictured` leaves room for a picture, `control` is its control, or null; `open` is called when
 * somebody taps the picture.
 */
export function speciesCard({ class_id, taxon, in_range }, pictured, { control = null, level = "h3", open = null } = {}) {
  const card = element("li", "card");
  card.dataset.classId = class_id;
  if (pictured) card.append(portrait(taxon, open));
  const text = element("div", "names");
  text.append(...names(taxon, level));
  if (in_range === false) text.append(element("p", "also", words.outOfRange));
  const actions = element("p", "actions");
  actions.append(...[control, link(taxon)].filter(Boolean));
  if (actions.hasChildNodes()) text.append(actions);
  card.append(text);
  return card;
}

function portrait(taxon, open) {
  const figure = element("figure", "portrait");
  const { thumbnail } = taxon;
  if (!thumbnail) return figure;
  const image = element("img");
  image.loading = "lazy";
  image.alt = words.pictureOf(called(taxon));
  image.addEventListener("error", () => figure.replaceChildren());
  image.src = thumbnail.url;
  if (open) {
    const opens = button("", "", open);
    opens.setAttribute("aria-label", words.compare(called(taxon)));
    opens.append(image);
    figure.append(opens);
  } else figure.append(image);
  const credit = [thumbnail.author, thumbnail.licence].filter(Boolean).join(", ");
  if (credit) {
    const caption = element("figcaption", "", credit);
    caption.title = words.picture(credit);
    figure.append(caption);
  }
  return figure;
}

function names(taxon, level) {
  const [first, ...others] = taxon.common_names;
  const scientific = element(first ? "p" : level, first ? "scientific" : "called scientific", taxon.scientific_name);
  scientific.lang = "la";
  if (!first) return [scientific];
  const common = element(level, "called", first.name);
  common.lang = first.lang;
  const also = element("p", "also", others.slice(0, MOST_OTHER_NAMES).map((one) => one.name).join(", "));
  also.lang = first.lang;
  const shown = first.name === taxon.scientific_name ? [common] : [common, scientific];
  return others.length ? [...shown, also] : shown;
}

function link(taxon) {
  if (!/^https?:/.test(taxon.link ?? "")) return null;
  const address = element("a", "link", words.link);
  address.href = taxon.link;
  address.target = "_blank";
  address.rel = "noopener noreferrer";
  address.setAttribute("aria-label", words.linkOf(called(taxon)));
  return address;
}
