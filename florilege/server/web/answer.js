// Show an answer: the set as equal cards, how often such sets are right, and the details.
import { called, speciesCard } from "./cards.js";
import { button, by, counted, element, fixed, number, percent, range, readable, words } from "./page.js";
import { place, rollUp } from "./sets.js";

const MOST_CARDS = 8;
const MOST_BELOW = 4;
const TICKS = [0, 0.01, 0.1, 0.5, 1];
const MOST_GENERA = 3;
const MOST_FAMILIES = 2;

/** Show the parts that do not depend on the setting. */
export function showAbout(answer) {
  by("unfamiliar").hidden = answer.rejection.verdict !== "suspect";
  by("warnings").replaceChildren(...answer.warnings.map((warning) => {
    const text = words.warnings[warning.code]?.(answer.query.images);
    const item = element("li", "", text ?? warning.detail);
    if (!text) item.lang = "en";
    return item;
  }));
}

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
  const { calibrated } = answer.set;
  showHeading(members.length, calibrated ? point : null, answer.query.images);
  by("rollup").replaceChildren(...groups(results).map(chip));
  showMembers(members, action);
  showDetails(answer, results, members.length, point);
}

function showHeading(size, point, images) {
  const heading = size === 0 ? words.none : size === 1 ? words.one : words.several(number(size));
  by("answer-title").textContent = heading;
  by("odds").textContent = size === 0 ? words.oddsEmpty : odds(point?.hit_rate, point?.least_coverage);
  by("basis").hidden = size === 0 || !point?.hit_rate;
  if (point?.hit_rate) {
    const use = words.photoUse[point.hit_rate.selection_split];
    by("basis").textContent = words.basis(counted(point.hit_rate, images), use);
  }
  announce(`${heading}. ${by("odds").textContent}`);
}

/** Announce the set to screen readers, with all warnings about it. */
function announce(text) {
  const unfamiliar = by("unfamiliar").hidden ? [] : [by("unfamiliar").textContent];
  const warnings = [...by("warnings").children].map((item) => item.textContent);
  by("said").textContent = [...unfamiliar, text, ...warnings].join(" ");
}

/** The hit rate in words, of all sets drawn this way; `bound` holds for all of the slider. */
function odds(rate, bound) {
  if (!rate) return words.oddsUnknown;
  const share = rate.value;
  const lower = bound ?? rate.ci95?.[0];
  const least = lower == null ? null : number(Math.floor(100 * lower));
  const about = number(Math.round(100 * share));
  if (share > 0.995 && least) return words.oddsMost(least);
  if (share < 0.005) return words.oddsFew;
  return least ? words.oddsLeast(about, least) : words.odds(about);
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
  const share = words.share(percent(group.score));
  item.title = group.covers_set ? `${all}; ${share}` : share;
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
  if (answer.set.calibrated) {
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
