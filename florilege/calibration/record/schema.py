"""Tables of thresholds as ``calibration.json`` holds them, and how the file is written and read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from functools import cache
from types import GenericAlias
from typing import Any, Literal, get_type_hints

from florilege.calibration.guarantees import Guarantee
from florilege.calibration.photo_groups import MadeFrom
from florilege.calibration.rules import RULES
from florilege.calibration.rules.label_noise import LabelNoise
from florilege.calibration.view import Scoring, View
from florilege.errors import BundleError
from florilege.models.class_lists import RegionList

SCHEMA_VERSION = 8
Verb = Literal["calibrate", "evaluate"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One threshold and its figures.

    To add a figure, add it here and to :meth:`figures`, and measure it in
    :func:`florilege.calibration.calibrate.threshold_tables.row_of`; the record (:class:`Columns`)
    and the commands follow. For the server's answers, add it to ``OperatingPoint.estimates``, and
    to ``SetInfo`` and ``Point`` in the schemas of the server.
    """

    value: float  # the requested K or coverage
    lambda_val: float | None  # the threshold; None for ``top_k``
    size: float  # mean set size, with its 95 % interval
    size_low: float
    size_high: float
    size_deviation: float  # standard deviation of the set size
    hit_rate: float | None  # with its 95 % interval; None where the photos have no labels
    hit_low: float | None
    hit_high: float | None
    hit_rows: float | None  # independent rows that would give an interval as wide
    chance: (
        float | None
    )  # share of sets with a class drawn from the label's group; None if labels are right
    macro_hit_rate: float | None  # mean over classes; None where labels are wrong
    empty_rate: float  # share of empty sets
    ties: int  # scores kept beyond the rank
    size_histogram: tuple[int, ...]  # sets in each bin of ``size_bins``, without trailing zeros
    hit_histogram: tuple[int, ...]  # how many of them hold the true class; empty without labels

    def figures(self, verb: Verb) -> dict[str, Any]:
        """The figures that a command prints, by name; intervals are named ``NAME_ci95``."""
        figures = {
            "mean_set_size": self.size,
            "mean_set_size_ci95": (self.size_low, self.size_high),
            "hit_rate": self.hit_rate,
            "hit_rate_ci95": None if self.hit_rate is None else (self.hit_low, self.hit_high),
        }
        if verb == "evaluate":
            return figures | {"macro_hit_rate": self.macro_hit_rate, "empty_rate": self.empty_rate}
        return figures | {"empty_rate": self.empty_rate, "ties": self.ties}


_Columns: Any = make_dataclass(
    "_Columns",
    [(name, GenericAlias(tuple, (kind, ...))) for name, kind in get_type_hints(Row).items()],
    kw_only=True,
    frozen=True,
)


class Columns(_Columns):  # type: ignore[misc]  # its fields are those of Row
    """Rows stored by column: each field of :class:`Row` as a tuple of values."""

    def __post_init__(self) -> None:
        rows = len(self.value)
        for name, column in vars(self).items():
            if len(column) != rows:
                raise ValueError(f"column {name} has {len(column)} entries, value has {rows}")

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
        thresholds: For each coverage, the threshold of each class. It is subtracted from the
            weighted score, which is then compared with ``lambda_val``, 0.
    """

    thresholds: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class CalibratedList(RegionList):
    """A list of classes and the photos that chose its thresholds.

    Attributes:
        rows: Number of photos of its classes; 0 if it has no thresholds.
        classes_seen: Number of its classes among these photos.
    """

    rows: int
    classes_seen: int

    def to_plain(self, rows: int, rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The JSON object of the list on so many photos, with those of its rules."""
        return {"list": self.name, "classes": len(self.classes), "rows": rows, "rules": rules}


