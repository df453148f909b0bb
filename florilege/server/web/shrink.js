// Photos are made smaller before they are sent: upright, and without the camera's data.
import { cameraData } from "./exif.js";

const LONGEST = 1600; // pixels; the network sees fewer
const METADATA = ["Exif\0", "ns.adobe.com/xap", "eXIf", "tEXt", "iTXt", "zTXt", "EXIF", "XMP "];
const WEBP_EXIF = /^RIFF[^]{4}WEBP[^]*EXIF(?=[^]{4}(?:Exif\0\0)?(?:II|MM))/;
// By orientation: the matrix of a canvas, the last two in widths and heights.
const TURNS = {
  2: [-1, 0, 0, 1, 1, 0], 3: [-1, 0, 0, -1, 1, 1], 4: [1, 0, 0, -1, 0, 1],
  5: [0, 1, 1, 0, 0, 0], 6: [0, 1, -1, 0, 1, 0], 7: [0, -1, -1, 0, 1, 1], 8: [0, -1, 1, 0, 0, 1],
};

/** A smaller copy of a photo; itself where it is small and silent, or cannot be read here. */
export async function shrink(file, longest = LONGEST) {
  const [photo, turn] = await unturned(file).catch(() => [file]);
  const bitmap = await createImageBitmap(photo, { imageOrientation: "from-image" }).catch(() => null);
  if (!bitmap) return file;
  try {
    const scale = Math.min(1, longest / Math.max(bitmap.width, bitmap.height));
    if (scale === 1 && !(await hasMetadata(file))) return file;
    return (await copy(bitmap, scale, turn, file.name)) ?? file;
  } finally {
    bitmap.close();
  }
}

/** A WebP without its EXIF, as some browsers turn it and others do not, and its turn; others as they are. */
async function unturned(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const exif = WEBP_EXIF.exec(new TextDecoder("latin1").decode(bytes));
  if (!exif) return [file];
  bytes.set([0, 0, 0, 0], exif[0].length - 4);
  return [new Blob([bytes], { type: "image/webp" }), TURNS[(await cameraData(file)).orientation]];
}

async function hasMetadata(file) {
  const text = new TextDecoder("latin1").decode(await file.arrayBuffer());
  return METADATA.some((mark) => text.includes(mark));
}

async function copy(bitmap, scale, turn, name) {
  const canvas = document.createElement("canvas");
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(scale * side)));
  [canvas.width, canvas.height] = turn?.[0] === 0 ? [height, width] : [width, height];
  const context = canvas.getContext("2d", { alpha: false });
  if (!context || !isFaithful(context)) return null;
  context.fillStyle = "white"; // behind transparent pictures
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  if (turn) context.setTransform(...turn.slice(0, 4), turn[4] * canvas.width, turn[5] * canvas.height);
  context.drawImage(bitmap, 0, 0, width, height);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
  return blob && new File([blob], name.replace(/(\.\w+)?$/, ".jpg"), { type: "image/jpeg" });
}

/** Whether a canvas gives back what was drawn: browsers that hide their fingerprint add noise. */
function isFaithful(context) {
  context.fillStyle = "rgb(10 120 230)";
  context.fillRect(0, 0, 8, 8);
  const { data } = context.getImageData(0, 0, 8, 8);
  return data.every((value, index) => Math.abs(value - [10, 120, 230, 255][index % 4]) < 2);
}
