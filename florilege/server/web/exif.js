// What a camera wrote into a photo: when and where it was taken. EXIF in JPEG, HEIC, PNG and WebP.

// What precedes the TIFF header in JPEG, WebP, PNG and HEIC, in this order. To search for it takes
// no parser of four formats.
const START = /(?:Exif\0\0|EXIF[^]{4}|eXIf|\0{4})(?=II\*\0|MM\0\*)/;
const [ORIENTATION, EXIF, GPS, TAKEN] = [0x0112, 0x8769, 0x8825, 0x9003];
const [NORTH_SOUTH, LATITUDE, EAST_WEST, LONGITUDE] = [1, 2, 3, 4];
const LITTLE_ENDIAN = 0x4949;

/** Day, as 2026-06-30, month, 1 to 12, position and orientation of a photo, each null if it does not tell it. */
export async function cameraData(photo) {
  const unknown = { date: null, month: null, position: null, orientation: null };
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
  const part = (tag) => attempt(() => directory(long(main.get(tag).at)), new Map());
  const text = ({ count, at }) => Array.from({ length: count }, (_, place) =>
    String.fromCharCode(view.getUint8((count > 4 ? long(at) : at) + place))).join("");
  const numbers = ({ count, at }) => Array.from({ length: Math.min(count, 3) }, (_, place) =>
    long(long(at) + 8 * place) / long(long(at) + 8 * place + 4));
  const [exif, gps] = [part(EXIF), part(GPS)];
  const degrees = (value, reference, [positive, negative]) => { // NaN without a hemisphere: it would be a guess
    const sign = { [positive]: 1, [negative]: -1 }[text(gps.get(reference)).trim().slice(0, 1).toUpperCase()];
    const [whole, ...rest] = numbers(gps.get(value));
    const [minutes, seconds] = [0, 1].map((place) => (Number.isFinite(rest[place]) ? rest[place] : 0)); // 0/0: unused
    return minutes > 60 || seconds > 60 ? NaN : sign * (whole + minutes / 60 + seconds / 3600);
  };
  return {
    orientation: attempt(() => short(main.get(ORIENTATION).at), null),
    ...timeOf(attempt(() => text(exif.get(TAKEN)), "")),
    position: attempt(() =>
      positionOf(degrees(LATITUDE, NORTH_SOUTH, "NS"), degrees(LONGITUDE, EAST_WEST, "EW")), null),
  };
}

/** What a function returns, or something else where its part of the data is missing or damaged. */
function attempt(readPart, otherwise) {
  try {
    return readPart();
  } catch {
    return otherwise;
  }
}

/** The day and month of a time such as 2026:06:30 10:11:12; null if the clock was never set. */
function timeOf(time) {
  const [, year, month, day] = /^\s*([12]\d{3})[:./ -]([ \d]\d)(?:[:./ -]([ \d]\d))?/.exec(time)?.map(Number) ?? [];
  if (!(month >= 1 && month <= 12)) return { date: null, month: null };
  const start = new Date(Date.UTC(year, month - 1, day));
  return { date: start.getUTCDate() === day ? start.toISOString().slice(0, 10) : null, month };
}

/** A position, unless it is none: phones without a fix write zeros. */
export function positionOf(latitude, longitude) {
  const possible = Math.abs(latitude) <= 90 && Math.abs(longitude) <= 180;
  return possible && (latitude !== 0 || longitude !== 0) ? { latitude, longitude } : null;
}
