// From the bytes of a photo to the input of the network, as the server's decoder does it.
import { pngWithProfile } from "./colours.js";
import { decodeShrunk } from "./jpeg.js";
import { reduce, resize } from "./resizing.js";

const STRIP_PIXELS = 1 << 21; // read from the canvas at once: phones limit its area
const EXIF = [0x45, 0x78, 0x69, 0x66, 0, 0];
const ICC = Array.from("ICC_PROFILE\0", (letter) => letter.charCodeAt(0));
const SHORT = 3; // a type of EXIF
const FRAMES = new Set([0xc0, 0xc1, 0xc2, 0xc3, 0xc5, 0xc6, 0xc7, 0xc9, 0xca, 0xcb, 0xcd, 0xce, 0xcf]);

/**
 * The input of the network, RGB bytes of a square, from an encoded photo.
 *
 * `preprocess` is the content of preprocess.json. Throws a problem if the photo cannot be used.
 */
export async function load(photo, preprocess, maxPixels) {
  const { image_size: side, crop_fraction: share, resample, reducing_gap: gap } = preprocess;
  // The server's arithmetic, rounding included: another size here would shrink the photo by another
  // factor.
  const least = Math.ceil(gap * roundHalfEven(side / share));
  const bytes = new Uint8Array(await photo.arrayBuffer().catch(() => { throw { code: "unreadable_file" }; }));
  const header = readHeader(bytes);
  checkPixels(header.width * header.height, maxPixels);
  const { picture, width, height } = await shrunk(header, bytes, least, maxPixels);
  const crop = Math.min(width, height) * share;
  const [left, top] = [(width - crop) / 2, (height - crop) / 2];
  const square = resize(picture, [left, top, left + crop, top + crop], side, resample);
  return orient(await toSrgb(square, side, header.profile), side, header.orientation);
}

/** A square in sRGB; the browser converts it from the colours that a profile describes. */
async function toSrgb(square, side, profile) {
  const png = await pngWithProfile(square, side, profile);
  const bitmap = png && (await decode(png, "png", "default").catch(() => null));
  if (!bitmap) return square;
  try {
    return readPixels(bitmap, 1).pixels;
  } finally {
    bitmap.close();
  }
}

/**
 * The picture with a short side of at least `least`, shrunk by whole factors, and its exact size.
 *
 * As on the server, a JPEG is shrunk by 2, 4 or 8 while it is decoded.
 */
async function shrunk(header, bytes, least, maxPixels) {
  const early = header.kind === "jpeg" ? earlyFactor(header, least) : 1;
  let whole = header.kind === "jpeg" ? decodeShrunk(bytes, early) : null;
  let [width, height] = [header.width / early, header.height / early];
  if (!whole) {
    const bitmap = await decode(header.content ?? [bytes], header.kind, header.conversion ?? "none");
    try {
      checkPixels(bitmap.width * bitmap.height, maxPixels);
      [width, height] = [bitmap.width / early, bitmap.height / early];
      whole = readPixels(bitmap, early);
    } finally {
      bitmap.close();
    }
  }
  const late = Math.max(1, Math.floor(Math.min(whole.width, whole.height) / least));
  return { picture: reduce(whole, late), width: width / late, height: height / late };
}

function earlyFactor({ width, height }, least) {
  const possible = Math.floor(Math.min(width, height) / least);
  return [8, 4, 2].find((factor) => factor <= possible) ?? 1;
}

function roundHalfEven(value) { // Python's round
  const floor = Math.floor(value);
  const half = value - floor === 0.5;
  return half ? floor + (floor % 2) : Math.round(value);
}

function checkPixels(pixels, limit) {
  if (pixels > limit) throw { code: "image_too_large", limit };
}

async function decode(content, kind, conversion) {
  try {
    return await createImageBitmap(new Blob(content, { type: `image/${kind}` }), {
      colorSpaceConversion: conversion, premultiplyAlpha: "none", imageOrientation: "from-image",
    });
  } catch {
    // Few browsers read HEIC, and old ones no AVIF.
    throw { code: kind === "heic" || kind === "avif" ? "unreadable_here" : "image_unreadable" };
  }
}

