// Feedback on what the photo shows, with one tap. The last feedback on an answer counts.
import { called } from "./cards.js";
import { button, by, words } from "./page.js";
import { problemTexts } from "./problems.js";
import { sendFeedback } from "./service.js";

const NOT_LISTED = "not_listed";
const NOT_AN_ORGANISM = "not_an_organism";

/** What the person said that the photo of an answer shows, by the id of that class. */
export function confirmedName(answer, classId) {
  if (classId === NOT_LISTED) return words.noneOfThese;
  if (classId === NOT_AN_ORGANISM) return words.notAnOrganism;
  const result = answer.results.find((one) => one.class_id === classId);
  return result ? called(result.taxon) : classId;
}

/**
 * Offer feedback on an answer; returns a function that creates the button of a member's card.
 *
 * `licence` is the licence of donated photos, null if the server keeps none. The consent box is
 * never ticked beforehand, and may be changed after the feedback too. `widen` shows the whole set
 * of the answer, to which "none of these" refers, or returns false if it is already shown.
 * `redraw` redraws the cards, `onKept` is called with the class that the server keeps.
 */
export function offerFeedback(answer, licence, { widen, redraw, onKept }) {
  let last = null;
  const tell = async ({ target }, ...choice) => {
    const kept = await send(answer, target, ...choice);
    if (kept) {
      last = [{ target }, ...choice];
      onKept(choice[0]);
    }
    return kept;
  };
  const offer = () => {
    say(licence ? words.feedbackUnless : words.feedback);
    by("result").classList.remove("told");
    by("others").replaceChildren(
      button("", words.noneOfThese, (event) => {
        if (widen()) say(words.widened);
        else tell(event, NOT_LISTED, words.noneOfThese);
      }),
      button("", words.notAnOrganism, (event) => tell(event, NOT_AN_ORGANISM, words.notAnOrganism)),
    );
  };
  by("consent").hidden = !licence;
  by("consent-text").textContent = words.consent(licence);
  by("consented").checked = false;
  by("consented").onchange = async ({ target }) => {
    if (last && !(await tell(...last))) target.checked = !target.checked;
  };
  by("change").onclick = () => { offer(); redraw(); };
  by("feedback").hidden = false;
  offer();
  return (result) => {
    const name = called(result.taxon);
    const node = button("this", words.thisIsIt, (event) => tell(event, result.class_id, name));
    node.setAttribute("aria-label", words.thisIsItOf(name));
    return node;
  };
}

/** Send it to the server; returns whether it is kept. */
async function send(answer, clicked, classId, name) {
  const consent = by("consented").checked;
  setBusy(true);
  say(words.sending);
  try {
    const { photos } = await sendFeedback({ request_id: answer.id, class_id: classId, consent });
    say(consent && photos === 0 ? words.photoGone : words.thanks(name));
    by("result").classList.add("told");
    clicked.classList.add("kept");
    clicked.textContent = `✓ ${words.kept}`;
    return true;
  } catch (problem) {
    setBusy(false);
    const known = ["answer_not_found", "rate_limited"].includes(problem.code);
    say(problemTexts(known ? problem.code : "feedback_not_stored").join(". "));
    by("feedback").scrollIntoView({ block: "nearest" });
    return false;
  } finally {
    by("consented").disabled = false;
  }
}

function setBusy(busy) {
  for (const one of document.querySelectorAll("#result .this, #others button, #consented")) one.disabled = busy;
}

const say = (text) => { by("feedback-said").textContent = text; };
