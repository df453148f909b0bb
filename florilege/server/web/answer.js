// Show an answer: the set as equal cards, how often such sets are right, and the details.
import { called, speciesCard } from "./cards.js";
import { button, by, counted, element, fixed, list, number, percent, range, readable, words } from "./page.js";
import { place, rollUp } from "./sets.js";

const MOST_CARDS = 8;
const MOST_BELOW = 4;
const TICKS = [0, 0.01, 0.1, 0.5, 1];
const MOST_GENERA = 3;
const MOST_FAMILIES = 2;
const MOST_NAMES_SAID = 5;

/** Show the parts that do not depend on the setting. */
export function showAbout(answer) {
  by("result").classList.toggle("unfamiliar", isUnfamiliar(answer));
  by("warnings").replaceChildren(...answer.warnings.map((warning) => {
    const text = words.warnings[warning.code]?.(answer.query.images);
    const item = element("li", "", text ?? warning.detail);
    if (!text) item.lang = "en";
    return item;
  }));
}

/** Whether the photo looks like nothing that the model knows: no figure holds for it. */
export const isUnfamiliar = (answer) => ["suspect", "rejected"].includes(answer.rejection.verdict);

/**
 * Show the set at one setting.
 *
 * `results` are all classes, best first, with `in_set`; `point` is the setting, with figures that
 * hold if the answer is `calibrated`; `action` creates the control of a member's card, or null.
 */
export function showSet(answer, results, point, action) {
  const members = results.filter((result) => result.in_set);
  by("result").dataset.k = String(point.k);
  by("result").dataset.size = String(members.length);
  showHeading(answer, members, point);
  by("rollup").replaceChildren(...groups(results).map(chip));
  showMembers(members, action);
  showDetails(answer, results, members.length, point);
}

function showHeading(answer, members, point) {
  const [size, unfamiliar] = [members.length, isUnfamiliar(answer)];
  const heading = size === 0 ? words.none : size === 1 ? words.one : words.several(number(size));
  by("answer-title").textContent = unfamiliar ? words.unfamiliar : heading;
  const rate = unfamiliar || size === 0 ? null : hitRate(answer, size, point);
  by("odds").textContent = unfamiliar ? words.unfamiliarText : size === 0 ? words.oddsEmpty : odds(rate);
  by("similar").hidden = !unfamiliar || size === 0;
  by("basis").hidden = !rate;
  if (rate) {
    const use = words.photoUse[rate.figure.selection_split];
    by("basis").textContent = words.basis(counted(rate.figure, answer.query.images), use);
  }
  announce(members);
}

/** Announce the set to screen readers: its species, and all warnings about it. */
function announce(members) {
  const names = members.slice(0, MOST_NAMES_SAID).map((member) => called(member.taxon));
  if (members.length > names.length) names.push(words.further(members.length - names.length));
  const warnings = [...by("warnings").children].map((item) => item.textContent);
  const named = (heading) => `${[heading, ...(names.length ? [list(names)] : [])].join(": ")}.`;
  const [title, text] = [by("answer-title").textContent, by("odds").textContent];
  const set = by("similar").hidden ? [named(title), text] : [`${title}.`, text, named(by("similar").textContent)];
  by("said").textContent = [...set, ...warnings].join(" ");
}

/**
 * How often such sets held the right species: those of this size if that was measured, else those
 * of all sizes, with the share that is promised; null if neither is known.
 */
function hitRate({ set }, size, point) {
  const own = set.size === size && set.k === point.k && set.hit_rate_at_size;
  if (own) return { figure: own, size };
  return set.calibrated && point.hit_rate ? { figure: point.hit_rate, promised: point.least_coverage } : null;
}

/** A hit rate in words. Only `promised` is said of new photos: an interval promises nothing. */
function odds(rate) {
  if (!rate) return words.oddsUnknown;
  const share = rate.figure.value;
  const amount = share >= 0.995 ? words.over(number(99)) : share < 0.005 ? words.under(number(1))
    : words.about(number(Math.round(100 * share)));
  if (rate.size) return words.oddsOfSize(amount, rate.size);
  const promised = rate.promised == null ? [] : [words.promise(number(Math.floor(100 * rate.promised)))];
  return [words.odds(amount), ...promised].join(" ");
}

function groups(results) {
  const all = rollUp(results);
  const genera = all.filter((group) => group.rank === "genus").slice(0, MOST_GENERA);
  return [...genera, ...all.filter((group) => group.rank === "family").slice(0, MOST_FAMILIES)];
}

function chip(group) {
  const item = element("li", group.covers_set ? "covers" : "");
  const name = element("em", "", group.name);
  name.lang = "la";
  item.append(element("span", "rank", words[group.rank]), name);
  const all = group.rank === "genus" ? words.allOfGenus : words.allOfFamily;
  if (group.covers_set) item.title = all;
  return item;
}

function showMembers(members, action) {
  const pictured = members.some((member) => member.taxon.thumbnail);
  const cards = members.map((member) => speciesCard(member, pictured, action(member)));
  const rest = cards.slice(MOST_CARDS);
  if (rest.length > 1) rest.forEach((card) => { card.hidden = true; });
  by("members").classList.toggle("pictured", pictured);
  by("members").replaceChildren(...cards);
  by("show-all").replaceChildren();
  if (rest.length < 2) return;
  by("show-all").append(button("", words.showAll(number(cards.length)), () => {
    rest.forEach((card) => { card.hidden = false; });
    by("show-all").replaceChildren();
    rest[0].tabIndex = -1;
    rest[0].focus();
  }));
}

// ---- details ---------------------------------------------------------------------------------

function showDetails(answer, results, size, point) {
  by("bars").replaceChildren(...results.slice(0, size + MOST_BELOW).map(bar));
  showThreshold(point.lambda);
  const figures = [[words.threshold, number(point.lambda, { maximumSignificantDigits: 6 })]];
  if (answer.set.calibrated && !isUnfamiliar(answer)) {
    const [{ expected_size: mean, hit_rate: hits }, images] = [point, answer.query.images];
    figures.push([words.meanSize, withInterval(mean, (value) => fixed(value, 2))]);
    if (hits) figures.push([words.hitRate, withInterval(hits, percent)]);
    figures.push([words.measuredOn, words.splitOf(counted(mean, images), mean.split)]);
  }
  figures.push([words.model, `${answer.model.name} ${answer.model.version}`], [words.request, answer.id]);
  by("figures").replaceChildren(...figures.flatMap(([name, text]) => [
    element("dt", "", name), element("dd", "", text),
  ]));
}

function withInterval({ value, ci95 }, format) {
  if (!ci95) return format(value);
  return `${format(value)} (${words.interval(range(ci95, format))})`;
}

function bar(result) {
  const item = element("li", result.in_set ? "inside" : "below");
  item.dataset.classId = result.class_id;
  const track = element("div", "track");
  const length = element("div", "bar");
  length.style.setProperty("--share", String(place(result.score)));
  track.append(length);
  const score = element("span", "score", readable(result.score));
  score.title = String(result.score);
  item.append(element("span", "label", called(result.taxon)), track, score);
  item.append(element("span", "hidden", result.in_set ? words.inSet : words.below));
  return item;
}

function showThreshold(lambda) {
  by("bars").parentElement.style.setProperty("--lambda", String(place(lambda)));
  by("lambda-label").textContent = `λ ${readable(lambda)}`;
  by("ticks").replaceChildren(...TICKS.map((tick) => {
    const mark = element("span", "tick", number(tick));
    mark.style.setProperty("--share", String(place(tick)));
    return mark;
  }));
}