/** RGB on white, reduced by a factor, read in strips. */
function readPixels(bitmap, factor) {
  const { width, height } = bitmap;
  const columns = Math.ceil(width / factor);
  const pixels = new Uint8Array(columns * Math.ceil(height / factor) * 3);
  const rows = factor * Math.max(1, Math.floor(STRIP_PIXELS / (width * factor)));
  const canvas = new OffscreenCanvas(width, Math.min(rows, height));
  const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  context.fillStyle = "white";
  for (let top = 0; top < height; top += rows) {
    const count = Math.min(rows, height - top);
    context.fillRect(0, 0, width, count);
    context.drawImage(bitmap, 0, top, width, count, 0, 0, width, count);
    const strip = withoutAlpha(context.getImageData(0, 0, width, count).data);
    pixels.set(reduce({ pixels: strip, width, height: count }, factor).pixels, (top / factor) * columns * 3);
  }
  return { pixels, width: columns, height: Math.ceil(height / factor) };
}

function withoutAlpha(rgba) {
  const rgb = new Uint8Array((rgba.length / 4) * 3);
  for (let from = 0, to = 0; from < rgba.length; from += 4, to += 3) {
    rgb[to] = rgba[from];
    rgb[to + 1] = rgba[from + 1];
    rgb[to + 2] = rgba[from + 2];
  }
  return rgb;
}

/** A square turned upright by its EXIF orientation. */
function orient(square, side, orientation) {
  const end = side - 1;
  const source = {
    2: (y, x) => [y, end - x], 3: (y, x) => [end - y, end - x], 4: (y, x) => [end - y, x],
    5: (y, x) => [x, y], 6: (y, x) => [end - x, y], 7: (y, x) => [end - x, end - y], 8: (y, x) => [x, end - y],
  }[orientation];
  if (!source) return square;
  const upright = new Uint8Array(square.length);
  for (let y = 0; y < side; y += 1) {
    for (let x = 0; x < side; x += 1) {
      const [row, column] = source(y, x);
      const from = (row * side + column) * 3;
      upright.set(square.subarray(from, from + 3), (y * side + x) * 3);
    }
  }
  return upright;
}

// Headers ------------------------------------------------------------------------------------------

/** Kind, size and orientation of a photo; the size is 0 if only the decoder can tell. */
function readHeader(bytes) {
  const view = new DataView(bytes.buffer);
  const text = (at, length) => String.fromCharCode(...bytes.subarray(at, at + length));
  try {
    if (text(0, 3) === "\xff\xd8\xff") return readJpeg(bytes, view);
    if (text(1, 3) === "PNG") return readPng(bytes, view, text);
    if (text(0, 4) === "RIFF" && text(8, 4) === "WEBP") return readWebp(bytes, view, text);
  } catch (error) {
    throw error instanceof RangeError ? { code: "image_unreadable" } : error; // cut short
  }
  const brand = text(4, 4) === "ftyp" ? text(8, 4) : "";
  if (brand.startsWith("avi")) return { kind: "avif", width: 0, height: 0, conversion: "default" };
  if (/^(he[iv]|mif1|msf1)/.test(brand)) return { kind: "heic", width: 0, height: 0, conversion: "default" };
  throw { code: "unsupported_image_type" };
}

function readPng(bytes, view, text) {
  const header = { kind: "png", width: view.getUint32(16), height: view.getUint32(20) };
  for (let at = 8, end; at + 8 <= bytes.length; at = end) {
    end = at + 12 + view.getUint32(at);
    const [name, part] = [text(at + 4, 4), bytes.subarray(at, end)];
    if (name === "cICP") { // comes before a profile
      header.profile = isWide(part[8], part[9]) ? { chunk: part } : null;
    } else if (name === "iCCP" && header.profile === undefined) {
      header.profile = { chunk: part };
    } else if (name === "eXIf") {
      header.orientation = orientationOf(part.subarray(8));
      header.content = [bytes.subarray(0, at), bytes.subarray(end)];
    }
  }
  return header;
}

