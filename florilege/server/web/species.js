// The species the model knows. The server searches and counts; the page shows the first ones.
import { speciesCard } from "./cards.js";
import { by, element, speak, words } from "./page.js";
import { showProblem } from "./problems.js";
import { listClasses } from "./service.js";

const FIRST = 60;
const MORE = 4; // times as many
const PAUSE_MS = 200;

const state = { limit: FIRST, asked: 0, timer: 0 };

async function load() {
  const asked = ++state.asked;
  by("problem").hidden = true;
  try {
    const list = await listClasses({ q: by("q").value.trim(), limit: state.limit });
    if (asked === state.asked) show(list);
  } catch (problem) {
    if (asked === state.asked) showProblem(problem, load);
  }
}

function show({ total, classes }) {
  by("found").textContent = total === 0 ? words.foundNone : words.found(total);
  const pictured = classes.some((one) => one.taxon.thumbnail);
  by("list").classList.toggle("pictured", pictured);
  by("list").replaceChildren(...classes.map((one) => entry(one, pictured)));
  by("show-more").hidden = classes.length >= total;
}

function entry(one, pictured) {
  const card = speciesCard(one, pictured, { level: "h2" });
  const { genus, family } = one.taxon;
  const facts = [];
  const ranks = one.taxon.scientific_name.startsWith(`${genus} `) ? [family] : [genus, family];
  if (ranks.some(Boolean)) facts.push(ranks.filter(Boolean).join(", "));
  if (one.training_count !== null) facts.push(words.training(one.training_count));
  card.querySelector(".names").append(...facts.map((fact) => element("p", "fact", fact)));
  return card;
}

speak();
document.title = `${words.speciesTitle} · Florilege`;
by("q").addEventListener("input", () => {
  clearTimeout(state.timer);
  state.timer = setTimeout(() => { state.limit = FIRST; load(); }, PAUSE_MS);
});
by("more").addEventListener("click", () => { state.limit *= MORE; load(); });
load();
