// What the pages ask of the server, the only module that does. The offline page has another one with
// the same exports. Every failure is thrown as a problem: an object with a `code`.
import { shrink } from "./shrink.js";

/** The photo as it is sent. */
export const prepare = (photo) => shrink(photo);

/**
 * The answer for the photos of one plant; `query` has the parameters of POST /v1/identify.
 *
 * `onProgress` is called with the share of the work that is done, where that is known.
 */
export async function identify(photos, query, { onProgress = () => {}, signal } = {}) {
  const form = new FormData();
  for (const photo of photos) {
    const content = await photo.arrayBuffer().catch(() => { throw { code: "unreadable_file" }; });
    form.append("images", new Blob([content], { type: photo.type }), photo.name);
  }
  return answerOf(await upload(`v1/identify?${parameters(query)}`, form, onProgress, signal));
}

/** Send a form; unlike fetch, this tells how much of it has left. */
function upload(path, form, onProgress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const fail = () => reject({ code: signal?.aborted ? "timeout" : navigator.onLine ? "unreachable" : "offline" });
    request.open("POST", path);
    request.upload.onprogress = ({ loaded, total }) => onProgress(loaded / total);
    request.onerror = request.onabort = fail;
    request.onload = () => resolve(new Response(request.response, {
      status: request.status,
      headers: { "content-type": request.getResponseHeader("content-type") ?? "" },
    }));
    if (signal?.aborted) return fail();
    signal?.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}

/** The model card; `query` has the parameters of GET /v1/model. */
export const modelInfo = (query = {}) => ask(`v1/model?${parameters(query)}`);

/** The classes whose id or any name contains `q`, at most `limit` of them. */
export const listClasses = (query) => ask(`v1/classes?${parameters(query)}`);

/** A class with its reference pictures and those it is confused with. */
export const classInfo = (id) => ask(`v1/classes/${encodeURIComponent(id)}`);

/** Send feedback on an answer: request_id, class_id and consent. */
export const sendFeedback = (feedback) => ask("v1/feedback", {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(feedback),
});

const parameters = (query) =>
  new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null).map(([name, value]) => [name, String(value)]));

async function ask(path, options) {
  const response = await fetch(path, options).catch((error) => {
    throw { code: error.name === "AbortError" ? "timeout" : navigator.onLine ? "unreachable" : "offline" };
  });
  return answerOf(response);
}

async function answerOf(response) {
  const status = response.status;
  const content = await json(response);
  if (response.ok && content) return content;
  // A proxy answers in its own format, mostly HTML, which does not help a person.
  throw typeof content?.code === "string" ? content : { code: byStatus(status), status };
}

async function json(response) {
  if (!(response.headers.get("content-type") ?? "").includes("json")) return null;
  try {
    return await response.json();
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw { code: "unreachable" }; // it stopped in the middle of the answer
  }
}

function byStatus(status) {
  if (status === 413) return "body_too_large";
  if (status === 429) return "rate_limited";
  if (status === 401 || status === 403 || status === 407) return "forbidden";
  return status >= 500 ? "gateway" : "not_ours";
}
