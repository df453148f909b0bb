// Problems: objects with a `code`, shown on the page.
import { by, english, words } from "./page.js";

const SAME = { queue_timeout: "overloaded" };

/** Show a problem on the page; `again` is called to retry, if that may help; `note` is added. */
export function showProblem(problem, again, note = "") {
  if (typeof problem?.code !== "string") console.error(problem);
  const { code = "unknown", title, detail, instance, retryable = true, status } = problem ?? {};
  const texts = words.problems[SAME[code] ?? code];
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
