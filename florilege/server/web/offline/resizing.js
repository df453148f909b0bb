// Pillow's resizing and reducing of 8-bit RGB pictures, digit for digit: canvases resize differently.

const PRECISION = 22; // bits after the point of a weight, as in Pillow's Resample.c
const HALF = 1 << (PRECISION - 1);
const CHANNELS = 3;

const triangle = (x) => Math.max(0, 1 - Math.abs(x));

function cubic(signed) {
  const x = Math.abs(signed);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

const FILTERS = { bilinear: [triangle, 1], bicubic: [cubic, 2] }; // and their support

/**
 * Resize a part of a picture to a square.
 *
 * `picture` has `pixels`, RGB bytes row by row, `width` and `height`; `box` is [left, top, right,
 * bottom] in its pixels, with fractions. Returns the RGB bytes of a square of `side` pixels.
 */
export function resize(picture, box, side, resample) {
  const { pixels, width, height } = picture;
  const [left, top, right, bottom] = box.map(Math.fround); // Pillow takes single precision
  const columns = weights(width, left, right, side, resample);
  const rows = weights(height, top, bottom, side, resample);
  const whole = { pixels, step: [CHANNELS, width * CHANNELS], origin: [0, 0] };
  const columnsLast = height - side > 2 * Math.max(0, width - side); // Pillow 13 saves work so
  const passes = columnsLast ? [[1, rows, columns], [0, columns]] : [[0, columns, rows], [1, rows]];
  return passes.reduce((source, pass) => squeeze(source, side, ...pass), whole).pixels;
}

/**
 * Sum along one axis, 0 for columns and 1 for rows.
 *
 * Of the other axis only what the weights of the next pass `other` need is computed, if given.
 */
function squeeze({ pixels, step, origin }, side, axis, table, other = null) {
  const start = other ? other.starts[0] : 0;
  const count = other ? other.starts[side - 1] + other.counts[side - 1] - start : side;
  const size = axis === 0 ? side : count; // columns of the result
  const target = { pixels: new Uint8Array(side * count * CHANNELS), step: [CHANNELS, size * CHANNELS], origin: [0, 0] };
  target.origin[1 - axis] = start;
  for (let line = 0; line < count; line += 1) {
    const from = (line + start - origin[1 - axis]) * step[1 - axis] - origin[axis] * step[axis];
    sums(pixels, from, step[axis], table, target.pixels, line * target.step[1 - axis], target.step[axis]);
  }
  return target;
}

/** One line: weighted sums of pixels `step` apart, written `outStep` apart. */
function sums(source, from, step, { starts, counts, taps, values }, target, to, outStep) {
  for (let place = 0; place < starts.length; place += 1) {
    let at = from + starts[place] * step;
    let [red, green, blue] = [HALF, HALF, HALF];
    const first = place * taps;
    for (let tap = first; tap < first + counts[place]; tap += 1, at += step) {
      const weight = values[tap];
      red += source[at] * weight;
      green += source[at + 1] * weight;
      blue += source[at + 2] * weight;
    }
    const out = to + place * outStep;
    target[out] = clip(red);
    target[out + 1] = clip(green);
    target[out + 2] = clip(blue);
  }
}

function clip(sum) {
  const value = sum >> PRECISION;
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

/** For each of `side` outputs: where its inputs start, how many there are, and their weights. */
function weights(size, start, end, side, resample) {
  const [filter, reach] = FILTERS[resample];
  const scale = Math.fround(end - start) / side;
  const stretch = Math.max(1, scale);
  const support = reach * stretch;
  const taps = 2 * Math.ceil(support) + 1;
  const [starts, counts] = [new Int32Array(side), new Int32Array(side)];
  const values = new Int32Array(side * taps);
  for (let place = 0; place < side; place += 1) {
    const centre = start + (place + 0.5) * scale;
    const low = Math.max(0, Math.trunc(centre - support + 0.5));
    const count = Math.min(size, Math.trunc(centre + support + 0.5)) - low;
    const raw = Array.from({ length: count }, (_, tap) => filter((tap + low - centre + 0.5) * (1 / stretch)));
    const total = raw.reduce((sum, value) => sum + value, 0) || 1;
    raw.forEach((value, tap) => {
      const scaled = (value / total) * (1 << PRECISION);
      values[place * taps + tap] = Math.trunc(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    });
    starts[place] = low;
    counts[place] = count;
  }
  return { starts, counts, taps, values };
}

/** A picture shrunk by a whole factor: each pixel is the mean of a square of `factor` pixels. */
export function reduce(picture, factor) {
  if (factor === 1) return picture;
  const { pixels, width, height } = picture;
  const [columns, rows] = [Math.ceil(width / factor), Math.ceil(height / factor)];
  const reduced = new Uint8Array(columns * rows * CHANNELS);
  const sum = new Uint32Array(columns * CHANNELS);
  for (let row = 0; row < rows; row += 1) {
    const end = Math.min(height, (row + 1) * factor);
    sum.fill(0);
    for (let y = row * factor; y < end; y += 1) addRow(sum, pixels, y * width * CHANNELS, width, factor);
    for (let column = 0; column < columns; column += 1) {
      const count = (end - row * factor) * (Math.min(width, (column + 1) * factor) - column * factor);
      for (let channel = 0; channel < CHANNELS; channel += 1) {
        const at = column * CHANNELS + channel;
        reduced[row * columns * CHANNELS + at] = mean(sum[at], count);
      }
    }
  }
  return { pixels: reduced, width: columns, height: rows };
}

function addRow(sum, pixels, offset, width, factor) {
  let at = offset;
  for (let x = 0, column = 0; x < width; column += CHANNELS) {
    const end = Math.min(width, x + factor);
    for (; x < end; x += 1, at += CHANNELS) {
      sum[column] += pixels[at];
      sum[column + 1] += pixels[at + 1];
      sum[column + 2] += pixels[at + 2];
    }
  }
}

/** Pillow multiplies with a truncated reciprocal, see its Reduce.c. */
const mean = (sum, count) => Math.floor(((sum + (count >> 1)) * Math.floor(2 ** 24 / count)) / 2 ** 24);
