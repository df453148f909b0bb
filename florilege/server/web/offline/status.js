// Says on the page whether it is ready to work without a network, and makes it so.
import { button, element, number, words } from "../page.js";
import { keepPage, keepStorage } from "../shell.js";
import { openModel, watchModel } from "./service.js";

const line = element("p", "private");
line.id = "offline";
line.setAttribute("role", "status");

/** Show a sentence, as a note if somebody has to do something, and an element after it. */
function say(text, { note = false, after = null } = {}) {
  if (line.firstChild?.textContent === text) return; // announced once
  line.className = note ? "note" : "private";
  line.replaceChildren(element("span", "", text));
  if (after) line.append(" ", after);
}

function showProgress({ loaded, total }) {
  const text = words.offline.loading(number(total / 1e6, { maximumFractionDigits: 1 }));
  const bar = line.querySelector("progress") ?? element("progress");
  bar.value = loaded / total;
  bar.setAttribute("aria-label", text);
  say(text, { after: bar });
}

function showProblem({ code, detail }) {
  const [heading, advice] = words.problems[code] ?? [words.problems.unknown[0], detail ?? ""];
  say(`${heading}. ${advice}`, { note: true, after: button("", words.again, openModel) });
}

function start() {
  const notice = document.getElementById("private"); // of the server's page
  if (notice) {
    notice.hidden = true;
    notice.before(line);
  } else document.querySelector("main").before(line);
  const page = keepPage();
  keepStorage();
  watchModel(async ({ loading, ready, problem }) => {
    if (loading) showProgress(loading);
    if (problem) showProblem(problem);
    if (ready) say(ready.kept && (await page) ? words.offline.ready : words.offline.notKept);
  });
  openModel();
}

if (document.getElementById("file")) start(); // the page for photos, not those about the model
