"""Tables as columns, and their text: one line a column, every float with all its digits."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.fusion import Fusion
from calibration.guarantees import Guarantee
from calibration.photo_groups import MadeFrom
from calibration.rules.class_conditional import SmallClasses
from calibration.scores import ScoreKind, check_temperature


@dataclass(frozen=True, kw_only=True)
class Row:
    """One threshold and what it does.

    Attributes:
        value: K or the coverage asked for.
        lambda_val: The threshold; None for ``top_k``.
        size: Mean set size, ``size_low`` and ``size_high`` its 95 % interval.
        size_deviation: Standard deviation of the set size.
        hit_rate: Share of sets with the truth, ``hit_low`` and ``hit_high`` its 95 % interval;
            None where it was not measured, because nobody labelled the photos.
        macro_hit_rate: The same class by class, then the mean over classes.
        empty_rate: Share of empty sets.
        ties: Scores kept beyond the rank.
        size_histogram: Sets in each bin, without the zeros at its end.
    """

    value: float
    lambda_val: float | None
    size: float
    size_low: float
    size_high: float
    size_deviation: float
    hit_rate: float | None
    hit_low: float | None
    hit_high: float | None
    macro_hit_rate: float | None
    empty_rate: float
    ties: int
    size_histogram: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Many rows, column by column; the attributes are those of :class:`Row`."""

    value: tuple[float, ...]
    lambda_val: tuple[float | None, ...]
    size: tuple[float, ...]
    size_low: tuple[float, ...]
    size_high: tuple[float, ...]
    size_deviation: tuple[float, ...]
    hit_rate: tuple[float | None, ...]
    hit_low: tuple[float | None, ...]
    hit_high: tuple[float | None, ...]
    macro_hit_rate: tuple[float | None, ...]
    empty_rate: tuple[float, ...]
    ties: tuple[int, ...]
    size_histogram: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for name, column in vars(self).items():
            if len(column) != len(self.value):
                raise ValueError(
                    f"column {name} has {len(column)} entries, value has {len(self.value)}"
                )

    def row(self, index: int) -> Row:
        """The threshold at ``index``."""
        return Row(**{field.name: getattr(self, field.name)[index] for field in fields(Row)})

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Columns":
        """Columns of some rows."""
        return cls(
            **{field.name: tuple(getattr(row, field.name) for row in rows) for field in fields(Row)}
        )


@dataclass(frozen=True, kw_only=True)
class ByClass:
    """Thresholds of ``class_coverage``, one a class for each coverage.

    Attributes:
        small_classes: What classes with too few photos for a threshold of their own got.
        small: How many these are, for each coverage.
        thresholds: For each coverage what is taken off each class's score before the comparison
            with ``lambda_val``, which is 0.
    """

    small_classes: SmallClasses
    small: tuple[int, ...]
    thresholds: tuple[tuple[float, ...], ...]

    def unpromised(self, index: int) -> int:
        """Classes without a promise of their own; those in every set have one."""
        return 0 if self.small_classes == "always" else self.small[index]

    @cached_property
    def arrays(self) -> tuple[NDArray[np.float64], ...]:
        """The thresholds, shape ``(classes,)`` for each coverage."""
        return tuple(np.array(thresholds) for thresholds in self.thresholds)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Thresholds of one rule for one head, kind of score, temperature and number of photos.

    Attributes:
        temperature: What the logits were divided by.
        images: Photos of one plant in a request.
        fusion: How their scores become one row, see :mod:`calibration.fusion`.
        rows: Photos, or groups of ``images`` photos, that it was measured on.
        made_from: What photos of one group have in common, see
            :class:`calibration.photo_groups.PhotoGroups`; None for single photos.
        guarantee: What is promised about new photos; None where figures are measured only.
        delta: For ``probability``: how often a calibration may break the promise.
        max_size: Larger sets are cut down to this many best classes; None for no such bound.
        by_class: Thresholds of ``class_coverage``; None for the other rules.
        columns: One value a threshold in each; ``value`` is K or the coverage, ascending.
    """

    rule: str
    head: str
    score_kind: ScoreKind
    temperature: float
    images: int
    fusion: Fusion
    rows: int
    made_from: MadeFrom | None
    min_size: int
    guarantee: Guarantee | None
    delta: float | None
    max_size: int | None
    by_class: ByClass | None
    columns: Columns

    def __post_init__(self) -> None:
        if (self.guarantee == "probability") != (self.delta is not None):
            raise ValueError(f"guarantee {self.guarantee!r} does not go with delta {self.delta}")
        if (self.by_class is None) != (self.rule != "class_coverage"):
            raise ValueError(f"rule {self.rule!r} does not go with {self.by_class}")
        if self.by_class is not None:
            lengths = {len(self.by_class.small), len(self.by_class.thresholds)}
            if lengths != {len(self.columns.value)}:
                raise ValueError(f"{lengths} thresholds by class for {self.columns.value}")
        check_temperature(self.temperature)
        if (self.made_from is None) != (self.images == 1):
            raise ValueError(f"{self.images} photos cannot come from {self.made_from!r}")

    def index(self, value: float) -> int | None:
        """Where ``value`` stands, or None."""
        return self.columns.value.index(value) if value in self.columns.value else None


def dump(plain: Any) -> str:
    """JSON text with one line for each list of plain values; equal content gives equal text."""
    return _lines(plain, "") + "\n"


def _lines(plain: Any, margin: str) -> str:
    deeper = margin + " "
    if isinstance(plain, Mapping):
        entries = [f"{json.dumps(name)}: {_lines(entry, deeper)}" for name, entry in plain.items()]
        opening, closing = "{", "}"
    elif isinstance(plain, list | tuple) and any(isinstance(entry, Mapping) for entry in plain):
        entries = [_lines(entry, deeper) for entry in plain]
        opening, closing = "[", "]"
    else:
        return json.dumps(plain, allow_nan=False, separators=(",", ":"))
    inside = f",\n{deeper}".join(entries)
    return f"{opening}\n{deeper}{inside}\n{margin}{closing}"
