// What a camera wrote into a photo: when and where it was taken. EXIF in JPEG, HEIC, PNG and WebP.

// What precedes the TIFF header in JPEG, WebP, PNG and HEIC, in this order. To search for it takes
// no parser of four formats.
const START = /(?:Exif\0\0|EXIF[^]{4}|eXIf|\0{4})(?=II\*\0|MM\0\*)/;
const [EXIF, GPS, TAKEN] = [0x8769, 0x8825, 0x9003];
const [NORTH_SOUTH, LATITUDE, EAST_WEST, LONGITUDE] = [1, 2, 3, 4];
const LITTLE_ENDIAN = 0x4949;

/** The day, as 2026-06-30, the month, 1 to 12, and the position of a photo, each null if it does not tell it. */
export async function cameraData(photo) {
  const unknown = { date: null, month: null, position: null };
  try {
    const bytes = await photo.arrayBuffer();
    const start = START.exec(new TextDecoder("latin1").decode(bytes));
    return start ? read(new DataView(bytes, start.index + start[0].length)) : unknown;
  } catch {
    return unknown; // the file is gone, or its data are damaged
  }
}

function read(view) {
  const little = view.getUint16(0) === LITTLE_ENDIAN;
  const short = (at) => view.getUint16(at, little);
  const long = (at) => view.getUint32(at, little);
  const directory = (at) => new Map(Array.from({ length: short(at) }, (_, row) => at + 2 + 12 * row)
    .map((entry) => [short(entry), { count: long(entry + 4), at: entry + 8 }]));
  const main = directory(long(4));
  const part = (tag) => (main.has(tag) ? directory(long(main.get(tag).at)) : new Map());
  const text = ({ count, at }) => Array.from({ length: count }, (_, place) =>
    String.fromCharCode(view.getUint8((count > 4 ? long(at) : at) + place))).join("");
  const degrees = ({ at }) => [0, 1, 2].reduce((sum, place) =>
    sum + long(long(at) + 8 * place) / long(long(at) + 8 * place + 4) / 60 ** place, 0);
  const [exif, gps] = [part(EXIF), part(GPS)];
  const signed = (value, reference, negative) =>
    degrees(gps.get(value)) * (text(gps.get(reference))[0] === negative ? -1 : 1);
  const located = [NORTH_SOUTH, LATITUDE, EAST_WEST, LONGITUDE].every((tag) => gps.has(tag));
  return {
    ...timeOf(exif.has(TAKEN) ? text(exif.get(TAKEN)) : ""),
    position: located ? positionOf(signed(LATITUDE, NORTH_SOUTH, "S"), signed(LONGITUDE, EAST_WEST, "W")) : null,
  };
}

/** The day and month of a time such as 2026:06:30 10:11:12; null if the clock was never set. */
function timeOf(time) {
  const [, year, month, day] = /^\s*([12]\d{3})[:./ -](\d\d)(?:[:./ -](\d\d))?/.exec(time) ?? [];
  if (!(month >= 1 && month <= 12)) return { date: null, month: null };
  return { date: day >= 1 && day <= 31 ? `${year}-${month}-${day}` : null, month: Number(month) };
}

/** A position, unless it is none: phones without a fix write zeros. */
export function positionOf(latitude, longitude) {
  const possible = Math.abs(latitude) <= 90 && Math.abs(longitude) <= 180;
  return possible && (latitude !== 0 || longitude !== 0) ? { latitude, longitude } : null;
}
