// Says on the page whether it is ready to work without a network, and makes it so.
import { element, number, words } from "../page.js";
import { openModel, watchModel } from "./service.js";

const line = element("p", "note offline");
line.id = "offline";
line.setAttribute("role", "status");

function say(text) {
  if (line.textContent !== text) line.textContent = text;
  line.hidden = text === "";
}

/** Let the browser keep the files of the page; whether it does. */
async function keepPage() {
  if (!navigator.serviceWorker) return false; // without https
  try {
    await navigator.serviceWorker.register("sw.js");
    await navigator.serviceWorker.ready;
    await navigator.storage?.persist?.(); // asks not to delete them when room is short
    return true;
  } catch {
    return false;
  }
}

const megabytes = (bytes) => number(bytes / 1e6, { maximumFractionDigits: 1 });

async function start() {
  document.querySelector("main").before(line);
  const page = keepPage();
  watchModel(async ({ loading, ready, problem }) => {
    if (loading) say(words.offline.loading(megabytes(loading.loaded), megabytes(loading.total)));
    if (problem) say(words.problems[problem.code]?.join(". ") ?? "");
    if (ready) say(ready.kept && (await page) ? words.offline.ready : words.offline.notKept);
  });
  openModel();
}

if (document.getElementById("file")) start(); // the page for photos, not those about the model
