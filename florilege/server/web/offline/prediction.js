// The answer to a query from the outputs of the network, as the server gives it.
import { among, cellName, compareFeatures, drawSet, fuse, generalisedEntropy, placeEffect, product, scores } from "./scores.js";
import { rollUp } from "../sets.js";

const LARGEST_SET = 75; // on a dial, as on the server
const BELOW = 4; // classes beyond it
const NOT_JUDGED = { verdict: "not_judged", method: null, value: null, threshold: null };

/** A query that cannot be answered here; the detail is for developers. */
const refused = (code, detail, more = {}) => ({ code, detail, retryable: false, ...more });

/**
 * The answer for the photos of one plant.
 *
 * `outputs` has, for each photo, logits and features (or null); `pack` what was exported: model,
 * calibration, classes, and reference and occurrences or null.
 */
export function predict(outputs, query, pack) {
  const { calibration } = pack;
  const [place, list] = [placeOf(query, pack), listOf(query, calibration)];
  const kind = place.lift ? place.kind : null;
  const setting = { place, list, ...operatingPoint(calibration, query, outputs.length, list, kind) };
  const indices = list?.classes ?? [...pack.classes.keys()];
  const rejection = judge(outputs, query, pack);
  const values = fusedScores(outputs, indices, setting, calibration);
  const drawn = drawSet(values, ruleOf(calibration, setting));
  if (rejection.verdict === "rejected") drawn.inside.fill(false);
  const size = drawn.inside.filter(Boolean).length;
  const { inside, order } = drawn;
  const places = [...order.filter((at) => inside[at]), ...order.filter((at) => !inside[at])];
  const ranking = places.map((at, number) => resultOf(at, number + 1, drawn, pack.classes[indices[at]], query));
  if (place.inRange) ranking.forEach((one, number) => { one.in_range = place.inRange[indices[places[number]]]; });
  const include = query.include ?? [];
  const calibrated = setting.calibrated && rejection.verdict !== "rejected";
  const rejects = Boolean(query.reject && calibration.rejection);
  const stops = rejection.verdict === "rejected" ? [] : dialOf(setting, drawn.compared, calibrated, calibration, rejects);
  const dial = include.includes("dial") ? stops : null;
  const shown = include.includes("scores") ? undefined : Math.max(size, dial?.length ? dial.at(-1).size + BELOW : 0);
  const results = ranking.slice(0, shown)
    .filter((one) => one.score >= (query.min_score ?? -Infinity)).slice(0, query.max_results ?? undefined);
  const none = query.none ? noneOfThese(outputs, query, pack) : null;
  return {
    id: crypto.randomUUID?.() ?? String(Date.now()),
    model: pack.model,
    query: {
      images: outputs.length, ...requested(setting), lang: query.languages[0], list: list?.name ?? null,
      only: null, region: place.region ?? null, month: place.month || null,
    },
    set: {
      ...requested(setting), ...described(setting, calibrated, size, calibration, rejects),
      score_kind: calibration.score_kind, head: calibration.head, size, none_of_these: none, truncated: results.filter((one) => one.in_set).length < size,
    },
    best_match: size ? ranking[0].taxon.scientific_name : null,
    results,
    dial,
    rollup: include.includes("rollup") ? rollUp(ranking.map((one, number) => ({ ...one, score: values[places[number]] }))) : null,
    rejection,
    warnings: warnings(setting, outputs.length, query, none, pack.classes.length),
  };
}

function fusedScores(outputs, indices, { place, list, table }, { temperature, score_kind: kind, prior }) {
  const pick = (values) => indices.map((index) => values[index]);
  const lift = place.lift ? pick(place.lift) : null;
  const rows = outputs.map(({ logits }) =>
    (list ? among(logits, indices) : Array.from(logits)).map((value) => value / temperature));
  if (table.fusion !== null) return product(rows, table.fusion, pick(prior), lift);
  return fuse(rows.map((row) => scores(lift ? row.map((value, at) => value + lift[at]) : row, kind)));
}

function resultOf(at, rank, { compared, inside }, info, query) {
  return {
    rank, class_id: info.id, score: compared[at], in_set: inside[at], top_k_probability: null,
    in_range: null, taxon: taxonOf(info, query.languages),
  };
}

const requested = ({ table, point }) =>
  ({ rule: table.rule, k: point.k, coverage: point.coverage, guarantee: table.guarantee });

/** The threshold; and its figures, if they hold for this answer. */
function described({ table, point, calibrated: fits }, calibrated, size, calibration, rejects) {
  return {
    guaranteed: calibrated && point.guaranteed && !rejects,
    reasons: [...point.reasons, ...(rejects ? ["suspects_rejected"] : []), ...(fits ? [] : ["another_view"])],
    calibrated_for: { images: table.images, list: table.list, place: table.place }, lambda: point.lambda, min_size: table.min_size,
    max_size: table.max_size, calibrated, statement: null, ...figuresOf(point, size, calibrated, calibration, rejects),
  };
}

