"""The metric on `val` that chooses the checkpoint: its name, its K and its columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

MetricName = Literal["average_k", "top_k", "macro_average_k", "macro_top_k"]
_PREFIX: Final = "val_"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A kind of accuracy and its K.

    ``average_k`` and ``top_k`` are shares of photos, their ``macro`` forms means of the shares of
    each class; see ``florilege.calibration.metrics``.
    """

    name: MetricName
    k: float

    @property
    def macro(self) -> bool:
        """Whether every class counts the same."""
        return self.name.startswith("macro_")

    @property
    def fixed_size(self) -> bool:
        """Whether all sets have K classes, not K on average."""
        return self.name.endswith("top_k")

    def __str__(self) -> str:
        """In words, such as ``macro average-3 accuracy``."""
        macro = "macro " if self.macro else ""
        return f"{macro}{'top' if self.fixed_size else 'average'}-{self.k:g} accuracy"

    @property
    def sets(self) -> str:
        """The size of the sets it measures, for people, such as ``3 on average``."""
        size = "always" if self.fixed_size else "on average"
        return f"{self.k:g} {size}{', mean over classes' if self.macro else ''}"

    @property
    def column(self) -> str:
        """Column of ``metrics.csv`` that holds K, such as ``val_macro_average_k``."""
        return f"{_PREFIX}{self.name}"

    @property
    def prefix(self) -> str:
        """Prefix of the columns of its values, such as ``val_macro_average_3_``."""
        return f"{self.column.removesuffix('k')}{self.k:g}_"

    def column_of(self, head: str, score_kind: str) -> str:
        """Column of its value; the score kind does not matter for sets of a fixed size."""
        return f"{self.prefix}{head}" if self.fixed_size else f"{self.prefix}{head}_{score_kind}"


def metric_of(row: Mapping[str, Any]) -> Metric:
    """The metric that chose a row of ``metrics.csv``; a ``KeyError`` if it names none."""
    for name in get_args(MetricName):
        if f"{_PREFIX}{name}" in row:
            return Metric(name=name, k=float(row[f"{_PREFIX}{name}"]))
    raise KeyError(f"{_PREFIX}average_k")
