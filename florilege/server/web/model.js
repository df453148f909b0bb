// The model card as a page: which model answers, and how often its sets were right.
import { by, counted, day, element, fixed, number, percent, range, speak, words } from "./page.js";
import { showProblem } from "./problems.js";
import { modelInfo } from "./service.js";
import { averageK } from "./sets.js";

const SHOWN = [1, 1.5, 2, 3, 5, 7, 10, 15, 20];

async function load() {
  by("problem").hidden = true;
  try {
    show(await modelInfo());
  } catch (problem) {
    showProblem(problem, load);
  }
}

function show(card) {
  const { model, classes, default_k: k, lists = [] } = card;
  by("model").textContent = words.modelLine(model.name, model.version, classes);
  const rule = averageK(card);
  const parts = [...sets(rule.points)];
  if (rule.several.length) parts.push(...several(rule, k));
  if (lists.length) parts.push(...places(lists));
  by("card").replaceChildren(...parts, ...limits(card.limits), ...about(card));
}

function sets(points) {
  const { hit_rate: hits, expected_size: size } = points[0];
  const title = element("h2", "", words.setsTitle);
  if (!hits) return [title, element("p", "", words.setsUnknown)];
  const rows = points.filter((point) => SHOWN.includes(point.k)).map((point) => [
    number(point.k), ...figures(point),
  ]);
  const text = words.setsText(counted(size), size.split, words.photoUse[size.selection_split]);
  return [title, element("p", "", text), table([words.wanted, words.meanSize, words.hitRate, words.confidence], rows)];
}

function several(rule, k) {
  const rows = rule.several.flatMap(({ images, points }) =>
    points.filter((point) => point.k === k).map((point) => [number(images), ...figures(point)]));
  if (!rows.length) return [];
  return [
    element("h2", "", words.severalTitle),
    element("p", "", words.severalText(k)),
    table([words.photoCount, words.meanSize, words.hitRate, words.confidence], rows),
  ];
}

/** Mean size, hit rate and its interval, as cells. */
function figures({ expected_size: size, hit_rate: hits }) {
  if (!hits) return [fixed(size.value, 2), "", ""];
  const interval = hits.ci95 ? range(hits.ci95, percent) : "";
  return [fixed(size.value, 2), percent(hits.value), interval];
}

function places(lists) {
  const rows = lists.map((list) => [list.name, number(list.classes), list.calibrated ? words.yes : words.no]);
  return [
    element("h2", "", words.listsTitle),
    table([words.listName, words.listSpecies, words.listCalibrated], rows),
  ];
}

function limits({ max_images: photos, max_body_bytes: bytes, max_pixels: pixels }) {
  const round = { maximumFractionDigits: 1 };
  const text = words.limits(photos, number(bytes / 2 ** 20, round), number(pixels / 1e6, round));
  return [element("h2", "", words.limitsTitle), element("p", "", text)];
}

function about({ model, created, classes, image_size: side }) {
  const facts = [
    [words.model, model.name], [words.version, model.version],
    [words.listSpecies, number(classes)],
    [words.imageSize, words.pixels(number(side))],
    ...(created ? [[words.created, day(created)]] : []),
    [words.calibration, model.calibration_id], [words.bundle, model.bundle_sha256],
  ];
  const list = element("dl", "figures");
  list.append(...facts.flatMap(([name, text]) => [element("dt", "", name), element("dd", "", text)]));
  return [element("h2", "", words.aboutTitle), list];
}

function table(headings, rows) {
  const node = element("table");
  const [head, body] = [element("thead"), element("tbody")];
  head.append(row(headings, "th"));
  body.append(...rows.map((cells) => row(cells, "td")));
  node.append(head, body);
  return node;
}

function row(cells, tag) {
  const node = element("tr");
  node.append(...cells.map((cell) => element(tag, "", cell)));
  return node;
}

speak();
document.title = `${words.modelTitle} · Florilege`;
load();
