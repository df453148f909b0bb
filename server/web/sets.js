// Prediction sets, computed as the server computes them. No document, no network: only numbers.

/** The thresholds of the average-K rule, by growing K, from the answer of /v1/model. */
export function averageK(card) {
  return card.rules.find((rule) => rule.rule === "average_k");
}

/** Thresholds for this number of photos, and whether they are calibrated for it. */
export function pointsFor(rule, images) {
  const several = rule.several.find((one) => one.images === images);
  return { points: (several ?? rule).points, calibrated: images <= 1 || several !== undefined };
}

/** Position of the point whose K is nearest to the wanted one. */
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

/** A score for people: two digits that mean something. */
export function readable(score) {
  if (score >= 0.995) return score.toFixed(3);
  if (score >= 0.0995) return score.toFixed(2);
  if (score >= 0.001) return score.toPrecision(2);
  return score === 0 ? "0" : "<0.001";
}

/** What this setting does, measured, in one or two sentences. */
export function sentence(point, images, calibrated) {
  if (!calibrated) {
    return "How large such sets are and how often they are right was measured for single photos only.";
  }
  const size = point.expected_size.value.toFixed(1);
  if (!point.hit_rate) return `Sets at this setting name ${size} species on average. How often they are right is not known.`;
  const hits = Math.round(1000 * point.hit_rate.value) / 10;
  const rows = point.expected_size.rows.toLocaleString("en");
  const measured = images > 1 ? `${rows} groups of ${images} photos` : `${rows} photos`;
  return (
    `Measured on ${measured}: sets at this setting name ${size} species on average, and ` +
    `${hits}\u00a0% of them name the right one. An average, not a promise for this photo.`
  );
}
