// Decode a JPEG digit for digit as libjpeg-turbo does, also at a half, a quarter or an eighth of its size.
//
// Decoders of browsers give the whole picture alone. Its means, rounded twice, are not the pixels that
// the server's decoder gives: with them, one large photo in twenty got another set.

const ZIGZAG = new Uint8Array([
  0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
  35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
]);
const RGB_IDS = "82,71,66";

/**
 * RGB pixels of a JPEG shrunk by `factor`: 1, 2, 4 or 8; null for a rare kind that is not read here.
 *
 * Throws a problem if the picture is damaged or cut short.
 */
export function decodeShrunk(bytes, factor) {
  const jpeg = { tables: [], huffman: {}, restart: 0, components: null, adobe: null, done: false };
  try {
    for (let at = 2; at < bytes.length && !jpeg.done;) at = readSegment(jpeg, bytes, at);
  } catch (error) {
    if (error instanceof RangeError || error instanceof TypeError) throw { code: "image_unreadable" };
    if (error === UNREAD) return null;
    throw error;
  }
  if (!jpeg.components) throw { code: "image_unreadable" };
  return picture(jpeg, factor);
}

const UNREAD = Symbol("a kind of JPEG that is not read here");

function readSegment(jpeg, bytes, at) {
  if (bytes[at] !== 0xff || bytes[at + 1] === 0xff) return at + 1;
  const marker = bytes[at + 1];
  if (marker === 0xd9) jpeg.done = true;
  if (marker < 0xc0 || (marker >= 0xd0 && marker <= 0xd9)) return at + 2;
  const end = at + 2 + ((bytes[at + 2] << 8) | bytes[at + 3]);
  const content = bytes.subarray(at + 4, end);
  if (marker === 0xda) return readScan(jpeg, content, bytes, end);
  if (marker === 0xdb) readQuantisation(jpeg, content);
  else if (marker === 0xc4) readHuffman(jpeg, content);
  else if (marker === 0xdd) jpeg.restart = (content[0] << 8) | content[1];
  else if (marker === 0xee) jpeg.adobe = content[11];
  else if (marker >= 0xc0 && marker <= 0xcf) readFrame(jpeg, content, marker);
  return end;
}

function readQuantisation(jpeg, content) {
  for (let at = 0; at < content.length;) {
    const [wide, id] = [content[at] >> 4, content[at] & 15];
    const table = new Int32Array(64);
    at += 1;
    for (let place = 0; place < 64; place += 1, at += wide ? 2 : 1) {
      table[ZIGZAG[place]] = wide ? (content[at] << 8) | content[at + 1] : content[at];
    }
    jpeg.tables[id] = table;
  }
}

/** Tables by the next 16 bits: the value, and above it the length of its code. */
function readHuffman(jpeg, content) {
  for (let at = 0; at < content.length;) {
    const name = content[at];
    const counts = content.subarray(at + 1, at + 17);
    const table = new Uint16Array(1 << 16);
    let [code, value] = [0, at + 17];
    counts.forEach((count, place) => {
      for (let one = 0; one < count; one += 1, value += 1) {
        table.fill(((place + 1) << 8) | content[value], code, code + (1 << (15 - place)));
        code += 1 << (15 - place);
      }
    });
    jpeg.huffman[name] = table;
    at = value;
  }
}

