// Photos are made smaller before they are sent: upright, and without the camera's data.

const LONGEST = 1600; // pixels; the network sees fewer
const METADATA = ["Exif\0", "ns.adobe.com/xap", "eXIf", "tEXt", "iTXt", "zTXt", "EXIF", "XMP "];

/** A smaller copy of a photo; itself where it is small and silent, or cannot be read here. */
export async function shrink(file, longest = LONGEST) {
  const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" }).catch(() => null);
  if (!bitmap) return file;
  try {
    const scale = Math.min(1, longest / Math.max(bitmap.width, bitmap.height));
    if (scale === 1 && !(await hasMetadata(file))) return file;
    return (await copy(bitmap, scale, file.name)) ?? file;
  } finally {
    bitmap.close();
  }
}

async function hasMetadata(file) {
  const text = new TextDecoder("latin1").decode(await file.arrayBuffer());
  return METADATA.some((mark) => text.includes(mark));
}

async function copy(bitmap, scale, name) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(scale * bitmap.width));
  canvas.height = Math.max(1, Math.round(scale * bitmap.height));
  const context = canvas.getContext("2d", { alpha: false });
  if (!context || !isFaithful(context)) return null;
  context.fillStyle = "white"; // behind transparent pictures
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
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
