// Prediction sets, computed as on the server. No document and no network, only numbers.

/** The thresholds of the average-K rule, by increasing K, from the answer of /v1/model. */
export function averageK(card) {
  return card.rules.find((rule) => rule.rule === "average_k");
}

/** The thresholds of an answer: those of its list, place or number of photos, or of one photo. */
export function pointsFor(rule, answer) {
  if (!answer) return rule.points;
  const { k, lambda } = answer.set;
  const tables = [
    ...(rule.lists ?? []).filter((one) => one.list === answer.query.list),
    ...rule.several.filter((one) => one.images === answer.query.images),
    ...(answer.query.region ? rule.places ?? [] : []),
  ];
  const drawn = (table) => table.points.some((point) => point.k === k && point.lambda === lambda);
  return [...tables, rule].find(drawn)?.points ?? [answer.set]; // views of several kinds have one K
}

/** The lowest threshold that the slider may use for an answer to a query. */
export function lowestThreshold(rule, query) {
  const lists = (rule.lists ?? []).filter((one) => one.list === query.list);
  const tables = [rule, ...lists, ...rule.several, ...(rule.places ?? [])];
  return Math.min(...tables.flatMap(({ points }) => points.map((point) => point.lambda)));
}

/** Position of the point whose K is nearest to `k`. */
export function nearestPoint(points, k) {
  let best = 0;
  points.forEach((point, index) => {
    if (Math.abs(point.k - k) < Math.abs(points[best].k - k)) best = index;
  });
  return best;
}

/** Results, best first, each with whether it is in the set at this threshold. */
export function draw(results, lambda, minSize) {
  return results.map((result, index) => ({
    ...result,
    in_set: index < minSize || result.score >= lambda,
  }));
}

/** The genera, then families, of the classes in the set, with their share of all scores. */
export function rollUp(results) {
  const total = results.reduce((sum, result) => sum + result.score, 0) || 1;
  const members = results.filter((result) => result.in_set);
  return ["genus", "family"].flatMap((rank) => {
    const names = new Set(members.map((member) => member.taxon[rank]));
    return [...names]
      .filter((name) => name !== null)
      .map((name) => ({
        rank,
        name,
        score: results.reduce((sum, r) => sum + (r.taxon[rank] === name ? r.score : 0), 0) / total,
        covers_set: names.size === 1,
      }))
      .sort((a, b) => b.score - a.score);
  });
}

/** Where a score lies on the bar, from 0 to 1. The cube root keeps 0.001 as visible as 0.9. */
export function place(score) {
  return Math.cbrt(Math.min(1, Math.max(0, score)));
}