/** Whether codes of ITU-T H.273 name more colours than sRGB, with a curve like its own. */
function isWide(primaries, transfer) {
  return [9, 12].includes(primaries) && [1, 2, 6, 13, 14, 15].includes(transfer);
}

function readWebp(bytes, view, text) {
  const header = { kind: "webp", ...webpSize(view, text(12, 4)) };
  for (let at = 12, end; at + 8 <= bytes.length; at = end + (end % 2)) {
    const start = at + 8;
    end = start + view.getUint32(at + 4, true);
    if (text(at, 4) === "ICCP") header.profile = { content: bytes.subarray(start, end) };
    if (text(at, 4) === "EXIF") { // some browsers turn the picture, others do not: now none does
      header.orientation = orientationOf(bytes.subarray(start, end));
      header.content = [bytes.subarray(0, at), "SKIP", bytes.subarray(at + 4)];
    }
  }
  return header;
}

function webpSize(view, chunk) {
  const low24 = (at) => view.getUint16(at, true) | (view.getUint8(at + 2) << 16);
  if (chunk === "VP8X") return { width: low24(24) + 1, height: low24(27) + 1 };
  if (chunk === "VP8L") {
    const bits = view.getUint32(21, true);
    return { width: (bits & 0x3fff) + 1, height: ((bits >> 14) & 0x3fff) + 1 };
  }
  return { width: view.getUint16(26, true) & 0x3fff, height: view.getUint16(28, true) & 0x3fff };
}

/** A JPEG without its metadata, so that no browser turns it or converts its colours. */
function readJpeg(bytes, view) {
  const header = { kind: "jpeg", width: 0, height: 0, orientation: null, profile: null, content: [bytes.subarray(0, 2)] };
  let at = 2;
  while (view.getUint8(at) !== 0xff || view.getUint8(at + 1) !== 0xda) { // until the first scan
    const marker = view.getUint8(at + 1);
    if (bytes[at] !== 0xff || marker === 0xff || marker === 0 || marker === 1 || (marker >= 0xd0 && marker <= 0xd8)) {
      at += bytes[at] === 0xff && marker !== 0xff ? 2 : 1; // fill bytes and markers without a length
      continue;
    }
    const end = at + 2 + view.getUint16(at + 2);
    if (FRAMES.has(marker)) [header.height, header.width] = [view.getUint16(at + 5), view.getUint16(at + 7)];
    if (marker === 0xe1 && EXIF.every((byte, place) => bytes[at + 4 + place] === byte)) {
      header.orientation ??= orientationOf(bytes.subarray(at + 4, end));
    }
    if (marker === 0xe2 && ICC.every((byte, place) => bytes[at + 4 + place] === byte)) {
      header.profile ??= { content: bytes.subarray(at + 18, end) }; // larger ones, of several parts, are of scanners
    }
    const dropped = (marker > 0xe0 && marker <= 0xef && marker !== 0xee) || marker === 0xfe;
    if (!dropped) header.content.push(bytes.subarray(at, end));
    at = end;
  }
  header.content.push(bytes.subarray(at));
  return header;
}

/** The orientation in an EXIF block, after EXIF's own beginning or not; 1, upright, if it is missing or damaged. */
function orientationOf(exif) {
  const tiff = exif.subarray(EXIF.every((byte, place) => exif[place] === byte) ? EXIF.length : 0);
  try {
    const view = new DataView(tiff.buffer, tiff.byteOffset, tiff.length);
    const little = view.getUint16(0) === 0x4949;
    const start = view.getUint32(4, little);
    for (let entry = 0; entry < view.getUint16(start, little); entry += 1) {
      const at = start + 2 + 12 * entry;
      if (view.getUint16(at, little) !== 0x0112) continue;
      const isNumber = view.getUint16(at + 2, little) === SHORT && view.getUint32(at + 4, little) === 1;
      return isNumber ? view.getUint16(at + 8, little) : 1;
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
  }
  return 1;
}
