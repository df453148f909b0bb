// The photos of one plant: choose, take, drop or paste them; show and remove them.
import { button, by, element, number, words } from "./page.js";

let photos = [];
let most = 5;
let changed = () => {};

export const files = () => photos.map((photo) => photo.file);

/** Whether they were taken on this page just now, not chosen among earlier ones. */
export const areJustTaken = () => photos.length > 0 && photos.every((photo) => photo.isNew);

/** Connect the controls; `onChange` is called after every change, with whether it is the same plant. */
export function wirePhotos(onChange) {
  changed = onChange;
  for (const [name, input] of [["zone", "file"], ["choose", "file"], ["more", "files"], ["take", "camera"]]) {
    by(name).addEventListener("click", () => by(input).click());
  }
  for (const input of ["file", "files", "camera"]) {
    const takeChosen = () => {
      take(by(input).files, { add: input === "files", isNew: input === "camera" });
      by(input).value = "";
    };
    by(input).addEventListener("change", takeChosen);
    takeChosen(); // on a slow connection somebody chose photos before this program was there
  }
  wireDrop(by("drop"));
  document.addEventListener("paste", (event) => {
    take([...event.clipboardData.files].filter((file) => file.type.startsWith("image/")));
  });
}

export function limitPhotos(limit) {
  most = limit;
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
  zone.addEventListener("drop", (event) => take(event.dataTransfer.files));
}

function take(chosen, { add = false, isNew = false } = {}) {
  if (chosen.length === 0) return;
  const all = [...(add ? photos : []), ...[...chosen].map((file) => ({ file, isNew }))];
  photos.forEach((photo) => URL.revokeObjectURL(photo.url));
  photos = all.slice(0, most).map((photo) => ({ ...photo, url: URL.createObjectURL(photo.file) }));
  by("too-many").hidden = all.length <= most;
  by("too-many").textContent = words.tooMany(most, number(all.length));
  show();
  changed(add);
}

function remove(photo) {
  URL.revokeObjectURL(photo.url);
  photos = photos.filter((other) => other !== photo);
  by("too-many").hidden = true;
  show();
  changed(true);
}

function show() {
  by("empty").hidden = true;
  by("shown").hidden = false;
  by("choose").textContent = words.chooseOther;
  by("zone").setAttribute("aria-label", words.chooseOther);
  showPreview(photos[0]);
  by("strip").hidden = photos.length < 2;
  by("strip").replaceChildren(...photos.map(thumbnail));
  by("more").hidden = photos.length >= most;
}

/** Show the picture of a past answer in place of the photos. */
export function showPicture(picture) {
  photos.forEach((photo) => URL.revokeObjectURL(photo.url));
  photos = [{ file: new File([picture], "", { type: picture.type }), url: URL.createObjectURL(picture) }];
  show();
  photos = []; // they are not sent again
  by("more").hidden = true;
}

function showPreview(photo) {
  const image = by("photo");
  const caption = by("no-preview");
  image.hidden = false;
  caption.hidden = true;
  image.alt = words.photoNamed(photo.file.name);
  image.onerror = () => {
    image.hidden = true;
    caption.hidden = false;
    caption.textContent = words.noPreview(photo.file.name);
  };
  image.src = photo.url;
}

function thumbnail(photo, index) {
  const item = element("li");
  const image = element("img");
  image.src = photo.url;
  image.alt = words.photoNumber(index + 1);
  const away = button("remove", "×", () => remove(photo));
  away.setAttribute("aria-label", words.remove(index + 1));
  item.append(image, away);
  return item;
}
