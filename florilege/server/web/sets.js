// Prediction sets as the server gives them. No document and no network, only numbers.

/** The thresholds of the average-K rule, by increasing K, from the answer of /v1/model. */
export function averageK(card) {
  return card.rules.find((rule) => rule.rule === "average_k");
}

/**
 * The sets of a photo that its answer holds, by increasing size, each with its setting and figures.
 *
 * An answer that was kept without them has its own set alone.
 */
export const stopsOf = (answer) => (answer.dial?.length ? answer.dial : [answer.set]);

/** Where the answer's own set stands among them. */
export const ownStop = (answer) => Math.max(0, stopsOf(answer).findIndex(({ size }) => size === answer.set.size));

/** Results, best first, each with whether it is in the set of this size. */
export const draw = (results, size) => results.map((result, index) => ({ ...result, in_set: index < size }));

/** The genus or family of all members of a set, or null; of a single one none is worth saying. */
export function commonGroup(members) {
  const group = rollUp(members).find((one) => one.covers_set);
  return members.length > 1 && group ? group : null;
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