function readFrame(jpeg, content, marker) {
  const count = content[5];
  if (marker > 0xc2 || content[0] !== 8 || (count !== 1 && count !== 3)) throw UNREAD;
  jpeg.progressive = marker === 0xc2;
  [jpeg.height, jpeg.width] = [(content[1] << 8) | content[2], (content[3] << 8) | content[4]];
  jpeg.components = Array.from({ length: count }, (_, place) => {
    const [id, factors, table] = content.subarray(6 + 3 * place, 9 + 3 * place);
    return { id, h: factors >> 4, v: factors & 15, table, dc: 0 };
  });
  if (count === 3 && (jpeg.adobe === 0 || String(jpeg.components.map((one) => one.id)) === RGB_IDS)) throw UNREAD;
  if (count === 1) Object.assign(jpeg.components[0], { h: 1, v: 1 });
  jpeg.h = Math.max(...jpeg.components.map((one) => one.h));
  jpeg.v = Math.max(...jpeg.components.map((one) => one.v));
  jpeg.columns = Math.ceil(jpeg.width / (8 * jpeg.h));
  jpeg.rows = Math.ceil(jpeg.height / (8 * jpeg.v));
  for (const one of jpeg.components) {
    one.across = jpeg.columns * one.h; // blocks, with those of the last unit that lie outside
    one.width = Math.ceil(Math.ceil((jpeg.width * one.h) / jpeg.h) / 8);
    one.height = Math.ceil(Math.ceil((jpeg.height * one.v) / jpeg.v) / 8);
    one.blocks = new Int16Array(64 * one.across * jpeg.rows * one.v);
  }
}

// Scans --------------------------------------------------------------------------------------------

function readScan(jpeg, content, bytes, start) {
  const count = content[0];
  const parts = Array.from({ length: count }, (_, place) => {
    const component = jpeg.components.find((one) => one.id === content[1 + 2 * place]);
    const tables = content[2 + 2 * place];
    component.huffmanDc = jpeg.huffman[tables >> 4];
    component.huffmanAc = jpeg.huffman[0x10 | (tables & 15)];
    return component;
  });
  const [first, last, bits] = content.subarray(1 + 2 * count, 4 + 2 * count);
  const scan = { first, last, high: bits >> 4, low: bits & 15, run: 0 };
  const reader = new BitReader(bytes, start);
  const read = !jpeg.progressive ? readBlock : first === 0
    ? (scan.high ? refineDc : readDc) : (scan.high ? refineAc : readAc);
  const single = count === 1 ? parts[0] : null;
  const units = single ? single.width * single.height : jpeg.columns * jpeg.rows;
  for (let unit = 0; unit < units; unit += 1) {
    if (jpeg.restart && unit % jpeg.restart === 0) restart(reader, parts, scan, unit > 0);
    else if (unit === 0) restart(reader, parts, scan, false);
    if (single) {
      const block = Math.floor(unit / single.width) * single.across + (unit % single.width);
      read(reader, single, single.blocks, 64 * block, scan);
    } else readUnit(jpeg, reader, parts, unit, read, scan);
  }
  reader.check();
  return reader.at;
}

function readUnit(jpeg, reader, parts, unit, read, scan) {
  const [row, column] = [Math.floor(unit / jpeg.columns), unit % jpeg.columns];
  for (const one of parts) {
    for (let y = 0; y < one.v; y += 1) {
      for (let x = 0; x < one.h; x += 1) {
        const block = (row * one.v + y) * one.across + column * one.h + x;
        read(reader, one, one.blocks, 64 * block, scan);
      }
    }
  }
}

function restart(reader, parts, scan, skip) {
  if (skip) reader.skipMarker();
  parts.forEach((one) => { one.dc = 0; });
  scan.run = 0;
}

class BitReader {
  constructor(bytes, at) {
    [this.bytes, this.at] = [bytes, at];
    [this.bits, this.count, this.padding] = [0, 0, 0];
  }

  need(count) {
    while (this.count < count) {
      let byte = this.bytes[this.at];
      if (byte === undefined || (byte === 0xff && this.bytes[this.at + 1] !== 0)) {
        byte = 0; // a marker, or the end of the file
        this.padding += 8;
      } else this.at += byte === 0xff ? 2 : 1;
      this.bits = (this.bits << 8) | byte;
      this.count += 8;
    }
  }

  take(count) {
    if (count === 0) return 0;
    this.need(count);
    this.count -= count;
    return (this.bits >>> this.count) & ((1 << count) - 1);
  }

  symbol(table) {
    this.need(16);
    const entry = table[(this.bits >>> (this.count - 16)) & 0xffff];
    if (entry === 0) throw { code: "image_unreadable" };
    this.count -= entry >> 8;
    return entry & 255;
  }

