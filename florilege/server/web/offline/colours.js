// Lets the browser convert colours: it reads the profile of a PNG.

const SIGNATURE = [0x89, 0x50, 0x4e, 0x47, 13, 10, 26, 10];
const NAME_AND_METHOD = [0x70, 0, 0]; // of a profile, and how it is compressed
const TRUE_COLOUR = [8, 2]; // bits, and the kind of colours

/**
 * The parts of a PNG file of a square with a profile; null if there is none of RGB.
 *
 * A profile has its `content`, or the `chunk` of another PNG.
 */
export async function pngWithProfile(square, side, profile) {
  if (!profile || typeof CompressionStream !== "function") return null;
  if (profile.content && String.fromCharCode(...profile.content.subarray(16, 20)) !== "RGB ") return null;
  const width = 3 * side;
  const rows = new Uint8Array(side * (1 + width)); // each begins with the number of its filter
  for (let y = 0; y < side; y += 1) rows.set(square.subarray(y * width, (y + 1) * width), y * (1 + width) + 1);
  const size = new DataView(new ArrayBuffer(13));
  size.setUint32(0, side);
  size.setUint32(4, side);
  const header = new Uint8Array(size.buffer);
  header.set(TRUE_COLOUR, 8);
  const colours = profile.chunk ?? chunk("iCCP", [...NAME_AND_METHOD, ...(await deflated(profile.content))]);
  return [
    new Uint8Array(SIGNATURE), chunk("IHDR", header), colours, chunk("IDAT", await deflated(rows)), chunk("IEND", []),
  ];
}

async function deflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function chunk(name, content) {
  const whole = new Uint8Array(12 + content.length);
  const view = new DataView(whole.buffer);
  view.setUint32(0, content.length);
  whole.set(Array.from(name, (letter) => letter.charCodeAt(0)), 4);
  whole.set(content, 8);
  view.setUint32(8 + content.length, checksum(whole.subarray(4, 8 + content.length)));
  return whole;
}

/** The cyclic redundancy check of PNG. */
function checksum(bytes) {
  let rest = 0xffffffff;
  for (const byte of bytes) {
    rest ^= byte;
    for (let bit = 0; bit < 8; bit += 1) rest = (rest >>> 1) ^ (rest & 1 ? 0xedb88320 : 0);
  }
  return (rest ^ 0xffffffff) >>> 0;
}