/** The figures of a setting and of its sets of one size, all null if they do not hold. */
function figuresOf({ expected_size, hit_rate, least_coverage: least, ...point }, size, calibrated, calibration, rejects) {
  if (!calibrated) return { expected_size: null, hit_rate: null, hit_rate_at_size: null, least_coverage: null };
  const least_coverage = rejects ? null : least;
  return { expected_size, hit_rate, hit_rate_at_size: rateAtSize(point, size, calibration), least_coverage };
}

/** The sets of a photo at the other values of the rule, as `dial` in the server's answers. */
function dialOf({ table, point }, compared, calibrated, calibration, rejects) {
  if (table.class_thresholds) return [];
  const value = ({ k, coverage }) => k ?? coverage;
  const gap = (one) => Math.abs(value(one) - value(point));
  const stops = new Map(); // by size, ascending: a higher value never gives a smaller set
  for (const one of table.points) {
    const reached = compared.reduce((count, score) => count + (score >= one.lambda), 0);
    const size = table.rule === "top_k" ? Math.min(Math.round(one.k), compared.length)
      : Math.min(Math.max(reached, table.min_size), table.max_size ?? Infinity);
    if (!stops.has(size) || gap(one) < gap(stops.get(size))) stops.set(size, one);
  }
  return [...stops].filter(([size, one]) => size <= LARGEST_SET || one === point)
    .map(([size, one]) => ({ ...stopOf(one), size, ...figuresOf(one, size, calibrated, calibration, rejects) }));
}

const stopOf = ({ k, coverage, lambda }) => ({ k, coverage, lambda });

/** How often sets of about this size held the true class, as `hit_rate_at_size` on the server; null where unknown. */
function rateAtSize(point, size, { size_bins: bins, split, selection_split }) {
  const [value, low, high, rows] = point.hit_rates_by_size[bins.findLastIndex((edge) => edge <= size)] ?? [];
  return rows ? { value, ci95: [low, high], split, rows, selection_split } : null;
}

// Thresholds ---------------------------------------------------------------------------------------

/** The table and threshold for a query, and whether it was calibrated for these photos and classes. */
function operatingPoint(calibration, query, images, list, kind) {
  const rule = query.rule ?? "average_k";
  if ((query.only ?? query.always ?? []).length || (query.include ?? []).includes("marginals")) {
    throw refused("not_offered_offline", "`only`, `always` and `include=marginals` need the server");
  }
  const usual = calibration.tables.filter((table) => table.rule === rule);
  const guarantee = query.guarantee ?? usual.find((table) => table.usual)?.guarantee ?? null;
  const tables = usual.filter((table) => table.guarantee === guarantee);
  const find = (count, listName, place) =>
    tables.find((table) => table.images === count && table.list === listName && table.place === place);
  const single = find(1, null, null);
  if (!single) throw refused("not_calibrated", `rule ${rule} is not calibrated`, { allowed: [] });
  const asks = single.points[0].k === null ? "coverage" : "k";
  if (query[asks === "k" ? "coverage" : "k"] != null) throw refused("invalid_parameter", `rule ${rule} takes ${asks}`);
  const wanted = query[asks] ?? calibration[asks === "k" ? "default_k" : "default_coverage"];
  const at = (table, value) => table?.points.find((point) => point[asks] === value);
  const first = at(single, wanted) ?? (query[asks] == null ? single.points[0] : null);
  if (!first) {
    const allowed = single.points.map((point) => point[asks]);
    throw refused("not_calibrated", `${asks} = ${wanted} is not calibrated for rule ${rule}`, { allowed });
  }
  // As on the server: the most similar view that has this threshold; a list matters most, a place least.
  for (const listName of new Set([list?.name ?? null, null])) {
    for (const count of new Set([images, 1])) {
      for (const where of new Set([kind, null])) {
        const table = find(count, listName, where);
        const point = at(table, first[asks]);
        const same = count === images && where === kind && listName === (list?.name ?? null);
        if (point) return { table, point, calibrated: same };
      }
    }
  }
}

/** A threshold with the weights and thresholds of the classes that are scored. */
function ruleOf(calibration, { table, point, list }) {
  const own = list && table.list === list.name;
  const pick = (values) => (values && list && !own ? list.classes.map((place) => values[place]) : values);
  const weights = table.weighted ? (own ? list.class_weights : pick(calibration.class_weights)) : null;
  const at = table.points.indexOf(point);
  return {
    lambda: point.lambda, min_size: table.min_size, max_size: table.max_size,
    top_k: table.rule === "top_k" ? Math.round(point.k) : null,
    weights, thresholds: pick(table.class_thresholds?.[at] ?? null),
  };
}

