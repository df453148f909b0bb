r"""Solve for a head on kept features, for every weight decay of a grid; val chooses one.

A head on features is a small and mostly convex problem. L-BFGS over all photos at once solves it
to the end, so that a solution depends on the weight decay alone, not on a rate or on when it stops:

.. math:: \min_{W, b}\; \ell(W, b) + \frac{\lambda}{2} \lVert W \rVert^2

Every solution starts from the same head: one that begins where a large decay has drawn all classes
together may stay there, with a cosine head for one.
"""

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from florilege.calibration.intervals import effective_rows
from florilege.calibration.photo_groups import observation_numbers
from florilege.calibration.settings import TEMPERATURES
from florilege.errors import UsageError
from florilege.models.heads import CosineHead, by_head, exact_float32
from florilege.terminal import progress
from florilege.training.batches import ROWS_AT_ONCE, Features
from florilege.training.config import Metric, OptimiserConfig, TrainConfig
from florilege.training.frozen import HeadOnFeatures, threads_for
from florilege.training.loop import Run
from florilege.training.loop.evaluation import (
    CHOICE,
    Floats,
    Row,
    Validation,
    ValidationMeter,
    epoch_line,
    epoch_row,
    events,
)
from florilege.training.network import Objective

DECAYS: Final = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
"""What val compares for up to ``_MANY_CLASSES`` classes; beyond, each is smaller."""
WIDER: Final = (30.0, 10.0, *DECAYS, 0.003, 0.001, 0.0003)
"""The grid with what it goes on to beyond an end, for as long as accuracy rises there."""
_MANY_CLASSES: Final = 100
# Each of C classes has a C-th of the photos to set against the decay. Of heads of 1,000 classes and
# ten photos each, 37 % of the sets on val were right at 0.01, over several sizes, and 43 % at
# 0.0003; with losses that trust a label less, 11 % and 43 %.
_POWER_OF_CLASSES: Final = 1.5
# An interruption of L-BFGS costs a pass in ten; a loss with a memory moves on only there.
_STEPS: Final = 10
_HISTORY: Final = 10
# Ten steps that lower the loss by less than this share do not change the sets any more.
_TOLERANCE: Final = 1e-5
# Only to compare log-losses: some losses give logits five times too large, or too small.
_WIDE_TEMPERATURES: Final = tuple(2 ** (step / 2) for step in range(-8, 9))
_SHIFT: Final = 30.0
# With a whole one, wrong labels in val, whose log-loss asks for flat heads, cost twice as much.
_LEVEL: Final = 0.5
_JUST_ABOVE: Final = 1 + 1e-6  # a difference on a single photo equals its error, but for rounding
_IN_MEMORY_BYTES: Final = 2**31  # of features; more are read and scaled again in every pass

Block = tuple[Tensor, Tensor, Tensor]
"""Scaled features ``(rows, dimensions)``, labels and rows of the split, both int64 ``(rows,)``."""


def decays_of(
    optimiser: OptimiserConfig, classes: int = _MANY_CLASSES, grid: Sequence[float] = DECAYS
) -> tuple[float, ...]:
    """The weight decays that val compares, the largest first: the grid unless one is set.

    Example:
        >>> decays_of(OptimiserConfig(name="lbfgs", weight_decay=None), 1000)
        (0.095, 0.032, 0.0095, 0.0032, 0.00095, 0.00032)
    """
    if optimiser.weight_decay is not None:
        return (optimiser.weight_decay,)
    share = min(1.0, _MANY_CLASSES / classes) ** _POWER_OF_CLASSES
    return tuple(float(f"{share * decay:.2g}") for decay in grid)


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """The solution for a weight decay, and what it does on val."""

    weight_decay: float
    state: Mapping[str, Tensor]  # of the head on features
    train_loss: float  # without the decay
    validation: Validation  # at the temperature that suits best, which a calibration finds later
    hits: Floats  # of each photo of val, over several K, at the same temperature
    log_loss: float  # on val, at the temperature that suits best


