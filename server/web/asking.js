// Requests to the server. Every failure is thrown as a problem: an object with a `code`.
import { by, english, words } from "./page.js";

const SAME = { queue_timeout: "overloaded" };

/** The content of an address; throws the server's problem, or one for any other failure. */
export async function ask(path, options) {
  const response = await fetch(path, options).catch((error) => {
    throw { code: error.name === "AbortError" ? "timeout" : navigator.onLine ? "unreachable" : "offline" };
  });
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
  if (status === 429) return "too_many";
  if (status === 401 || status === 403 || status === 407) return "forbidden";
  return status >= 500 ? "gateway" : "not_ours";
}

/** Show a problem on the page; `again` is called to retry, if that may help. */
export function showProblem(problem, again) {
  if (typeof problem?.code !== "string") console.error(problem);
  const { code = "unknown", title, detail, instance, retryable = true, status } = problem ?? {};
  const texts = words.problems[SAME[code] ?? code];
  const [heading, advice] = texts ?? [title ?? words.problems.unknown[0], detail ?? ""];
  by("problem-title").textContent = heading;
  by("problem-advice").textContent = advice;
  const ours = texts && detail && english; // the server speaks English
  by("problem-detail").textContent = ours ? detail : instance || !status ? "" : words.status(status);
  by("problem-id").textContent = instance ?? "";
  by("problem-id").parentElement.hidden = !instance;
  by("again").hidden = !again || !retryable || code === "body_too_large";
  by("again").onclick = again;
  by("problem").hidden = false;
  by("problem").scrollIntoView({ block: "nearest" });
}
