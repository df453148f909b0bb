"""What ``calibration.json`` holds: tables and the photos behind them; how it is written, read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from florilege.calibration.photo_groups import MadeFrom
from florilege.calibration.rules import RULES, LabelNoise
from florilege.calibration.sets import Floats, Guarantee, Ints
from florilege.calibration.view import Scoring, View
from florilege.errors import BundleError
from florilege.models.regions import RegionList
from florilege.models.runtime import Precision, Runtime, RuntimeName

TRAFFIC = "traffic"  # name of the split of a calibration from a score log


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The photos and the runtime that a record was measured with.

    Attributes:
        split: Name of the split; ``traffic`` for unlabelled photos of a score log.
        rows: Number of its photos that chose the thresholds, and measure the figures.
        choosing_rows: Number of further photos that chose head, scores and temperature; 0 where the
            same photos did both.
        classes_seen: Number of classes among them; None without labels.
        data_sha256: Hash of their bytes and class ids, in order.
        model_sha256: Hash of the graph.
        runtime: The runtime of the network.
        precision: Its numeric precision.
        decoder: Version of the decoder that read the photos; 1 ignored their colour profiles.
        observations: Number of observations that these photos show; None where the data do not name
            them.
        train_photos: How many of these photos also trained the network; None where the bundle lacks
            the hashes of its photos.
        near_copies: How many of those are here in other bytes, resized, re-encoded or cropped; None
            where nobody compared them.
        selection_photos: How many of them also chose the checkpoint.
        chose_checkpoint: Whether any of them did either; None where unknown.
        networks: How many networks they compared, such as the epochs of a run; None where nobody
            counted.
        chose_head: Whether they also chose among heads and kinds of score.
        label_noise: The assumption about their wrong labels; None where they are taken as they are.
    """

    split: str
    rows: int
    choosing_rows: int = 0
    classes_seen: int | None
    data_sha256: str
    model_sha256: str
    runtime: RuntimeName = "onnxruntime"
    precision: Precision = "float32"
    decoder: int = 1
    observations: int | None = None
    train_photos: int | None = None
    near_copies: int | None = None
    selection_photos: int | None = None
    chose_checkpoint: bool | None
    networks: int | None = None
    chose_head: bool
    label_noise: LabelNoise | None = None

    @property
    def served_by(self) -> Runtime:
        """The runtime of the network, which these thresholds are valid for."""
        return Runtime(self.runtime, self.precision)

    @property
    def selection_split(self) -> bool | None:
        """Whether some of these photos also trained or chose the network or head; None if unknown.

        If so, hit rates are too optimistic for new photos.
        """
        return True if self.chose_head else self.chose_checkpoint


@dataclass(frozen=True, kw_only=True)
class PlacePrior:
    """How much the place of a photo counts.

    Attributes:
        strength: Factor of the logarithms that are added to the logits; 0 where they gain nothing.
        gain: Hit rate at the default K that the place gains, on photos that did not choose.
        rows: Photos with a place, and a month if enough have one.
        simulated: Whether their places were drawn from the records of their species.
        occurrences_sha256: Hash of the table of occurrences.
    """

    strength: float
    gain: float
    rows: int
    simulated: bool
    occurrences_sha256: str


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The choice of the head and the kind of score to serve.

    Attributes:
        k: Mean set size of the comparison.
        candidates: Number of compared pairs of head and kind; 1 where both were given.
        hit_rate: Hit rate of the best pair on the rows that chose it.
        honest_hit_rate: Hit rate of a pair chosen in the same way, on rows that did not choose it,
            see :mod:`florilege.calibration.comparison`; None where the rows chose or trained the
            network too, or nobody knows: the record has no outputs of other networks.
        honest_ci95: 95 % interval of the chosen pair, valid whichever pair and network was chosen;
            None where nothing can be promised, see :mod:`florilege.calibration.certificate`.
    """

    k: float
    candidates: int
    hit_rate: float
    honest_hit_rate: float | None
    honest_ci95: tuple[float, float] | None


SCHEMA_VERSION = 10


class Counts(NamedTuple):
    """One threshold and what was counted of its sets, in the order of the file.

    A record holds thousands of them, so it stores whole numbers, and no figure that follows from
    them: :func:`.operating_point.row_of` computes those.
    """

    value: float  # the requested K or coverage
    lambda_val: float | None  # the threshold; None for ``top_k``
    size_sum: int  # classes in all sets
    size_squares: int  # sum of the squared sizes
    size_rows: int | float  # independent rows that would tell the mean size as well
    hit_rows: int | float | None  # the same for the hit rate; None where the photos have no labels
    ties: int  # scores kept beyond the rank
    sizes: tuple[int, ...]  # sets in each bin of ``size_bins``, without trailing zeros
    misses: tuple[int, ...]  # how many of them lack the label, likewise
    chance: tuple[float, ...] = ()
    """Where labels are wrong: how many of them would hold a class drawn from the label's group."""

    @property
    def label_hits(self) -> int:
        """How many sets hold the label, right or wrong."""
        return sum(self.sizes) - sum(self.misses)

    @property
    def mean_chance(self) -> float:
        """Where labels are wrong: the share of sets with a class drawn from the label's group."""
        return sum(self.chance) / sum(self.sizes)

    def hit_rate(self, noise: LabelNoise | None) -> float:
        """Share of sets with the true class."""
        share = self.label_hits / sum(self.sizes)
        return share if noise is None else noise.corrected(share, self.mean_chance)