class _HeadProblem:
    """The loss of a head over all photos of `train`, as a function that does not change.

    Each evaluation draws the same noise and starts from the same memory of the loss, so that a line
    search compares like with like. The memory of a loss such as ``role`` moves on every few steps.
    """

    def __init__(
        self, head: HeadOnFeatures, objective: Objective, train: Features, *, seed: int
    ) -> None:
        self.head, self.objective, self.seed = head.train(), objective, seed
        self.train, self.passes, self.loss = train, 0, 0.0
        self.first_memory = self.memory = copy.deepcopy(objective.loss_fn.state_dict())
        starts = range(0, len(train), ROWS_AT_ONCE)
        labels = torch.from_numpy(train.split.labels)
        whole = [labels[start : start + ROWS_AT_ONCE] for start in starts]
        self.shares = objective.shares(whole, soft=False)
        fits = train.values.shape[1] * len(train) * 4 <= _IN_MEMORY_BYTES
        self.blocks_in_memory = list(self._blocks()) if fits else None
        self.spread = self._spread()
        self.hold_biases()
        self.first_state = copy.deepcopy(head.state_dict())

    def hold_biases(self) -> None:
        """Keep the biases if raising all of them alike is all that the loss asks for.

        ``positive_bce`` says nothing about other classes. Without a decay, its biases would grow
        until no weight is needed.
        """
        biases = [layer.bias for layer in self.head.modules() if isinstance(layer, nn.Linear)]
        values = list[float]()
        for shift in (0.0, _SHIFT):
            for bias in biases:
                bias.data += shift
            values.append(float(self.value(0.0)))
        for bias in biases:
            bias.data -= _SHIFT
            bias.requires_grad_(values[1] > 1e-3 * values[0])

    def _blocks(self) -> Iterator[Block]:
        start, device = 0, self.head.mean.device
        for values, labels in self.train.blocks():
            rows = torch.arange(start, start + len(labels))
            scaled = self.head.scaled(torch.from_numpy(values).to(device))
            yield scaled, torch.from_numpy(labels).to(device), rows
            start += len(labels)

    def blocks(self) -> Iterator[Block]:
        """All photos, in blocks."""
        yield from self._blocks() if self.blocks_in_memory is None else self.blocks_in_memory

    @torch.no_grad()
    def _spread(self) -> float:
        """Variance of a dimension of the features that a cosine head sees, mean over dimensions."""
        parts = [F.normalize(values, dim=1).sum(0) for values, *_ in self.blocks()]
        mean = torch.stack(parts).double().sum(0) / len(self.train)
        # The squares of a direction sum to 1.
        return float((1 - mean.square().sum()) / len(mean))

    def squares(self) -> Tensor:
        r"""What is decayed, :math:`\lVert W \rVert^2`, on features of unit variance; no bias.

        The length of a direction of a cosine head means nothing. What separates its classes is how
        far their directions are apart, times the scale; this is the norm of the linear head that
        does the same on features of unit variance, so that a decay means the same for both.
        """
        total = self.head.mean.new_zeros(())
        for layer in self.head.modules():
            if isinstance(layer, nn.Linear):
                total = total + layer.weight.square().sum()
            elif isinstance(layer, CosineHead):
                directions = F.normalize(layer.weight, dim=1)
                apart = (directions - directions.mean(0)).square().sum()
                total = total + self.spread * layer.scale.square() * apart
        return total

    def value(self, weight_decay: float) -> Tensor:
        """The loss with the decay, and its gradient in the parameters of the head."""
        self.head.zero_grad(set_to_none=True)
        torch.manual_seed(self.seed)
        self.objective.loss_fn.load_state_dict(self.memory)
        loss = self.head.mean.new_zeros(())
        for share, (values, labels, rows) in zip(self.shares, self.blocks(), strict=True):
            part = share * self.objective(self.head.head(values), labels, rows)
            torch.autograd.backward(part)
            loss += part.detach()
        self.passes, self.loss = self.passes + 1, float(loss)
        decay = weight_decay / 2 * self.squares()
        torch.autograd.backward(decay)
        return loss + decay.detach()

    def solve(self, weight_decay: float, *, passes: int) -> None:
        """Go from the first head to the solution, in about so many passes at most."""
        self.head.load_state_dict(self.first_state)
        self.memory = self.first_memory
        end, before = self.passes + passes, np.inf
        optimiser = torch.optim.LBFGS(
            [parameter for parameter in self.head.parameters() if parameter.requires_grad],
            max_iter=_STEPS,
            tolerance_grad=1e-9,
            history_size=_HISTORY,
            line_search_fn="strong_wolfe",
        )
        while self.passes < end:
            for group in optimiser.param_groups:
                group["max_eval"] = end - self.passes
            evaluate = partial(self.value, weight_decay)
            now = float(optimiser.step(evaluate))  # type: ignore[no-untyped-call]  # torch's own; the first value
            self.memory = copy.deepcopy(self.objective.loss_fn.state_dict())
            if not np.isfinite(now):
                raise UsageError(
                    f"the loss is {now} at weight decay {weight_decay:g}: check its parameters, or "
                    "train in small steps with --set optimiser.name=sgd"
                )
            if before - now <= _TOLERANCE * abs(now):
                break
            before = now


