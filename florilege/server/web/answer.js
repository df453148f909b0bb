// Show an answer: its words, the set as equal cards, and the details.
import { called, speciesCard } from "./cards.js";
import { button, by, counted, element, fixed, number, percent, range, readable, words } from "./page.js";
import { place, rollUp } from "./sets.js";
import { isUnfamiliar, showVerdict } from "./verdict.js";

const MOST_CARDS = 8;
const MOST_BELOW = 4;
const TICKS = [0, 0.01, 0.1, 0.5, 1];
const MOST_GENERA = 3;
const MOST_FAMILIES = 2;
const IN_BASIS = ["fusion_from_same_class"]; // said where the figures are, and nobody's fault

/** Show the parts that do not depend on the setting. */
export function showAbout(answer) {
  by("result").classList.toggle("unfamiliar", isUnfamiliar(answer));
  const warnings = answer.warnings.filter(({ code }) => !IN_BASIS.includes(code));
  by("warnings").replaceChildren(...warnings.map((warning) => {
    const text = words.warnings[warning.code]?.(answer.query.images);
    const item = element("li", "", text ?? warning.detail);
    if (!text) item.lang = "en";
    return item;
  }));
}

/**
 * Show the set at one stop of the dial.
 *
 * `results` are classes, best first, with `in_set`; `stop` has figures that hold if the answer is
 * `calibrated`; `action` creates the control of a member's card, or null; `compare` is called with a
 * member to compare the photo with.
 */
export function showSet(answer, results, stop, { action, compare }) {
  const members = results.filter((result) => result.in_set);
  by("result").dataset.k = String(stop.k);
  by("result").dataset.size = String(members.length);
  showVerdict(answer, members, stop);
  by("rollup").replaceChildren(...groups(members).map(chip));
  showMembers(members, action, compare);
  showDetails(answer, results, members.length, stop);
}

/** The genera and families of the set, unless all species are of one genus: the verdict names it. */
function groups(members) {
  const all = rollUp(members);
  const genera = all.filter((group) => group.rank === "genus").slice(0, MOST_GENERA);
  if (genera.some((group) => group.covers_set)) return [];
  return [...genera, ...all.filter((group) => group.rank === "family").slice(0, MOST_FAMILIES)];
}

function chip(group) {
  const item = element("li", group.covers_set ? "covers" : "");
  const name = element("em", "", group.name);
  name.lang = "la";
  item.append(element("span", "rank", words[group.rank]), name);
  return item;
}

function showMembers(members, action, compare) {
  const pictured = members.some((member) => member.taxon.thumbnail);
  const cards = members.map((member) => speciesCard(member, pictured, { control: action(member), open: () => compare(member) }));
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

function showDetails(answer, results, size, stop) {
  by("bars").replaceChildren(...results.slice(0, size + MOST_BELOW).map(bar));
  showThreshold(stop.lambda);
  const figures = [[words.threshold, number(stop.lambda, { maximumSignificantDigits: 6 })]];
  if (answer.set.calibrated && !isUnfamiliar(answer)) {
    const [{ expected_size: mean, hit_rate: hits }, images] = [stop, answer.query.images];
    figures.push([words.wanted, fixed(stop.k, Number.isInteger(10 * stop.k) ? 1 : 2)]);
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
