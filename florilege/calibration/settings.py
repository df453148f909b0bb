"""Settings of ``calibrate`` and ``evaluate``: each field is a flag."""

from collections.abc import Sequence
from math import ceil, log
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from florilege.calibration.rejection import DEFAULT_SHARE
from florilege.calibration.rules import (
    MACRO_WEIGHT,
    PREFERRED_K,
    parse_label_noise,
)
from florilege.calibration.scores import SCORE_KINDS, ScoreKind
from florilege.calibration.threshold import DEFAULT_MAX_SIZE, check_average_k
from florilege.calibration.view import Scoring, View
from florilege.errors import suggestion
from florilege.models.regions import PlaceKind, RegionList
from florilege.models.runtime import Precision, Runtime, RuntimeName
from florilege.settings import Flag, FlagSettings

DEFAULT_KS = (1.0, 2.0, 3.0, 5.0, 10.0)
GRID_END = 20
_DEFAULT_DELTA = 0.1
TEMPERATURES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)


def _numbers(text: Any) -> Any:
    """The numbers in a text such as ``1,2.5`` or in a sequence, without repeats."""
    try:
        parts = text.split(",") if isinstance(text, str) else text
        return text if text is None else tuple(dict.fromkeys(float(part) for part in parts))
    except ValueError as error:
        raise ValueError("takes numbers separated by commas") from error


_ViewWord = Literal["all", "none", "photos", "lists", "places"]


def _words(text: Any) -> Any:
    """The words of a text such as ``photos,lists``."""
    return tuple(text.split(",")) if isinstance(text, str) else text


_Numbers = Annotated[tuple[float, ...], BeforeValidator(_numbers)]
_Coverages = Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], BeforeValidator(_numbers)]
# In this range no float32 logit can overflow.
_Temperatures = Annotated[
    tuple[Annotated[float, Field(ge=0.01, le=100)], ...], BeforeValidator(_numbers)
]
_Device = Annotated[Literal["auto", "cpu", "cuda"], Field(description="Where the network runs.")]
_Data = Annotated[str | None, Field(description="Folder, manifest, or flora.")]
_Report = Annotated[
    Path | None,
    Field(description="HTML file to write a report to; needs the extra `report`."),
]
_OutputCache = Annotated[
    str | None,
    Flag(metavar="FOLDER|none"),
    Field(
        description="Keeps what the network says of each photo, so that the next command with "
        "these photos takes seconds; by default in the user's cache folder, 8 GB at most."
    ),
]
_AllRules = Annotated[
    bool,
    Flag(name="--all"),
    Field(description="Show every rule and guarantee, not only average_k."),
]
_AsJson = Annotated[bool, Flag(name="--json"), Field(description="Print one JSON object.")]
_Method = Annotated[str | None, BeforeValidator(lambda name: None if name == "none" else name)]


