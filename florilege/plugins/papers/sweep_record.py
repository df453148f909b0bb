"""The record of a sweep: its runs, their accuracy on val, the setting chosen, its figures on test.

It is written to ``results.json`` after each run, so that a sweep can continue after any
interruption.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from florilege.calibration.intervals import student_half
from florilege.errors import BundleError, SomeInputsFailed, UsageError, os_error_as
from florilege.files import write_atomic
from florilege.training.config import MAY_CHANGE, Metric, TrainConfig

FILE: Final = "results.json"
PICTURE: Final = "curves.png"
FIGURES: Final = ("hit_rate", "macro_hit_rate", "mean_set_size")
_PER_RUN: Final = {"seed", *MAY_CHANGE} - {"epochs"}  # settings that are not part of the request


Changes = dict[str, Any]
"""One setting of the grid: values by the dotted names of what changes."""


def words_of(changes: Mapping[str, Any]) -> str:
    """Changes in words, such as ``loss.epsilon=0.1, epochs=3``."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in changes.items()) or "as it is"


def value_text(value: Any) -> str:
    """A value as people write it: text without quotes, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


class RunRecord(BaseModel):
    """One run: a setting with a seed."""

    changes: Changes
    seed: int
    run: str  # its folder, inside that of the sweep
    status: Literal["waiting", "finished", "failed"] = "waiting"
    error: str | None = None  # why it failed
    accuracy: float | None = None  # of its best epoch on val
    best_epoch: int | None = None
    head: str | None = None  # the head that reached it
    score_kind: str | None = None
    seconds: float | None = None
    test: list[dict[str, Any]] | None = None  # figures of its best weights, by rule and K

    def __str__(self) -> str:
        """In words, such as ``loss.epsilon=0.1, seed 2``."""
        return f"{words_of(self.changes)}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over seeds."""

    mean: float
    half: float | None  # of the 95 % interval; None for a single seed

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The mean of one value or more."""
        return cls(mean=fmean(values), half=student_half(values))

    def __str__(self) -> str:
        """In percent, such as ``97.35 ± 0.06``."""
        spread = "" if self.half is None else f" ± {100 * self.half:.2f}"
        return f"{100 * self.mean:.2f}{spread}"


class Record(BaseModel):
    """The record of a sweep."""

    model_config = ConfigDict(populate_by_name=True)

    recipe: str
    # over, seeds and the settings that all runs share
    request: dict[str, Any] = Field(validation_alias="asked", serialization_alias="asked")
    metric: str  # that chooses the setting, such as "average-5 accuracy"
    learned_from: int  # number of training photos
    runs: list[RunRecord]

    @classmethod
    def of(
        cls, config: TrainConfig, points: Sequence[Changes], seeds: Sequence[int], pictures: int
    ) -> Self:
        """A new record, for the settings of the first run and the number of training pictures."""
        settings = {key: value for key, value in config.to_plain().items() if key not in _PER_RUN}
        request = {"over": list(map(words_of, points)), "seeds": list(seeds), **settings}
        return cls(
            recipe=config.recipe,
            request=json.loads(json.dumps(request)),  # as read back from the file
            metric=str(config.validation.chosen_by),
            learned_from=pictures,
            runs=[
                RunRecord(changes=changes, seed=seed, run=f"runs/{number}/seed-{seed}")
                for number, changes in enumerate(points, start=1)
                for seed in seeds
            ],
        )

    @property
    def sets(self) -> str:
        """The size of the sets that chose the setting, in brackets; empty if unknown."""
        chosen_by = self.request.get("validation", {})
        if not {"metric", "k"} <= set(chosen_by):
            return ""
        return f" (set size {Metric(name=chosen_by['metric'], k=chosen_by['k']).sets})"

    def check_complete(self) -> None:
        """Raise a ``SomeInputsFailed`` that names the failed runs, if there are any."""
        if failed := [run for run in self.runs if run.status == "failed"]:
            listed = "\n".join(f"  {run}: {run.error}" for run in failed)
            raise SomeInputsFailed(
                f"{len(failed)} of {len(self.runs)} runs failed, so their settings were not "
                f"chosen; --resume repeats them:\n{listed}"
            )

    def points(self) -> list[tuple[list[RunRecord], Mean | None]]:
        """The runs of each setting, in the order of the grid, and their mean accuracy on val.

        The mean is None if one of its seeds has no result.
        """
        points = list[tuple[list[RunRecord], Mean | None]]()
        for _, group in groupby(self.runs, key=lambda run: run.changes):
            runs = list(group)
            values = [run.accuracy for run in runs if run.accuracy is not None]
            points.append((runs, Mean.of(values) if len(values) == len(runs) else None))
        return points

    def chosen(self) -> list[RunRecord]:
        """The runs of the setting with the best mean on val; in a tie the first.

        A setting with a failed run is not chosen; empty if every setting has one.
        """
        means = [(mean.mean, runs) for runs, mean in self.points() if mean is not None]
        return max(means, key=lambda item: item[0])[1] if means else []

    def tested(self) -> dict[str, dict[float, dict[str, Mean]]]:
        """Means of the chosen setting on test, by rule, K and figure; empty until measured."""
        runs = self.chosen()
        if any(run.test is None for run in runs):
            return {}
        means = dict[str, dict[float, dict[str, Mean]]]()
        for rows in zip(*(run.test or () for run in runs), strict=True):  # one row per seed
            figures = {name: Mean.of([row[name] for row in rows]) for name in FIGURES}
            means.setdefault(rows[0]["rule"], {})[rows[0]["k"]] = figures
        return means

    def to_plain(self) -> dict[str, Any]:
        """For JSON: the record, and the figures derived from it."""
        best_runs = self.chosen()
        settings = [
            {
                "changes": runs[0].changes,
                "val": None if mean is None else asdict(mean),
                "chosen": runs == best_runs,
            }
            for runs, mean in self.points()
        ]
        test = [
            {"rule": rule, "k": k, **{name: asdict(mean) for name, mean in figures.items()}}
            for rule, by_k in self.tested().items()
            for k, figures in by_k.items()
        ]
        return {**self.model_dump(by_alias=True), "settings": settings, "test": test}

    def write(self, folder: Path) -> None:
        """Write ``results.json``; a ``BundleError`` if it cannot be written."""
        content = json.dumps(self.to_plain(), indent=1) + "\n"
        with os_error_as(BundleError, f"cannot write {folder / FILE}"):
            write_atomic(folder / FILE, content.encode())

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The record of a folder, None if there is none; a ``BundleError`` if it is damaged."""
        path = folder / FILE
        try:
            return cls.model_validate(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise BundleError(f"{path} is damaged: {error}") from error

    def check_same(self, request: Mapping[str, Any]) -> None:
        """Raise a ``UsageError`` that names how ``request`` differs from that of the record."""
        keys = dict.fromkeys([*self.request, *request])
        differences = [
            f"{key} was {self.request.get(key)!r}, now {request.get(key)!r}"
            for key in keys
            if self.request.get(key) != request.get(key)
        ]
        if differences:
            raise UsageError(
                f"a resumed sweep keeps its settings, but {'; '.join(differences)}. Leave that "
                "out, or sweep into another --out"
            )
