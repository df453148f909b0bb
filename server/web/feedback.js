// What a person says the photo showed. One tap; the last word on an answer counts.
import { ask } from "./asking.js";
import { called } from "./cards.js";
import { button, by, words } from "./page.js";

const NOT_LISTED = "not_listed";
const NOT_AN_ORGANISM = "not_an_organism";

/**
 * Offer feedback on an answer; returns what makes the button of a member's card.
 *
 * `licence` is that under which people may give the photo, null where the server keeps none: a box
 * that is never ticked beforehand, and may be ticked or cleared after the answer too. `widen` shows the whole set that was
 * answered where less is shown, else returns false: "none of these" is said of that whole set.
 * `redraw` makes the cards anew.
 */
export function offerFeedback(answer, licence, widen, redraw) {
  let last = null;
  const tell = async ({ target }, ...said) => {
    const kept = await send(answer, target, ...said);
    if (kept) last = [{ target }, ...said];
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
    const made = button("this", words.thisIsIt, (event) => tell(event, result.class_id, name));
    made.setAttribute("aria-label", words.thisIsItOf(name));
    return made;
  };
}

/** Say it to the server; returns whether it is kept. */
async function send(answer, pressed, classId, said) {
  const consent = by("consented").checked;
  setBusy(true);
  say(words.sending);
  try {
    const { photos } = await ask("v1/feedback", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ request_id: answer.id, class_id: classId, consent }),
    });
    say(consent && photos === 0 ? words.photoGone : words.thanks(said));
    by("result").classList.add("told");
    pressed.classList.add("kept");
    pressed.textContent = `✓ ${words.kept}`;
    return true;
  } catch (problem) {
    setBusy(false);
    say(problem.code === "answer_not_found" ? words.forgotten : words.notStored);
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
