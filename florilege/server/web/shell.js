// The page as an app: kept for use without a network, updated when asked, and offered to be installed.
import { button, by, element, words } from "./page.js";

let register = null;
let install = null; // the browser's own question, to be asked on a click

window.addEventListener("beforeinstallprompt", (event) => {
  event.preventDefault();
  install = event;
  offerInstallation();
});

/** Let the browser keep the files of the page; whether it does. */
export function keepPage() {
  register ??= start().catch(() => false);
  return register;
}

async function start() {
  if (!navigator.serviceWorker) return false; // without https
  const registration = await navigator.serviceWorker.register("sw.js");
  watch(registration);
  await navigator.serviceWorker.ready;
  return true;
}

/** Offer a new version of the page once it is complete; it replaces the old one in all tabs. */
function watch(registration) {
  const wait = (worker) => worker?.addEventListener("statechange", () => offer(registration));
  registration.addEventListener("updatefound", () => wait(registration.installing));
  wait(registration.installing);
  offer(registration);
  let controller = navigator.serviceWorker.controller;
  navigator.serviceWorker.addEventListener("controllerchange", () => {
    if (controller) location.reload(); // not for the first one
    controller = navigator.serviceWorker.controller;
  });
}

function offer({ waiting }) {
  if (!waiting || !navigator.serviceWorker.controller) return;
  announce(words.newPage, button("", words.load, () => waiting.postMessage("update")));
}

/** Say something above all, with a control; it goes away with a tap. */
export function announce(text, control) {
  const away = button("away", "×", () => { by("news").hidden = true; });
  away.setAttribute("aria-label", words.close);
  by("news").replaceChildren(element("span", "", text), ...[control].filter(Boolean), away);
  by("news").hidden = false;
}

/** Ask the browser not to delete what the page keeps, when room is short. */
export const keepStorage = () => navigator.storage?.persist?.().catch(() => false);

/** How to put the page on the home screen: Safari deletes what pages keep, but not there. */
export function offerInstallation() {
  const installed = window.matchMedia("(display-mode: standalone)").matches || navigator.standalone;
  const apple = navigator.standalone === false;
  by("install").hidden = Boolean(installed) || !(install || apple);
  by("install").replaceChildren(element("span", "", apple ? words.homeApple : words.homeScreen),
    ...(install ? [button("", words.install, () => install.prompt())] : []));
}