def _solutions(
    config: TrainConfig, head: HeadOnFeatures, objective: Objective, train: Features, val: Features
) -> Iterator[_Candidate]:
    """The solution for each weight decay, measured on `val`: those of the grid, then those beyond.

    ``head`` is that of the last one afterwards. It is on the device that computes.
    """
    metric = config.validation.chosen_by
    gpus = [head.mean.device] if head.mean.is_cuda else []
    rows = min(ROWS_AT_ONCE, len(train))
    with exact_float32(), torch.random.fork_rng(gpus), threads_for(head, rows):
        problem = _HeadProblem(head, objective, train, seed=config.seed)
        classes = next(head.head.parameters()).shape[0]
        decays, solved = list(decays_of(config.optimiser, classes)), list[_Candidate]()
        wider = decays_of(config.optimiser, classes, WIDER)
        while decays:
            decay = decays.pop(0)
            problem.solve(decay, passes=config.epochs)
            solved.append(_measure(problem, decay, val, metric))
            yield solved[-1]
            decays = decays or _beyond(solved, wider, val)


def _measure(
    problem: _HeadProblem, weight_decay: float, val: Features, metric: Metric
) -> _Candidate:
    """The present head as a candidate."""
    return _candidate_of(
        _logits_by_head(problem.head, val),
        val.split.labels,
        metric,
        weight_decay=weight_decay,
        state=copy.deepcopy(problem.head.state_dict()),
        train_loss=problem.loss,
    )


@torch.inference_mode()
def _logits_by_head(head: HeadOnFeatures, photos: Features) -> dict[str, NDArray[np.float32]]:
    """Logits of a split as served, ``(photos, classes)``."""
    training = head.training
    head.eval()
    parts = [
        by_head(head.name, head(torch.from_numpy(values).to(head.mean.device)))
        for values, _ in photos.blocks()
    ]
    head.train(training)
    return {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}


def _candidate_of(
    logits: Mapping[str, NDArray[np.float32]],
    labels: NDArray[np.int64],
    metric: Metric,
    *,
    weight_decay: float,
    state: Mapping[str, Tensor] | None = None,
    train_loss: float = 0.0,
) -> _Candidate:
    """A head by its logits on val; all its figures are those at the best temperature.

    A calibration chooses the temperature later. A large decay makes logits small, and must not lose
    for that.
    """
    results = []
    # From 1 outwards: in a tie `max` takes the first.
    for temperature in sorted(TEMPERATURES, key=lambda value: abs(np.log(value))):
        meter = ValidationMeter(rows=len(labels), metric=metric)
        meter.update({name: values / temperature for name, values in logits.items()}, labels)
        results.append((meter.result(), meter.hits()))
    _, head, hits, validation = max(
        (
            ((float(hits.mean()), -result.log_loss[choice.head]), choice.head, hits, result)
            for result, by_choice in results
            for choice, hits in by_choice.items()
        ),
        key=lambda item: item[0],
    )
    return _Candidate(
        weight_decay=weight_decay,
        state=state or {},
        train_loss=train_loss,
        validation=validation,
        hits=hits,
        log_loss=_log_loss(logits[head], labels),
    )


