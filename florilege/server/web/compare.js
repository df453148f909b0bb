// A full screen to compare: the photo beside reference pictures of a species, and what it is confused with.
import { called } from "./cards.js";
import { button, element, list, words } from "./page.js";
import { problemTexts } from "./problems.js";
import { classInfo } from "./service.js";

const ZOOM = 2.5;
let addresses = [];

/** Open it for a species; `photos` are those of the plant, as files. */
export async function openComparison(species, photos) {
  const dialog = element("dialog", "compare");
  dialog.addEventListener("close", () => {
    addresses.forEach((address) => URL.revokeObjectURL(address));
    addresses = [];
    dialog.remove();
  });
  document.body.append(dialog);
  const own = photos.map((photo, index) => {
    addresses.push(URL.createObjectURL(photo));
    return picture(addresses.at(-1), words.photoNumber(index + 1), "");
  });
  await show(dialog, species, pane(words.yourPhoto, own));
  dialog.showModal();
}

async function show(dialog, { class_id: id, taxon }, own) {
  const title = element("h2", "", called(taxon));
  title.id = "compare-title";
  dialog.setAttribute("aria-labelledby", title.id);
  const away = button("away", "×", () => dialog.close());
  away.setAttribute("aria-label", words.close);
  const latin = element("p", "scientific", taxon.common_names.length ? taxon.scientific_name : "");
  latin.lang = "la";
  const head = element("header");
  head.append(title, latin, away);
  const panes = element("div", "panes");
  panes.append(own);
  dialog.replaceChildren(head, panes);
  const details = await classInfo(id).catch((problem) => problem);
  if (!details.taxon) panes.append(element("p", "note", (problemTexts(details.code) ?? words.problems.unknown)[0]));
  else showDetails(dialog, panes, details, own);
}

function showDetails(dialog, panes, { taxon, pictures, look_alikes: others }, own) {
  const shown = pictures.length ? pictures : [taxon.thumbnail].filter(Boolean);
  const references = shown.map((one, index) => {
    const credit = [one.organ, one.author, one.licence].filter(Boolean).join(", ");
    return picture(one.url, `${words.pictureOf(called(taxon))} (${index + 1})`, credit);
  });
  panes.append(references.length ? pane(words.references(references.length), references) : element("p", "small", words.noReferences));
  if (!others.length) return;
  const line = element("p", "others");
  line.append(element("span", "", `${words.confusedWith} `), ...others.map((other) =>
    button("", called(other.taxon), () => show(dialog, other, own))));
  line.setAttribute("aria-label", `${words.confusedWith} ${list(others.map((other) => called(other.taxon)))}`);
  dialog.append(line);
}

/** Pictures side by side, to swipe. */
function pane(name, pictures) {
  const node = element("section", "pane");
  node.append(element("h3", "small", name));
  const row = element("div", "row");
  row.tabIndex = 0; // arrows scroll it
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", name);
  row.append(...pictures);
  node.append(row);
  return node;
}

/** A picture that a tap makes larger, around the place that was tapped. */
function picture(address, text, credit) {
  const figure = element("figure");
  const image = element("img");
  image.alt = text;
  image.src = address;
  const zoom = button("lens", "", (event) => {
    const frame = zoom.getBoundingClientRect();
    const isLarge = figure.classList.toggle("large");
    zoom.setAttribute("aria-pressed", String(isLarge));
    if (!isLarge) return;
    const [x, y] = event.detail ? [event.clientX - frame.left, event.clientY - frame.top] : [frame.width / 2, frame.height / 2];
    figure.scrollTo((ZOOM - 1) * x, (ZOOM - 1) * y); // the place stays where it is
  });
  zoom.setAttribute("aria-label", words.enlarge(text));
  zoom.setAttribute("aria-pressed", "false");
  zoom.append(image);
  figure.append(zoom);
  if (credit) figure.append(element("figcaption", "", credit));
  return figure;
}
