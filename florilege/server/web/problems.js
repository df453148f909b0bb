// Problems: objects with a `code`, shown on the page.
import { by, english, words } from "./page.js";

const MISMATCH = [ // what only a page of another version asks for
  "malformed_request", "unknown_parameter", "invalid_parameter", "not_found", "class_not_found",
  "thumbnail_not_found", "method_not_allowed", "unknown_class", "idempotency_key_reused",
  "headers_too_large",
];
const NOT_OFFERED = ["no_features", "too_many_tiles", "not_offered_offline"];
const SAME = {
  queue_timeout: "overloaded",
  ...Object.fromEntries(MISMATCH.map((code) => [code, "mismatch"])),
  ...Object.fromEntries(NOT_OFFERED.map((code) => [code, "not_offered"])),
};

/** What to say of a problem: a heading and an advice; undefined if it has no words. */
export const problemTexts = (code) => words.problems[SAME[code] ?? code];

/** Show a problem on the page; `again` is called to retry, if that may help; `note` is added. */
export function showProblem(problem, again, note = "") {
  if (typeof problem?.code !== "string") console.error(problem);
  const { code = "unknown", title, detail, instance, retryable = true, status } = problem ?? {};
  const texts = problemTexts(code);
  const [heading, advice] = texts ?? [title ?? words.problems.unknown[0], detail ?? ""];
  by("problem-title").textContent = heading;
  by("problem-advice").textContent = note || advice;
  const ours = texts && detail && english; // the server speaks English
  by("problem-detail").textContent = ours ? detail : instance || !status ? "" : words.status(status);
  by("problem-id").textContent = instance ?? "";
  by("problem-id").parentElement.hidden = !instance;
  by("again").hidden = !again || !retryable || code === "body_too_large";
  by("again").onclick = again;
  by("problem").hidden = false;
  by("problem").scrollIntoView({ block: "nearest" });
}