@dataclass(frozen=True, kw_only=True)
class ByClass:
    """Thresholds of ``class_coverage`` for one coverage: one for each class.

    A threshold is subtracted from the weighted score, which is then compared with ``lambda_val``,
    0.

    Attributes:
        lowest: The threshold of every class that has too few photos for one of its own.
        own: The threshold of each class; None where it is ``lowest``.
    """

    lowest: float
    own: tuple[float | None, ...]

    @classmethod
    def of(cls, thresholds: Floats) -> "ByClass":
        """From the thresholds of all classes, ``(classes,)``."""
        lowest = float(thresholds.min())
        own = (None if value == lowest else value for value in thresholds.tolist())
        return cls(lowest=lowest, own=tuple(own))

    def thresholds(self) -> Floats:
        """The thresholds of all classes, ``(classes,)``."""
        return np.array([self.lowest if value is None else value for value in self.own])


@dataclass(frozen=True, kw_only=True)
class CalibratedList(RegionList):
    """A list of classes and the photos that chose its thresholds.

    Attributes:
        rows: Number of photos of its classes; 0 if it has no thresholds.
        classes_seen: Number of its classes among these photos.
    """

    rows: int
    classes_seen: int

    @classmethod
    def of(cls, region: RegionList, labels: Ints) -> "CalibratedList":
        """The list with the numbers of some photos, from their labels, ``(rows,)``."""
        listed = labels[np.isin(labels, region.classes)]
        classes_seen = np.unique(listed).size
        return cls(
            name=region.name, classes=region.classes, rows=listed.size, classes_seen=classes_seen
        )

    def to_plain(self, rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The JSON object of the list, with those of its rules."""
        numbers = {"classes": len(self.classes), "rows": self.rows}
        return {"list": self.name, **numbers, "rules": rules}


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Thresholds of one rule in a table.

    Attributes:
        rule: Name of the rule.
        guarantee: The guarantee for new photos; None where figures are only measured.
        counts: One entry per threshold; ``value`` is K or the coverage, ascending.
        by_class: Those of ``class_coverage``, for each of ``counts``; empty for the other rules.
    """

    rule: str
    guarantee: Guarantee | None
    counts: tuple[Counts, ...]
    by_class: tuple[ByClass, ...] = ()

    def __post_init__(self) -> None:
        by_class = self.rule in RULES and RULES[self.rule].by_class
        if len(self.by_class) != by_class * len(self.counts):
            raise ValueError(
                f"{len(self.by_class)} thresholds by class for {len(self.counts)} of {self.rule!r}"
            )

    @property
    def values(self) -> list[float]:
        """The calibrated values of K or the coverage, ascending."""
        return [counts.value for counts in self.counts]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Thresholds of every rule for one view, and one way to compute scores.

    Attributes:
        view: Photos, list and place of the requests that it is for.
        scoring: How logits become the scores that thresholds are compared with.
        rows: Number of photos, or of groups of photos, of the measurement.
        independent: Whether each row shows an observation of its own.
        made_from: What the photos of a group have in common, see
            :class:`florilege.calibration.photo_groups.PhotoGroups`; None for single photos.
        candidates: How many scores these photos compared, which guarantees allow for.
        label_noise: The assumption about wrong labels that thresholds and hit rates are corrected
            for; None where labels are taken as they are.
        min_size: 1 where every set holds its best class, else 0.
        delta: For the guarantee ``probability``: the share of calibrations that may break it.
        max_size: Larger sets under a guaranteed mean size keep only this many best classes.
        rules: The thresholds of each rule and guarantee.
    """

    view: View
    scoring: Scoring
    rows: int
    independent: bool
    made_from: MadeFrom | None
    candidates: int
    label_noise: LabelNoise | None
    min_size: int
    delta: float
    max_size: int
    rules: tuple[Thresholds, ...]

    def __post_init__(self) -> None:
        if (self.made_from is None) != (self.view.photos == 1):
            raise ValueError(f"{self.view} conflicts with made_from {self.made_from!r}")
        if self.candidates < 1:
            raise ValueError(f"candidates must be at least 1, got {self.candidates}")
        for counts in (counts for rule in self.rules for counts in rule.counts):
            # Older records have 0 independent rows where two plants showed a view; figures divide.
            positive = counts.size_rows > 0 and counts.hit_rows != 0
            of_rows = sum(counts.sizes) == self.rows and 0 <= sum(counts.misses) <= self.rows
            if not (positive and of_rows):
                raise ValueError(f"counts at {counts.value:g} are not of {self.rows} rows")


def dump(content: Any, margin: str = "") -> str:
    """JSON text of a dataclass, with a line for each dataclass in a list, and without defaults.

    Equal content gives equal text, and floats have all digits. ``margin`` precedes nested lines.
    """
    if is_dataclass(content) and not isinstance(content, type):
        entries = _entries(content, margin + " ")
        if not any("\n" in entry for entry in entries):
            return f"{{{', '.join(entries)}}}"
        return f"{{\n{margin} " + f",\n{margin} ".join(entries) + f"\n{margin}}}"
    if isinstance(content, tuple) and content and is_dataclass(content[0]):
        lines = (f"\n{margin} {dump(entry, margin + ' ')}" for entry in content)
        return f"[{','.join(lines)}\n{margin}]"
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def parse(text: str | bytes, kind: Any) -> Any:
    """Read a record of the type ``kind``, a dataclass.

    Raises:
        BundleError: The text is damaged, incomplete, or of another schema version.
    """
    # Here, so that the library needs only NumPy.
    from pydantic_core import from_json

    try:
        # Before all else: a record of another version does not fit the reader, but is not damaged.
        version = from_json(text)["schema_version"]
        if version != SCHEMA_VERSION:
            older = isinstance(version, int) and version < SCHEMA_VERSION
            raise BundleError(
                f"calibration.json has schema version {version}, this version reads "
                f"{SCHEMA_VERSION}: "
                + ("run `florilege calibrate BUNDLE --data DATA`" if older else "update florilege")
            )
        return _reader(kind).validate_json(text)
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise BundleError(
            f"calibration.json is damaged ({_fault(error)}): calibrate the bundle again"
        ) from error


def _entries(content: Any, margin: str) -> list[str]:
    values = ((entry, getattr(content, entry.name)) for entry in fields(content))
    return [
        f"{json.dumps(entry.name)}: {dump(value, margin)}"
        for entry, value in values
        if value != entry.default
    ]


@cache
def _reader(kind: Any) -> Any:
    """A strict reader of records: every entry must have exactly its declared type."""
    from pydantic import ConfigDict, TypeAdapter

    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    # pydantic takes no configuration for a plain dataclass.
    optional: Any = kind | None
    return TypeAdapter(optional, config=strict)


def _fault(error: Exception) -> str:
    """The first fault and its place."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
