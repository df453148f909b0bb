// From logits to a prediction set, in the arithmetic of the server. Only numbers.

/** Scores of one photo from its scaled logits; `kind` is softmax or sigmoid. */
export function scores(logits, kind) {
  if (kind === "sigmoid") return logits.map((x) => (x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x))));
  const best = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = logits.map((x) => Math.exp(x - best));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / total);
}

/** The mean over photos of the scores of each class; the order of the photos changes no digit. */
export function fuse(rows) {
  return rows[0].map((_, place) => {
    const column = rows.map((row) => row[place]).sort((a, b) => a - b);
    return column.reduce((a, b) => a + b, 0) / rows.length;
  });
}

/**
 * A product of the photos' likelihoods with the prior counted once: each row holds scaled logits.
 *
 * `lift`, what a place adds, and `prior` have a number for each class; `lift` may be null.
 */
export function product(rows, exponent, prior, lift) {
  const evidence = rows.map((logits) => {
    const best = logits.reduce((a, b) => Math.max(a, b), -Infinity);
    const sum = Math.log(logits.reduce((total, x) => total + Math.exp(x - best), 0)) + best;
    return logits.map((x, place) => x - sum - Math.log(prior[place]));
  });
  const fused = prior.map((share, place) => {
    const column = evidence.map((row) => row[place]).sort((a, b) => a - b);
    return exponent * column.reduce((a, b) => a + b, 0) + Math.log(share) + (lift?.[place] ?? 0);
  });
  const impossible = fused.every((value) => value === -Infinity);
  return scores(impossible ? prior.map(Math.log) : fused, "softmax");
}

/**
 * The set of a rule: for each class the number compared with the threshold, and whether it is inside.
 *
 * `rule` has lambda, min_size, max_size, top_k, and weights and thresholds of classes, each or null.
 */
export function drawSet(values, rule) {
  const ranking = values.map((value, place) => value * (rule.weights?.[place] ?? 1));
  const compared = ranking.map((value, place) => value - (rule.thresholds?.[place] ?? 0));
  const order = [...ranking.keys()].sort((a, b) => ranking[b] - ranking[a]); // stable
  if (rule.top_k) {
    const inside = new Set(order.slice(0, rule.top_k));
    return { compared, order, inside: ranking.map((_, place) => inside.has(place)) };
  }
  const inside = compared.map((value) => value >= rule.lambda);
  if (rule.min_size) inside[order[0]] = true;
  if (rule.max_size) order.filter((place) => inside[place]).slice(rule.max_size).forEach((place) => { inside[place] = false; });
  return { compared, order, inside };
}

/** Logits of some classes; all 0 if none of them is possible. */
export function among(logits, classes) {
  const listed = classes.map((place) => logits[place]);
  return listed.some((value) => value > -Infinity) ? listed : listed.map(() => 0);
}

// Familiarity ------------------------------------------------------------------------------------

const ENTROPY_POWER = 0.1;
const ENTROPY_CLASSES = 100;

/** Minus the generalised entropy of the best 100 scores; higher is more familiar. */
export function generalisedEntropy(values) {
  const best = [...values].sort((a, b) => b - a).slice(0, ENTROPY_CLASSES);
  return -best.reduce((sum, p) => sum + (p * (1 - p)) ** ENTROPY_POWER, 0);
}

/**
 * Compare features with those of training photos: the cosine to the nearest one, and minus the
 * length of what lies off their axes. `reference` has axes and directions, arrays of rows.
 */
export function compareFeatures(features, { axes, directions }) {
  // Rounded to single precision wherever the server's arrays are, or the last digits would differ.
  const along = axes.map((axis) => Math.fround(dot(axis, features)));
  const length = Math.sqrt(dot(along, along));
  const unit = along.map((value) => Math.fround(value / (length || 1)));
  const nearest = directions.reduce((best, direction) => Math.max(best, dot(direction, unit)), -Infinity);
  return [nearest, -Math.sqrt(Math.max(0, dot(features, features) - length * length))];
}

function dot(a, b) {
  let sum = 0;
  for (let place = 0; place < a.length; place += 1) sum += a[place] * b[place];
  return sum;
}

// Place and season -------------------------------------------------------------------------------

const PSEUDO_RECORDS = 20;
const NEIGHBOUR = 0.5;
const ALL_MONTHS = 0;

/** How often each class was recorded in a region and month, as Occurrences.counts of the server. */
function counts(table, region, month) {
  const sums = new Float64Array(table.classes);
  const place = table.regions.indexOf(region);
  if (place < 0) return sums;
  for (let row = table.bounds[place]; row < table.bounds[place + 1]; row += 1) {
    const gap = Math.abs(table.months[row] - month);
    const apart = Math.min(gap, 12 - gap);
    const spread = (1 + 2 * NEIGHBOUR) / 12;
    const near = apart === 0 ? 1 : apart === 1 ? NEIGHBOUR : 0;
    const factor = month === ALL_MONTHS ? 1 : table.months[row] === ALL_MONTHS ? spread : near;
    sums[table.class_indices[row]] += factor * table.weights[row];
  }
  return sums;
}

/** What a place adds to the scaled logits before its strength, and which classes were seen there. */
export function placeEffect(table, region, month = ALL_MONTHS) {
  const totals = new Float64Array(table.classes);
  table.class_indices.forEach((place, row) => { totals[place] += table.weights[row]; });
  const known = table.regions.includes(region);
  const whole = totals.reduce((a, b) => a + b, table.classes);
  const overall = totals.map((value) => (value + 1) / whole);
  let share = overall;
  for (const each of new Set([ALL_MONTHS, month])) {
    const recorded = counts(table, region, each);
    const total = recorded.reduce((a, b) => a + b, 0) + PSEUDO_RECORDS;
    share = recorded.map((value, place) => (value + PSEUDO_RECORDS * share[place]) / total);
  }
  const here = counts(table, region, month);
  return {
    known,
    lift: share.map((value, place) => (totals[place] > 0 ? Math.log(value / overall[place]) : 0)),
    inRange: Array.from(totals, (total, place) => (known && total ? here[place] > 0 : null)),
  };
}

/** The region of a place on a grid of cells, named by size and south-west corner. */
export function cellName(latitude, longitude, degrees) {
  const text = (value) => String(Number(value.toPrecision(6))); // Python's :g
  const corner = [latitude, longitude].map((value) => text(Math.floor(value / degrees) * degrees));
  return `cell${text(degrees)}_${corner.join("_")}`;
}