  /** A number of so many bits with its sign. */
  number(count) {
    const value = this.take(count);
    return count && value < 1 << (count - 1) ? value - (1 << count) + 1 : value;
  }

  skipMarker() {
    this.check();
    while (this.at < this.bytes.length && !(this.bytes[this.at] === 0xff && (this.bytes[this.at + 1] & 0xf8) === 0xd0)) this.at += 1;
    this.at += 2;
    [this.count, this.padding] = [0, 0];
  }

  /** Throw if bits after the end were used. */
  check() {
    if (this.padding > this.count) throw { code: "image_unreadable" };
  }
}

function readBlock(reader, one, blocks, at) {
  one.dc += reader.number(reader.symbol(one.huffmanDc));
  blocks[at] = one.dc;
  for (let place = 1; place < 64; place += 1) {
    const symbol = reader.symbol(one.huffmanAc);
    const size = symbol & 15;
    if (size === 0 && symbol < 0xf0) return;
    place += symbol >> 4;
    if (size) blocks[at + ZIGZAG[place]] = reader.number(size);
  }
}

function readDc(reader, one, blocks, at, { low }) {
  one.dc += reader.number(reader.symbol(one.huffmanDc));
  blocks[at] = one.dc << low;
}

function refineDc(reader, one, blocks, at, { low }) {
  blocks[at] |= reader.take(1) << low;
}

function readAc(reader, one, blocks, at, scan) {
  if (scan.run > 0) {
    scan.run -= 1;
    return;
  }
  for (let place = scan.first; place <= scan.last; place += 1) {
    const symbol = reader.symbol(one.huffmanAc);
    const [skip, size] = [symbol >> 4, symbol & 15];
    if (size === 0 && skip < 15) {
      scan.run = (1 << skip) + reader.take(skip) - 1;
      return;
    }
    place += skip;
    if (size) blocks[at + ZIGZAG[place]] = reader.number(size) << scan.low;
  }
}

function refineAc(reader, one, blocks, at, scan) {
  const bit = 1 << scan.low;
  const refine = (place) => {
    const value = blocks[place];
    if (reader.take(1) && (value & bit) === 0) blocks[place] = value < 0 ? value - bit : value + bit;
  };
  let place = scan.first;
  for (; scan.run === 0 && place <= scan.last; place += 1) {
    const symbol = reader.symbol(one.huffmanAc);
    let skip = symbol >> 4;
    if ((symbol & 15) === 0 && skip < 15) {
      scan.run = (1 << skip) + reader.take(skip);
      break;
    }
    const fresh = symbol & 15 ? (reader.take(1) ? bit : -bit) : 0;
    for (; place <= scan.last; place += 1) {
      const spot = at + ZIGZAG[place];
      if (blocks[spot] !== 0) refine(spot);
      else if (skip === 0) break;
      else skip -= 1;
    }
    if (fresh && place <= scan.last) blocks[at + ZIGZAG[place]] = fresh;
  }
  if (scan.run === 0) return;
  for (; place <= scan.last; place += 1) if (blocks[at + ZIGZAG[place]] !== 0) refine(at + ZIGZAG[place]);
  scan.run -= 1;
}

// Pixels -------------------------------------------------------------------------------------------

function picture(jpeg, factor) {
  const [width, height] = [Math.ceil(jpeg.width / factor), Math.ceil(jpeg.height / factor)];
  const planes = [];
  for (const one of jpeg.components) {
    const plane = shrunkPlane(jpeg, one, 8 / factor);
    if (!plane) return null;
    planes.push(plane);
  }
  const pixels = new Uint8Array(3 * width * height);
  const [luma, blue, red] = planes;
  for (let y = 0, to = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1, to += 3) {
      const grey = luma.values[y * luma.width + x];
      if (!blue) {
        pixels.fill(grey, to, to + 3);
        continue;
      }
      const cb = blue.values[y * blue.width + x] - 128;
      const cr = red.values[y * red.width + x] - 128;
      // 1.402, 0.344136, 0.714136 and 1.772 with 16 bits after the point, as in libjpeg's
      // jdcolor.c.
      pixels[to] = byte(grey + ((91881 * cr + 32768) >> 16));
      pixels[to + 1] = byte(grey + ((-22554 * cb - 46802 * cr + 32768) >> 16));
      pixels[to + 2] = byte(grey + ((116130 * cb + 32768) >> 16));
    }
  }
  return { pixels, width, height };
}

