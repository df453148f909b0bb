// What the page asks, answered on the device: the same exports as the service.js of the server.
import { taxonOf } from "./prediction.js";
import { json } from "./downloads.js";

const waiting = new Map(); // requests to the worker by id
const listeners = new Set();
let worker = null;
let last = 0;

/** Call a function with each message about the model: {loading}, {ready} or {problem}. */
export function watchModel(listener) {
  listeners.add(listener);
}

/** Load the model, if it is not loaded yet. */
export function openModel() {
  post({});
}

/** A photo stays as it is, because it stays here. */
export const prepare = async (photo) => photo;

/**
 * The answer for the photos of one plant, as POST /v1/identify gives it.
 *
 * `query` has the parameters of that route. Throws a problem: an object with a `code`.
 */
export function identify(photos, query, { onProgress = () => {}, signal } = {}) {
  const languages = query.lang ? [query.lang] : [...navigator.languages];
  const given = Object.fromEntries(Object.entries(query).filter(([, value]) => value !== ""));
  return new Promise((resolve, reject) => {
    const id = post({ photos: [...photos], query: { ...given, languages } }, { resolve, reject, onProgress });
    signal?.addEventListener("abort", () => {
      waiting.delete(id);
      reject({ code: "timeout" });
    });
  });
}

/** The model card, as GET /v1/model gives it. */
export const modelInfo = () => json("card.json");

function post(message, request) {
  worker ??= startWorker();
  const id = ++last;
  if (request) waiting.set(id, request);
  worker.postMessage({ id, ...message });
  return id;
}

function startWorker() {
  const started = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  started.onmessage = ({ data }) => {
    const request = waiting.get(data.id);
    if (data.progress !== undefined) request?.onProgress(data.progress);
    else if (data.answer) request?.resolve(data.answer);
    else if (data.problem && request) request.reject(data.problem);
    if (data.answer || data.problem) waiting.delete(data.id);
    if (data.loading || data.ready || data.problem) listeners.forEach((listener) => listener(data));
  };
  started.onerror = () => { // its modules could not be loaded
    worker = null;
    const problem = { code: "download_incomplete" };
    waiting.forEach((request) => request.reject(problem));
    waiting.clear();
    listeners.forEach((listener) => listener({ problem }));
  };
  return started;
}

// Species ------------------------------------------------------------------------------------------

let classes = null;

/** The classes whose id or any name contains `q`, as GET /v1/classes gives them. */
export async function listClasses({ q = "", limit = Infinity } = {}) {
  classes ??= (await json("pack.json")).classes;
  const part = q.toLowerCase();
  const matches = classes.filter((one) => namesOf(one).some((name) => name.toLowerCase().includes(part)));
  return {
    total: matches.length,
    classes: matches.slice(0, limit).map(entryOf),
  };
}

/** A class with its pictures and those it is confused with, as GET /v1/classes/{id} gives it. */
export async function classInfo(id) {
  classes ??= (await json("pack.json")).classes;
  const one = classes.find((each) => each.id === id);
  return { ...entryOf(one), pictures: one.pictures, look_alikes: one.look_alikes.map((place) => entryOf(classes[place])) };
}

const entryOf = (one) => ({
  class_id: one.id, taxon: taxonOf(one, navigator.languages), training_count: one.training_count,
});

/** There is nobody to receive feedback here; the model card says so. */
export const sendFeedback = () => Promise.reject({ code: "not_offered_offline" });

const namesOf = (one) =>
  [one.id, one.scientific_name, one.genus ?? "", one.family ?? "", ...Object.values(one.common_names).flat()];

