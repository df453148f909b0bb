// An answer as a picture to share: the photo, the species, and how often such answers are right.
import { by, words } from "./page.js";
import { save } from "./notebook-files.js";

const [WIDTH, PHOTO, MARGIN] = [1080, 810, 64];
const COLOURS = { paper: "#f4eedd", ink: "#22302a", quiet: "#5d6a5f", leaf: "#3c6a4a" };
const SERIF = '"Iowan Old Style", Palatino, "URW Palladio L", P052, Georgia, serif';

/** Share the shown answer and its photo, or save it where the browser cannot share. */
export async function sharePicture(photo, { decision, facts }) {
  const texts = [
    [decision || by("answer-title").textContent, 58, COLOURS.ink],
    ...(decision ? [[by("answer-title").textContent, 34, COLOURS.ink]]
      : by("lead").hidden ? [] : [[by("lead").textContent, 34, COLOURS.ink]]),
    [by("odds").textContent, 32, COLOURS.quiet],
    ...(facts ? [[facts, 32, COLOURS.quiet]] : []),
  ];
  const canvas = draw(await createImageBitmap(photo).catch(() => null), texts);
  const picture = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9));
  const file = new File([picture], "florilege.jpg", { type: "image/jpeg" });
  if (!navigator.canShare?.({ files: [file] })) return save(file, file.name);
  await navigator.share({ files: [file], title: texts[0][0] }).catch(() => null); // changed their mind
}

function draw(photo, texts) {
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  const top = photo ? PHOTO : 0;
  const lines = texts.flatMap(([text, size, colour]) => {
    context.font = `${size}px ${SERIF}`;
    const rows = wrapped(context, text, WIDTH - 2 * MARGIN);
    return rows.map((line, row) => ({ line, size, colour, gap: row === 0 ? 0.65 * size : 0 }));
  });
  const height = lines.reduce((sum, { size, gap }) => sum + 1.3 * size + gap, 0);
  [canvas.width, canvas.height] = [WIDTH, Math.ceil(top + MARGIN + height + 2 * MARGIN)];
  context.fillStyle = COLOURS.paper;
  context.fillRect(0, 0, canvas.width, canvas.height);
  if (photo) cover(context, photo, WIDTH, PHOTO);
  let at = top + MARGIN / 2;
  for (const { line, size, colour, gap } of lines) {
    at += 1.3 * size + gap;
    [context.font, context.fillStyle] = [`${size}px ${SERIF}`, colour];
    context.fillText(line, MARGIN, at);
  }
  [context.font, context.fillStyle] = [`30px ${SERIF}`, COLOURS.leaf];
  context.fillText(`Florilege · ${words.tagline}`, MARGIN, canvas.height - MARGIN / 1.5);
  return canvas;
}

/** The middle of a photo, which fills the top. */
function cover(context, photo, width, height) {
  const scale = Math.max(width / photo.width, height / photo.height);
  const [across, down] = [width / scale, height / scale];
  context.drawImage(photo, (photo.width - across) / 2, (photo.height - down) / 2, across, down, 0, 0, width, height);
}

function wrapped(context, text, width) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (context.measureText(longer).width <= width || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}