class CalibrationSettings(FlagSettings):
    """Settings of a calibration of any bundle; :class:`CalibrationPlan` is for one bundle."""

    ks: Annotated[_Numbers | None, Flag(name="--k", type=str | None)] = None
    """Mean set sizes to calibrate; by default 1,2,3,5,10, up to the classes."""
    coverages: Annotated[_Coverages, Flag(name="--coverage", type=str)] = Field(
        default="0.9,0.95", validate_default=True
    )
    """Coverages to calibrate."""
    min_size: int = Field(default=1, ge=0, le=1)
    """1: every set holds its best class; 0: sets may be empty."""
    macro_weight: float = Field(default=MACRO_WEIGHT, ge=0, le=1)
    """For the balanced rules and class_coverage: 0 counts photos, 1 counts classes."""
    head: str | None = None
    """Head to serve; by default the best on these photos."""
    score_kind: ScoreKind | None = None
    """Scores to serve; by default the better on these photos."""
    temperatures: Annotated[_Temperatures | None, Flag(name="--temperature", type=str | None)] = (
        Field(
            default=None,
            description="Temperatures of softmax to compare; by default 0.25 to 2, or 1 where head "
            "and scores are given.",
        )
    )
    rejection_method: Annotated[_Method, Flag(type=str)] = "auto"
    """How to detect photos of something else: auto (by features, if there are any) or none."""
    suspect_share: float = Field(default=DEFAULT_SHARE, ge=0, lt=1)
    """Share of these photos to treat as suspect."""
    delta: float = Field(default=_DEFAULT_DELTA, gt=0, lt=1)
    """Share of calibrations that may break guarantee=probability."""
    max_size: int | None = None
    """Largest set under a guaranteed mean size; by default 50, or 2 K."""
    list_files: Annotated[
        tuple[str, ...], Flag(name="--list", type=list[str] | None, metavar="[NAME=]FILE")
    ] = Field(
        default=(),
        description="List of class ids, one per line, or folder of lists; each gets its own "
        "thresholds; may be repeated.",
    )
    occurrences: Annotated[str | None, Flag(metavar="FILE|none")] = Field(
        default=None,
        description="Table region,month,class_id,weight of where and when each class was recorded; "
        "none removes the one in the bundle.",
    )
    views_wanted: Annotated[
        tuple[_ViewWord, ...], BeforeValidator(_words), Flag(name="--views", type=str)
    ] = Field(
        default="all",
        validate_default=True,
        description="Which circumstances get thresholds of their own, alone and together: all, "
        "none, or some of photos, lists, places.",
    )
    label_noise: Annotated[str | None, Flag(metavar="[KIND:]RATE|REVIEW.csv")] = Field(
        default=None,
        description="Share of the labels of these photos that were replaced by a class drawn "
        "evenly from all, or after genus: or group: from the same; or the CSV of a review to "
        "estimate it from.",
    )
    skip_damaged: bool = False
    """Leave out photos that cannot be read, and list them."""
    runtime: RuntimeName = "onnxruntime"
    """Runtime of the network; openvino adds a second calibration to the bundle."""
    precision: Precision | None = None
    """float32, or bf16 at half the cost; openvino defaults to bf16."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        Runtime.of(self.runtime, self.precision)
        parse_label_noise(self.label_noise)
        if self.temperatures == () or (
            self.score_kind == "sigmoid" and self.temperatures not in (None, (1.0,))
        ):
            raise ValueError(
                f"temperatures must hold a number, and only 1 for sigmoid, got {self.temperatures}"
            )
        if self.rejection_method not in (None, "auto"):
            near = suggestion(str(self.rejection_method), ("auto", "none"))
            raise ValueError(
                f"rejection_method must be auto or none, got {self.rejection_method!r}{near}"
            )
        return self


class CalibrateCommand(FlagSettings):
    """What ``florilege calibrate`` reads, where it runs and what it shows."""

    data: _Data = None
    split: str = "val"
    """Split to calibrate on, or part of one: test:0-0.3."""
    report: _Report = None
    score_log: Path | None = None
    """Score log of a server to calibrate on, not --data."""
    approve: bool = False
    """With --score-log: store the new thresholds in the bundle."""
    device: _Device = "auto"
    ray: Annotated[bool, Flag(name="--ray")] = False
    """Run the network on Ray: RAY_ADDRESS or this machine."""
    ray_workers: int | None = Field(default=None, ge=1)
    """With --ray: number of processes on all machines."""
    output_cache: _OutputCache = None
    all_rules: _AllRules = False
    as_json: _AsJson = False


class EvaluateCommand(FlagSettings):
    """What ``florilege evaluate`` measures, where it runs and what it shows."""

    data: _Data = None
    split: str = "test"
    """Split to measure on, or part of one: test:0.3-1."""
    baseline: Path | None = None
    """An older bundle to compare with on the same photos."""
    gate: Path | None = None
    """With --baseline: a YAML file with the allowed losses."""
    feedback_store: Path | None = None
    """Feedback store of a server, or JSON Lines, to measure hit rates on."""
    report: _Report = None
    label_noise: Annotated[str | None, Flag(metavar="[KIND:]RATE|REVIEW.csv")] = None
    """Wrong labels among these photos, as for calibrate; hit rates allow for them."""
    device: _Device = "auto"
    runtime: RuntimeName | None = None
    """Runtime to measure; by default the one that serves."""
    output_cache: _OutputCache = None
    skip_damaged: Annotated[bool, Flag(name="--skip-damaged")] = False
    """Leave out photos that cannot be read."""
    all_rules: _AllRules = False
    as_json: _AsJson = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        parse_label_noise(self.label_noise)
        return self


class CalibrationPlan(CalibrationSettings):
    """Settings for one bundle: checked against its classes, with a definite rejection method."""

    classes: int
    ks: _Numbers = ()  # by default those of 1, 2, 3, 5 and 10 that do not exceed the classes
    images: tuple[int, ...] = (2, 3, 4, 5)  # numbers of photos of one observation, besides 1
    lists: tuple[RegionList, ...] = ()  # the content of `list_files`

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("ks") is None:
            return {**values, "ks": tuple(k for k in DEFAULT_KS if k <= values["classes"])}
        return values

    @model_validator(mode="after")
    def _check_with_classes(self) -> Self:
        if not self.ks:
            raise ValueError("at least one K is needed")
        for k in self.ks:
            check_average_k(k, lowest=self.min_size, classes=self.classes, name="k")
        if any(images < 2 for images in self.images):
            raise ValueError(f"images must be 2 or more, got {self.images}")
        if not self.compared[-1] <= self.largest_set <= self.classes:
            raise ValueError(
                f"max_size must be in [{self.compared[-1]:g}, {self.classes}], got {self.max_size}"
            )
        return self

    def views(self, *, places: bool) -> list[View]:
        """Every combination of photos, list and known place, if there are ``places``.

        The plain view comes first.
        """
        names = [region.name for region in self.lists] if self._wants("lists") else []
        kinds: tuple[PlaceKind, ...] = get_args(PlaceKind)
        return [
            View(photos=number, list=name, place=kind)
            for number in (1, *(self.images if self._wants("photos") else ()))
            for name in (None, *names)
            for kind in (None, *(kinds if places and self._wants("places") else ()))
        ]

    def _wants(self, circumstance: _ViewWord) -> bool:
        return bool({"all", circumstance} & set(self.views_wanted))

    def check_head(self, heads: Sequence[str]) -> None:
        """Raise ValueError if the bundle has no head with the requested name."""
        if self.head not in (None, *heads):
            near = suggestion(str(self.head), heads)
            raise ValueError(f"head must be one of {', '.join(heads)}, got {self.head!r}{near}")

    def candidates(self, heads: Sequence[str]) -> list[list[Scoring]]:
        """For each head and kind of score to compare, its temperatures, the nearest to 1 first.

        For ``sigmoid`` this is 1 alone: others do not change the sets of ``average_k``. A single
        candidate by default also has 1 alone: the photos choose nothing, so that guarantees hold.
        """
        pairs = [
            (head, kind)
            for head in heads
            for kind in SCORE_KINDS
            if self.head in (None, head) and self.score_kind in (None, kind)
        ]
        default = TEMPERATURES if len(pairs) > 1 else (1.0,)
        temperatures = default if self.temperatures is None else self.temperatures
        nearest = sorted(temperatures, key=lambda value: abs(log(value)))
        return [
            [
                Scoring(head=head, score_kind=kind, temperature=value)
                for value in (nearest if kind == "softmax" else (1.0,))
            ]
            for head, kind in pairs
        ]

    @property
    def default_k(self) -> float:
        """3 if there are so many classes, else the first requested K."""
        return PREFERRED_K if self.classes >= PREFERRED_K else self.ks[0]

    @property
    def grid(self) -> tuple[float, ...]:
        """1.0, 1.1, ... to 20 or the number of classes, and every requested K; ascending."""
        last = min(GRID_END, self.classes)
        # Divided, not added up: only the quotient is the float that the text 1.1 stands for.
        return tuple(sorted({*(step / 10 for step in range(10, 10 * last + 1)), *self.ks}))

    @property
    def compared(self) -> tuple[float, ...]:
        """Every requested K and the default K, at which heads and kinds of score are compared."""
        return tuple(sorted({*self.ks, self.default_k}))

    @property
    def largest_set(self) -> int:
        """Largest set under a guaranteed mean size."""
        if self.max_size is not None:
            return self.max_size
        return min(self.classes, max(DEFAULT_MAX_SIZE, ceil(2 * self.compared[-1])))