def _log_loss(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Mean log-loss at the temperature at which it is smallest."""
    values, targets = torch.from_numpy(logits).double(), torch.from_numpy(labels)
    return min(
        float(F.cross_entropy(values / temperature, targets)) for temperature in _WIDE_TEMPERATURES
    )


def _choose(candidates: Sequence[_Candidate], val: Features) -> tuple[int, bool]:
    """The candidate to take, and whether accuracy still rises at the end of those compared.

    Of the decays whose sets are level with the best ones, the one under which the labels of `val`
    are most probable is taken: hits on few photos are a coarse measure. Level is a *paired*
    difference of at most half its standard error, and accuracy rises at an end by more than a
    whole one. Photos on which both are right say nothing, so that is far smaller than the error of
    an accuracy, which would allow too much decay.
    """
    rows = range(len(candidates))
    hits, log_loss = ([getattr(item, name) for item in candidates] for name in ("hits", "log_loss"))
    best = max(rows, key=lambda row: (hits[row].mean(), -log_loss[row]))
    level = [row for row in rows if not _more(hits[best] - hits[row], val, _LEVEL)]
    choice = min(level, key=lambda row: log_loss[row])
    ordered = sorted(rows, key=lambda row: candidates[row].weight_decay)
    neighbours = {ordered[0]: ordered[1:2], ordered[-1]: ordered[-2:-1]}.get(choice, [])
    return choice, any(_more(hits[choice] - hits[row], val, 1.0) for row in neighbours)


def _beyond(candidates: Sequence[_Candidate], wider: Sequence[float], val: Features) -> list[float]:
    """The next decay of a wider grid where accuracy still rises at the end of this one."""
    choice, rises = _choose(candidates, val)
    best = candidates[choice].weight_decay
    larger = best == max(item.weight_decay for item in candidates)
    further = [decay for decay in wider if (decay > best if larger else decay < best)]
    nearest = min if larger else max
    return [nearest(further)] if rises and further else []


def _more(gain: Floats, val: Features, errors: float) -> bool:
    """Whether the mean of paired differences, ``(rows,)``, exceeds so many standard errors."""
    observations = observation_numbers(val.split.observations)
    if len(gain) < 2:
        return False
    error = gain.std(ddof=1) / np.sqrt(effective_rows(gain, observations))
    return bool(gain.mean() > errors * error * _JUST_ABOVE)


def search(run: Run, train: Features, val: Features) -> None:
    """Solve for the head of a run with every weight decay, keep the best, and write the run."""
    head, position = run.trained.network, run.position
    assert isinstance(head, HeadOnFeatures)
    candidates, rows = list[_Candidate](), list[Row]()
    run.clock = time.monotonic()
    decays = decays_of(run.config.optimiser)
    bar = progress(len(decays), "training the head")
    with events(run.folder.events, 0) as append, bar as advance:
        for candidate in _solutions(run.config, head, run.objective, train, val):
            candidates.append(candidate)
            run.count_time()
            position.epoch, position.step = len(candidates), len(candidates)
            position.loss_sum, position.examples = candidate.train_loss, 1
            row = epoch_row(
                position,
                candidate.validation,
                weight_decay=candidate.weight_decay,
                val_hits=float(candidate.hits.mean()),
                val_log_loss=candidate.log_loss,
            )
            rows.append(row)
            append(row)
            advance()
            if len(candidates) > len(decays):
                run.say("accuracy still rises at this end of the grid, which goes on:")
            run.say(epoch_line(row, epochs=len(decays), better=False))
    choice, rises = _choose(candidates, val)
    best = candidates[choice]
    head.load_state_dict(best.state)
    position.history = [{**row, CHOICE: int(row is rows[choice])} for row in rows]
    position.best_score, position.best_epoch = best.validation.score, choice + 1
    position.loss_sum, position.examples = 0.0, 0
    # Before there are weights that could be exported without the hashes of their photos.
    run.record_photos()
    run.trained.save_weights(run.folder.best, run.network)
    run.folder.write_metrics(position.history)
    run.save()
    for line in _notes(candidates, choice, rises=rises):
        run.say(line)


def _notes(candidates: Sequence[_Candidate], choice: int, *, rises: bool) -> Iterator[str]:
    """What was chosen, for the user."""
    decay, most = candidates[choice].weight_decay, max(item.hits.mean() for item in candidates)
    if len(candidates) > 1:
        best = candidates[choice].hits.mean() == most
        level = "is level with the best on val, and makes its labels more probable"
        yield f"weight decay {decay:g} {'is best on val' if best else level}"
    if rises:
        largest = decay == max(item.weight_decay for item in candidates)
        which, beyond = ("larger", 10 * decay / 3) if largest else ("smaller", decay / 3)
        yield (
            f"warning: a {which} weight decay than those tried may be better still: `florilege "
            f"train` takes it with --set optimiser.weight_decay={beyond:.2g}"
        )