const byte = (value) => (value < 0 ? 0 : value > 255 ? 255 : value);

/** The samples of a component; each block gives `least` x `least` pixels. */
function shrunkPlane(jpeg, one, least) {
  let size = least;
  const fits = (factor, most) => (most * least) % (factor * size * 2) === 0;
  while (size < 8 && fits(one.h, jpeg.h) && fits(one.v, jpeg.v)) size *= 2;
  const [across, down] = [(jpeg.h * least) / (one.h * size), (jpeg.v * least) / (one.v * size)];
  if (![1, 2].includes(across) || ![1, 2].includes(down)) return null;
  const width = one.across * size;
  const values = new Uint8Array(width * ((one.blocks.length / 64 / one.across) * size));
  const inverse = INVERSE[size];
  for (let block = 0; block < one.blocks.length / 64; block += 1) {
    const at = Math.floor(block / one.across) * size * width + (block % one.across) * size;
    inverse(one.blocks, 64 * block, jpeg.tables[one.table], values, at, width);
  }
  if (across * down === 1) return { values, width };
  const samples = Math.ceil((jpeg.width * one.h * size) / (jpeg.h * 8));
  const lines = Math.ceil((jpeg.height * one.v * size) / (jpeg.v * 8));
  const fancy = least > 1 && (samples > 2 || across === 1);
  return enlarged({ values, width }, { samples, lines, across, down, fancy });
}

/** More columns and lines: repeated, or between neighbours as libjpeg's fancy upsampling. */
function enlarged({ values, width }, { samples, lines, across, down, fancy }) {
  const wide = new Uint8Array(across * down * values.length);
  const sums = new Int32Array(samples);
  for (let y = 0, to = 0; y < lines * down; y += 1, to += across * width) {
    const near = Math.floor(y / down);
    const far = Math.min(lines - 1, Math.max(0, near + (y % 2 ? 1 : -1)));
    for (let x = 0; x < samples; x += 1) {
      const value = values[near * width + x];
      sums[x] = fancy && down === 2 ? 3 * value + values[far * width + x] : value;
    }
    for (let x = 0; x < samples; x += 1) {
      const sum = sums[x];
      if (!fancy) wide.fill(sum, to + across * x, to + across * (x + 1));
      else if (across === 1) wide[to + x] = (sum + (y % 2 ? 2 : 1)) >> 2;
      else {
        const [before, after] = [sums[Math.max(0, x - 1)], sums[Math.min(samples - 1, x + 1)]];
        wide[to + 2 * x] = down === 1 ? (3 * sum + before + 1) >> 2 : (3 * sum + before + 8) >> 4;
        wide[to + 2 * x + 1] = down === 1 ? (3 * sum + after + 2) >> 2 : (3 * sum + after + 7) >> 4;
      }
    }
  }
  return { values: wide, width: across * width };
}

// Inverse transforms of libjpeg (jidctint.c, jidctred.c): constants have 13 bits after the point ---

const WORK = new Int32Array(64);
const sample = (sum, bits) => byte(((sum + (1 << (bits - 1))) >> bits) + 128);
const rounded = (sum, bits) => (sum + (1 << (bits - 1))) >> bits;

function inverse1(blocks, from, table, values, at) {
  values[at] = sample(blocks[from] * table[0], 3);
}