@dataclass(frozen=True, kw_only=True)
class Table:
    """Thresholds of one rule for one view, and one way to compute scores.

    Attributes:
        rule: Name of the rule.
        guarantee: The guarantee for new photos; None where figures are only measured.
        view: Photos, list and place of the requests that it is for.
        scoring: How logits become the scores that it compares.
        rows: Number of photos, or of groups of photos, of the measurement.
        independent: Whether each row shows an observation of its own.
        made_from: What the photos of a group have in common, see
            :class:`florilege.calibration.photo_groups.PhotoGroups`; None for single photos.
        candidates: How many scores these photos compared, which guarantees allow for.
        label_noise: The assumption about wrong labels that thresholds and hit rates are corrected
            for; None where labels are taken as they are.
        min_size: 1 where every set holds its best class, else 0.
        delta: For ``probability``: the share of calibrations that may break the guarantee.
        max_size: Larger sets keep only this many best classes; None for no limit.
        by_class: Thresholds of ``class_coverage``; None for the other rules.
        columns: One entry per threshold in each; ``value`` is K or the coverage, ascending.
    """

    rule: str
    guarantee: Guarantee | None
    view: View
    scoring: Scoring
    rows: int
    independent: bool
    made_from: MadeFrom | None
    candidates: int
    label_noise: LabelNoise | None
    min_size: int
    delta: float | None
    max_size: int | None
    by_class: ByClass | None
    columns: Columns

    def __post_init__(self) -> None:
        if (self.guarantee == "probability") != (self.delta is not None):
            raise ValueError(f"guarantee {self.guarantee!r} conflicts with delta {self.delta}")
        if (self.by_class is not None) != (self.rule in RULES and RULES[self.rule].by_class):
            raise ValueError(f"rule {self.rule!r} conflicts with by_class {self.by_class}")
        if self.by_class is not None and len(self.by_class.thresholds) != len(self.columns.value):
            levels = len(self.by_class.thresholds)
            raise ValueError(f"{levels} thresholds by class for {self.columns.value}")
        if (self.made_from is None) != (self.view.photos == 1):
            raise ValueError(f"{self.view} conflicts with made_from {self.made_from!r}")


def dump(content: Any, margin: str = "") -> str:
    """JSON text of a dataclass, with one line for each list of plain values.

    Equal content gives equal text, and floats have all digits. ``margin`` precedes nested lines.
    """
    if is_dataclass(content) and not isinstance(content, type):
        entries, brackets = _entries(content, margin + " "), "{}"
    elif isinstance(content, tuple) and content and is_dataclass(content[0]):
        entries, brackets = [dump(entry, margin + " ") for entry in content], "[]"
    else:
        return json.dumps(content, allow_nan=False, separators=(",", ":"))
    if not any("\n" in entry or "[" in entry for entry in entries):
        return f"{brackets[0]}{', '.join(entries)}{brackets[1]}"  # a view, a scoring: one line
    inside = f",\n{margin} ".join(entries)
    return f"{brackets[0]}\n{margin} {inside}\n{margin}{brackets[1]}"


def _entries(content: Any, margin: str) -> list[str]:
    named = ((entry.name, getattr(content, entry.name)) for entry in fields(content))
    return [f"{json.dumps(name)}: {dump(value, margin)}" for name, value in named]


def parse(text: str | bytes, kind: Any) -> Any:
    """Read a record of the type ``kind``, a dataclass.

    Raises:
        BundleError: The text is damaged, incomplete, or of another schema version.
    """
    from pydantic_core import from_json  # here, so that the library needs only NumPy

    try:
        version = from_json(text)["schema_version"]
        if version != SCHEMA_VERSION:
            older = isinstance(version, int) and version < SCHEMA_VERSION
            raise BundleError(
                f"calibration.json has schema version {version}, this version reads "
                f"{SCHEMA_VERSION}: "
                + ("run `florilege calibrate BUNDLE --data DATA`" if older else "update florilege")
            )
        return _reader(kind).validate_json(text)
    except (ValueError, TypeError, KeyError) as error:
        raise BundleError(
            f"calibration.json is damaged ({_fault(error)}): calibrate the bundle again"
        ) from error


@cache
def _reader(kind: Any) -> Any:
    """A strict reader of records: every entry must have exactly its declared type."""
    from pydantic import ConfigDict, TypeAdapter

    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    optional: Any = kind | None  # pydantic takes no configuration for a plain dataclass
    return TypeAdapter(optional, config=strict)


def _fault(error: Exception) -> str:
    """The first fault and its place."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
