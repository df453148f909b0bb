// What the person says that the photo shows: kept in the notebook, and sent where the server asks for it.
import { called } from "./cards.js";
import { button, by, day, element, words } from "./page.js";
import { NOT_AN_ORGANISM, NOT_LISTED, UNDECIDED, confirmedName } from "./notebook.js";
import { problemTexts } from "./problems.js";
import { sendFeedback } from "./service.js";

const FIELDS = ["date", "place", "note"];

/**
 * Offer to decide; returns a function that creates the control of a member's card.
 *
 * `entry` holds what was said before; `keep` keeps fields of it. `feedback` says whether the server
 * takes it, with the `licence` of donated photos, null if it keeps none. The consent box is never
 * ticked beforehand, and may be changed later. `widen` shows the whole set of the answer, to which
 * "none of these" refers, or returns false if it is already shown; `redraw` redraws the cards;
 * `photo` gives the photo of the plant.
 */
export function offerDecision(answer, { entry, keep, feedback, licence, photo, widen, redraw }) {
  let chosen = entry.confirmed ?? null;
  const choose = async (classId) => {
    chosen = classId;
    await keep({ confirmed: classId });
    offer();
    redraw();
    by("change").focus();
    if (feedback && classId !== UNDECIDED) await send(answer, classId);
  };
  const offer = () => {
    by("result").classList.toggle("told", chosen !== null);
    by("change").hidden = by("fields").hidden = by("share").hidden = chosen === null;
    by("others").hidden = chosen !== null;
    by("resend").hidden = true;
    say(chosen !== null ? words.confirmed(confirmedName(answer, chosen))
      : !feedback ? words.decide : licence ? words.feedbackUnless : words.feedback);
    by("others").replaceChildren(...[
      answer.set.size > 1 && button("", words.undecided(answer.set.size), () => choose(UNDECIDED)),
      button("", words.noneOfThese, () => (widen() ? say(words.widened) : choose(NOT_LISTED))),
      button("", words.notAnOrganism, () => choose(NOT_AN_ORGANISM)),
    ].filter(Boolean));
  };
  for (const name of FIELDS) {
    by(name).value = entry[name] ?? "";
    by(name).onchange = () => keep({ [name]: by(name).value });
  }
  by("consent").hidden = !feedback || !licence;
  by("consent-text").textContent = words.consent(licence);
  by("consented").checked = false;
  by("consented").onchange = async ({ target }) => {
    if (chosen && chosen !== UNDECIDED && !(await send(answer, chosen))) target.checked = !target.checked;
  };
  by("resend").onclick = () => send(answer, chosen);
  by("share").onclick = async () => {
    const { sharePicture } = await import("./card-picture.js");
    const isNamed = answer.results.some((one) => one.class_id === chosen);
    const facts = [by("date").value && day(by("date").value), by("place").value].filter(Boolean).join(" · ");
    await sharePicture(photo(), { decision: isNamed ? confirmedName(answer, chosen) : "", facts });
  };
  by("change").onclick = () => { chosen = null; offer(); redraw(); };
  offer();
  return (result) => {
    const name = called(result.taxon);
    if (chosen === result.class_id) return element("strong", "kept", `✓ ${words.thisIsIt}`);
    if (chosen !== null) return null;
    const node = button("this", words.thisIsIt, () => choose(result.class_id));
    node.setAttribute("aria-label", words.thisIsItOf(name));
    return node;
  };
}

/** Send it to the server; returns whether the server keeps it. */
async function send(answer, classId) {
  const consent = by("consented").checked;
  setBusy(true);
  by("resend").hidden = true;
  say(words.sending);
  try {
    const { photos } = await sendFeedback({ request_id: answer.id, class_id: classId, consent });
    say(consent && photos === 0 ? words.photoGone : words.thanks(confirmedName(answer, classId)));
    return true;
  } catch (problem) {
    const known = ["answer_not_found", "rate_limited"].includes(problem.code);
    say(problemTexts(known ? problem.code : "feedback_not_stored").join(". "));
    by("resend").hidden = false;
    by("decision").scrollIntoView({ block: "nearest" });
    return false;
  } finally {
    setBusy(false);
  }
}

function setBusy(busy) {
  for (const id of ["consented", "change", "resend"]) by(id).disabled = busy;
}

const say = (text) => { by("feedback-said").textContent = text; };
