"""The part of a run that a head on kept features takes: solve, choose on val, write the results.

Each weight decay is a row of ``metrics.csv``, where a run in small steps has one for each epoch.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from florilege.progress import progress
from florilege.training.frozen.feature_store import Features
from florilege.training.frozen.features import HeadOnFeatures
from florilege.training.frozen.head_solver import Candidate, choose, decays_of, solutions
from florilege.training.loop import history
from florilege.training.loop.checkpoint import save_weights
from florilege.training.loop.training_loop import Run


def search(run: Run, train: Features, val: Features) -> None:
    """Solve for the head of a run with every weight decay, keep the best, and write the run."""
    head, position = run.trained.network, run.position
    assert isinstance(head, HeadOnFeatures)
    candidates, rows = list[Candidate](), list[history.Row]()
    run.clock = time.monotonic()
    decays = decays_of(run.config.optimiser)
    with ExitStack() as stack:
        append = stack.enter_context(history.events(run.folder, 0))
        advance = stack.enter_context(progress(len(decays), "training the head"))
        for candidate in solutions(run.config, head, run.objective, train, val):
            candidates.append(candidate)
            run.count_time()
            position.epoch, position.step = len(candidates), len(candidates)
            position.loss_sum, position.examples = candidate.train_loss, 1
            row = history.epoch_row(
                position, candidate.validation, weight_decay=candidate.weight_decay
            )
            rows.append(row)
            append(row)
            advance()
            run.say(history.epoch_line(row, epochs=len(decays), better=False))
    choice, rises = choose(candidates, val)
    best = candidates[choice]
    head.load_state_dict(best.state)
    position.history = [{**row, history.CHOICE: int(row is rows[choice])} for row in rows]
    position.best_score, position.best_epoch = best.validation.score, choice + 1
    position.loss_sum, position.examples = 0.0, 0
    run.sums.zero_()
    run.record_photos()  # before there are weights that could be exported
    save_weights(run.folder.best, run.state())
    history.write_metrics(run.folder, position.history)
    run.save()
    for line in _notes(candidates, choice, rises=rises):
        run.say(line)


def _notes(candidates: Sequence[Candidate], choice: int, *, rises: bool) -> Iterator[str]:
    """What was chosen, for the user."""
    decay = candidates[choice].weight_decay
    if len(candidates) > 1:
        yield f"weight decay {decay:g} is best on val"
    if rises:
        largest = choice == 0
        which, beyond = ("larger", 10 * decay / 3) if largest else ("smaller", decay / 3)
        yield (
            f"warning: a {which} weight decay than those tried may be better still: `florilege "
            f"train` takes it with --set optimiser.weight_decay={beyond:.2g}"
        )
