// The answer in words: which species, what they have in common, and how often such answers were right.
import { called } from "./cards.js";
import { by, element, list, number, percentage, words } from "./page.js";
import { commonGroup } from "./sets.js";

const MOST_NAMES = 3; // in the heading; one more is named rather than counted
const MOST_NAMES_SAID = 5;
const SURE = 0.95; // share of right answers from which what all species have in common is sure

/** Whether the photo looks like nothing that the model knows: no figure holds for it. */
export const isUnfamiliar = (answer) => ["suspect", "rejected"].includes(answer.rejection.verdict);

/** How often answers like one stop of the dial were right: those of its size, else those of all. */
export const rateOf = (answer, stop) =>
  (isUnfamiliar(answer) || stop.size === 0 ? null : stop.hit_rate_at_size ?? stop.hit_rate);

/** A share for people: never 100 %, and no digit that promises too much. */
export function shareText(share) {
  return share > 0.99 && share < 1 ? words.over(percentage(0.99)) : percentage(Math.min(share, 0.99));
}

/** Names in a sentence, of many the first ones: a, b or 3 more. */
export function namesText(members, most = MOST_NAMES, type = "disjunction") {
  const shown = members.length <= most + 1 ? members : members.slice(0, most);
  const names = shown.map((member) => called(member.taxon));
  if (members.length > shown.length) names.push(words.further(members.length - shown.length));
  return list(names, type);
}

/** Show the words for the members of the set at one stop. */
export function showVerdict(answer, members, stop) {
  const unfamiliar = isUnfamiliar(answer);
  by("answer-title").replaceChildren(...heading(members, unfamiliar));
  showCommon(members, unfamiliar ? null : rateOf(answer, stop));
  by("lead").hidden = unfamiliar || members.length < 2;
  const rate = rateOf(answer, stop);
  by("odds").textContent = unfamiliar ? words.unfamiliarText : members.length === 0 ? words.oddsEmpty : odds(stop, rate);
  by("similar").hidden = !unfamiliar || members.length === 0;
  by("basis").hidden = !rate;
  if (rate) by("basis").textContent = words.basis(counted(answer), words.photoUse[rate.selection_split]);
  announce(members, unfamiliar);
}

function heading(members, unfamiliar) {
  if (unfamiliar) return [words.unfamiliar];
  if (members.length === 0) return [words.none];
  const latin = members.every((member) => !member.taxon.common_names.length);
  const name = element(latin ? "em" : "span", "", capital(namesText(members)));
  if (latin) name.lang = "la";
  return [name];
}

const capital = (text) => text.charAt(0).toLocaleUpperCase() + text.slice(1);

/** What all species have in common, as far as it says more than their names. */
function showCommon(members, rate) {
  const group = commonGroup(members);
  // No name holds this character: the sentence is cut there, and an element with the name put
  // between.
  const mark = "\0";
  const sentence = !group ? words.cannotTell : (rate?.value >= SURE ? words.surely : words.likely)(mark);
  const [before, after] = sentence.split(mark);
  by("lead").replaceChildren(before);
  if (!group) return;
  const name = element("em", "", group.name);
  name.lang = "la";
  by("lead").append(name, after);
}

/** The rate in words. Only what is promised is said of new photos: a count promises nothing. */
function odds(stop, rate) {
  if (!rate) return words.oddsUnknown;
  const [hits, rows] = [number(Math.round(rate.value * rate.rows)), number(rate.rows)];
  if (rate === stop.hit_rate_at_size) return words.oddsOfSize(stop.size, hits, rows);
  const promise = stop.least_coverage == null ? [] : [words.promise(number(Math.floor(100 * stop.least_coverage)))];
  return [words.odds(hits, rows), ...promise].join(" ");
}

/** What was counted: photos, or groups of them and whether these are of one plant. */
function counted({ query, warnings }) {
  if (query.images < 2) return words.onPhotos;
  const sameSpecies = warnings.some(({ code }) => code === "fusion_from_same_class");
  return (sameSpecies ? words.onSpecies : words.onGroups)(query.images);
}

/** Announce the set to screen readers: its species, how often it is right, and all warnings. */
function announce(members, unfamiliar) {
  const names = namesText(members, MOST_NAMES_SAID, unfamiliar ? "conjunction" : "disjunction");
  const title = by("answer-title").textContent;
  const similar = unfamiliar && members.length ? [`${by("similar").textContent}: ${names}.`] : [];
  const lead = by("lead").hidden ? [] : [by("lead").textContent];
  const said = unfamiliar || !members.length ? title : capital(names);
  const warnings = [...by("warnings").children].map((item) => item.textContent);
  by("said").textContent = [`${said}.`, ...lead, by("odds").textContent, ...similar, ...warnings].join(" ");
}