function listOf(query, calibration) {
  if (!query.list) return null;
  const list = calibration.lists.find((one) => one.name === query.list);
  if (!list) throw refused("unknown_list", `no list is named ${query.list}`);
  return list;
}

/** The place of a query and its effect; empty if it names none. */
function placeOf(query, { occurrences, calibration }) {
  const corner = query.latitude != null && query.longitude != null;
  if (query.region == null && !corner) return {};
  if (!occurrences) throw refused("invalid_parameter", "this model has no table of occurrences");
  if (query.region == null && !occurrences.cell_degrees) throw refused("invalid_parameter", "this model knows named regions, no grid");
  const region = query.region ?? cellName(query.latitude, query.longitude, occurrences.cell_degrees);
  const month = query.month ?? (query.date ? Number(query.date.split("-")[1]) : 0);
  const effect = placeEffect(occurrences, region, month);
  const strength = calibration.place_strength;
  const used = strength > 0 && effect.known;
  return {
    region, month, used, inRange: effect.inRange, kind: month ? "region_and_month" : "region",
    lift: used ? effect.lift.map((value) => strength * value) : null,
  };
}

// Familiarity --------------------------------------------------------------------------------------

function judge(outputs, query, { calibration, reference }) {
  const whole = calibration.rejection;
  const usable = whole?.method !== "combined" || (reference && outputs.every((one) => one.features));
  const rule = usable ? whole : whole.by_logits;
  if (!rule) return NOT_JUDGED;
  const familiarity = outputs.map(({ logits, features }) => {
    const entropy = generalisedEntropy(scores(Array.from(logits), rule.score_kind));
    if (rule.method !== "combined") return entropy;
    const parts = [...compareFeatures(features, reference), entropy];
    return parts.reduce((sum, part, at) => sum + (part - rule.centres[at]) / rule.scales[at], 0);
  });
  const value = Math.max(...familiarity);
  const verdict = value >= rule.threshold ? "accepted" : query.reject ? "rejected" : "suspect";
  return { verdict, method: rule.method, value, threshold: rule.threshold };
}

/** Whether the set also holds "none of these"; null if that is not calibrated. */
function noneOfThese(outputs, query, { calibration, reference }) {
  const unseen = (calibration.rejection?.unseen ?? []).filter((one) => query.coverage == null || one.coverage === query.coverage);
  if (!unseen.length || !reference || outputs.some((one) => !one.features)) return null;
  const nearest = outputs.map(({ features }) => compareFeatures(features, reference)[0]);
  return Math.min(...nearest) <= unseen[0].threshold;
}

// Names and warnings -------------------------------------------------------------------------------

/** The languages to try for a name: each tag, then its base, and English last. */
export const fallbackChain = (tags) =>
  [...new Set([...tags.flatMap((tag) => [tag.toLowerCase(), tag.toLowerCase().split("-")[0]]), "en"])];

/** A class as answers describe it, with names in the first possible language. */
export function taxonOf(info, languages) {
  const names = Object.fromEntries(Object.entries(info.common_names).map(([tag, list]) => [tag.toLowerCase(), list]));
  const lang = fallbackChain(languages).find((tag) => names[tag]?.length);
  const { author, licence, url } = info.thumbnail ?? {};
  return {
    scientific_name: info.scientific_name, genus: info.genus, family: info.family,
    ids: { gbif: info.gbif }, common_names: (names[lang] ?? []).map((name) => ({ name, lang })),
    link: info.link, thumbnail: info.thumbnail && { url, author, licence },
  };
}

function warnings({ table, list, calibrated, place }, images, query, none, classes) {
  const all = [
    [table.images !== images, "fusion_not_calibrated", `this model is not calibrated for ${images} photos with this rule, value, list and place`],
    [table.images === images && table.made_from === "same_class", "fusion_from_same_class",
      `calibrated on ${images} photos of one species, not of one plant`],
    [list && table.list === null, "list_not_calibrated",
      `the scores of ${list?.classes.length} classes are compared with the threshold of all ${classes}`],
    [place.region !== undefined && !place.used, "place_not_used", "the place of the photo was not used"],
    [place.used && table.place !== place.kind, "place_not_calibrated", "the model is not calibrated for this place"],
    [query.none && none === null, "none_not_calibrated", "the model is not calibrated for `none` at this coverage"],
  ];
  return all.filter(([applies]) => applies).map(([, code, detail]) => ({ code, detail }));
}