function inverse2(blocks, from, table, values, at, width) {
  const odd = (a, b, c, d) => -5906 * a + 6967 * b - 10426 * c + 29692 * d;
  const input = (place) => blocks[from + place] * table[place];
  // As in jidctred.c: the rows below do not read the other columns.
  for (const column of [0, 1, 3, 5, 7]) {
    const even = input(column) << 15;
    const sum = odd(input(column + 56), input(column + 40), input(column + 24), input(column + 8));
    WORK[column] = rounded(even + sum, 13);
    WORK[column + 8] = rounded(even - sum, 13);
  }
  for (let row = 0; row < 2; row += 1) {
    const work = 8 * row;
    const even = WORK[work] << 15;
    const sum = odd(WORK[work + 7], WORK[work + 5], WORK[work + 3], WORK[work + 1]);
    values[at + row * width] = sample(even + sum, 20);
    values[at + row * width + 1] = sample(even - sum, 20);
  }
}

function inverse4(blocks, from, table, values, at, width) {
  for (let column = 0; column < 8; column += 1) {
    // As in jidctred.c: the rows below do not read this column.
    if (column === 4) continue;
    const input = (row) => blocks[from + column + 8 * row] * table[column + 8 * row];
    four(input(0), input(1), input(2), input(3), input(5), input(6), input(7));
    for (let row = 0; row < 4; row += 1) WORK[column + 8 * row] = rounded(OUT[row], 12);
  }
  for (let row = 0; row < 4; row += 1) {
    const work = 8 * row;
    four(WORK[work], WORK[work + 1], WORK[work + 2], WORK[work + 3], WORK[work + 5], WORK[work + 6], WORK[work + 7]);
    for (let x = 0; x < 4; x += 1) values[at + row * width + x] = sample(OUT[x], 19);
  }
}

const OUT = new Float64Array(8);

function four(a0, a1, a2, a3, a5, a6, a7) {
  const even = a0 * 16384;
  const across = 15137 * a2 - 6270 * a6;
  const inner = -1730 * a7 + 11893 * a5 - 17799 * a3 + 8697 * a1;
  const outer = -4176 * a7 - 4926 * a5 + 7373 * a3 + 20995 * a1;
  OUT[0] = even + across + outer;
  OUT[3] = even + across - outer;
  OUT[1] = even - across + inner;
  OUT[2] = even - across - inner;
}

function inverse8(blocks, from, table, values, at, width) {
  for (let column = 0; column < 8; column += 1) {
    eight((row) => blocks[from + column + 8 * row] * table[column + 8 * row]);
    for (let row = 0; row < 8; row += 1) WORK[column + 8 * row] = rounded(OUT[row], 11);
  }
  for (let row = 0; row < 8; row += 1) {
    eight((x) => WORK[8 * row + x]);
    for (let x = 0; x < 8; x += 1) values[at + row * width + x] = sample(OUT[x], 18);
  }
}

function eight(input) {
  const [a0, a1, a2, a3, a4, a5, a6, a7] = [input(0), input(1), input(2), input(3), input(4), input(5), input(6), input(7)];
  const turn = 4433 * (a2 + a6);
  const [low, high] = [turn - 15137 * a6, turn + 6270 * a2];
  const [sum, difference] = [(a0 + a4) * 8192, (a0 - a4) * 8192];
  const evens = [sum + high, difference + low, difference - low, sum - high];
  const shared = 9633 * (a7 + a3 + a5 + a1);
  const [z1, z2] = [-7373 * (a7 + a1), -20995 * (a5 + a3)];
  const [z3, z4] = [-16069 * (a7 + a3) + shared, -3196 * (a5 + a1) + shared];
  const odds = [12299 * a1 + z1 + z4, 25172 * a3 + z2 + z3, 16819 * a5 + z2 + z4, 2446 * a7 + z1 + z3];
  for (let place = 0; place < 4; place += 1) {
    OUT[place] = evens[place] + odds[place];
    OUT[7 - place] = evens[place] - odds[place];
  }
}

const INVERSE = { 1: inverse1, 2: inverse2, 4: inverse4, 8: inverse8 };
