"""Tables of thresholds as ``calibration.json`` holds them."""

from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cached_property
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.fusion import Fusion
from florilege.calibration.guarantees import Guarantee
from florilege.calibration.photo_groups import MadeFrom
from florilege.calibration.rules import RULES
from florilege.calibration.scores import ScoreKind, check_temperature
from florilege.models.class_lists import RegionList

Verb = Literal["calibrate", "evaluate"]


def _figure(
    name: str, *ends: str, only: Verb | None = None, answer: str = "", description: str = ""
) -> Any:
    """A measured figure to be shown.

    Args:
        name: What commands call it.
        ends: The fields with its 95 % interval.
        only: The one command that prints it; both by default.
        answer: What the server's answers call it, for a figure with an interval; by default they
            leave it out.
        description: How the server's documentation describes it.
    """
    answered = {"answer": answer, "description": description}
    return field(metadata={"name": name, "ends": ends, "only": only, **answered})


@dataclass(frozen=True, kw_only=True)
class Row:
    """One threshold and what it does.

    A new figure is added here and measured in
    :func:`florilege.calibration.calibrate.threshold_tables.row_of`; the record (:class:`Columns`),
    what commands print (:meth:`figures`) and the server's answers (:data:`ANSWERED`) follow.

    Attributes:
        value: K or the coverage asked for.
        lambda_val: The threshold; None for ``top_k``.
        size: Mean set size, ``size_low`` and ``size_high`` its 95 % interval.
        size_deviation: Standard deviation of the set size.
        hit_rate: Share of sets with the true class, ``hit_low`` and ``hit_high`` its 95 % interval;
            None where the photos have no labels to measure it with.
        macro_hit_rate: The same class by class, then the mean over classes.
        empty_rate: Share of empty sets.
        ties: Scores kept beyond the rank.
        size_histogram: Sets in each bin, without the trailing zeros.
    """

    value: float
    lambda_val: float | None
    size: float = _figure(
        "mean_set_size",
        "size_low",
        "size_high",
        answer="expected_size",
        description="Mean set size of this rule.",
    )
    size_low: float
    size_high: float
    size_deviation: float
    hit_rate: float | None = _figure(
        "hit_rate",
        "hit_low",
        "hit_high",
        answer="hit_rate",
        description="Share of sets that held the true class.",
    )
    hit_low: float | None
    hit_high: float | None
    macro_hit_rate: float | None = _figure("macro_hit_rate", only="evaluate")
    empty_rate: float = _figure("empty_rate")
    ties: int = _figure("ties", only="calibrate")
    size_histogram: tuple[int, ...]

    def figures(self, verb: Verb) -> dict[str, Any]:
        """What a command prints: each figure by its name, its interval as ``NAME_ci95``."""
        figures = dict[str, Any]()
        for entry in fields(self):
            if entry.metadata and entry.metadata["only"] in (None, verb):
                name, (value, ends) = entry.metadata["name"], self.with_interval(entry)
                figures[name] = value
                if ends:
                    figures[f"{name}_ci95"] = None if value is None else ends
        return figures

    def with_interval(self, figure: Field[Any]) -> tuple[Any, tuple[Any, ...]]:
        """A figure, given by its field, and the ends of its interval; () where it has none."""
        ends = tuple(getattr(self, end) for end in figure.metadata["ends"])
        return getattr(self, figure.name), ends


ANSWERED = {
    entry.metadata["answer"]: entry for entry in fields(Row) if entry.metadata.get("answer")
}
"""The figures in the server's answers, by their names there."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Many rows, column by column: under each name of :class:`Row` a tuple of its values."""

    __annotations__ = {
        name: GenericAlias(tuple, (kind, ...)) for name, kind in get_type_hints(Row).items()
    }

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> tuple[Any, ...]: ...

    def __post_init__(self) -> None:
        for name, column in vars(self).items():
            if len(column) != len(self.value):
                raise ValueError(
                    f"column {name} has {len(column)} entries, value has {len(self.value)}"
                )

    def row(self, index: int) -> Row:
        """The threshold at ``index``."""
        return Row(**{entry.name: getattr(self, entry.name)[index] for entry in fields(Row)})

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Columns":
        """Columns of some rows."""
        names = (entry.name for entry in fields(Row))
        return cls(**{name: tuple(getattr(row, name) for row in rows) for name in names})


@dataclass(frozen=True, kw_only=True)
class ByClass:
    """Thresholds of ``class_coverage``: one per class for each coverage.

    Attributes:
        small: How many classes have too few photos for a threshold of their own, for each coverage.
        thresholds: For each coverage, what is subtracted from each class's score before it is
            compared with ``lambda_val``, which is 0.
    """

    small: tuple[int, ...]
    thresholds: tuple[tuple[float, ...], ...]

    @cached_property
    def arrays(self) -> tuple[NDArray[np.float64], ...]:
        """The thresholds, shape ``(classes,)`` for each coverage."""
        return tuple(np.array(thresholds) for thresholds in self.thresholds)


@dataclass(frozen=True, kw_only=True)
class CalibratedList(RegionList):
    """A list with the photos that its thresholds were chosen on.

    Attributes:
        rows: Photos of its classes; 0 where it has no thresholds.
        classes_seen: How many of its classes have a photo among them.
    """

    rows: int
    classes_seen: int


@dataclass(frozen=True, kw_only=True)
class Table:
    """Thresholds of one rule for one head, kind of score, temperature, number of photos and list.

    Attributes:
        temperature: What the logits were divided by.
        list_name: The list whose logits alone became scores, on photos of its classes; None for
            all classes.
        images: Photos of one plant in a request.
        fusion: How their scores become one row, see :mod:`florilege.calibration.fusion`.
        rows: Photos, or groups of ``images`` photos, that it was measured on.
        made_from: What photos of one group have in common, see
            :class:`florilege.calibration.photo_groups.PhotoGroups`; None for single photos.
        guarantee: What is promised about new photos; None where figures are only measured.
        delta: For ``probability``: how often a calibration may break the promise.
        max_size: Larger sets are cut down to this many best classes; None for no limit.
        by_class: Thresholds of ``class_coverage``; None for the other rules.
        columns: Each with one entry per threshold; ``value`` is K or the coverage, ascending.
    """

    rule: str
    head: str
    score_kind: ScoreKind
    temperature: float
    list_name: str | None
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
        if (self.by_class is not None) != (self.rule in RULES and RULES[self.rule].by_class):
            raise ValueError(f"rule {self.rule!r} does not go with {self.by_class}")
        if self.by_class is not None:
            lengths = {len(self.by_class.small), len(self.by_class.thresholds)}
            if lengths != {len(self.columns.value)}:
                raise ValueError(f"{lengths} thresholds by class for {self.columns.value}")
        check_temperature(self.temperature)
        if (self.made_from is None) != (self.images == 1):
            raise ValueError(f"{self.images} photos cannot come from {self.made_from!r}")
