"""What the server answers and what may be asked, as types.

Written from the description of the interface; each class is a schema of `/openapi.json`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

Guarantee = Literal[
    "mean",
    "probability",
]
Include = Literal[
    "scores",
    "marginals",
    "rollup",
]
Rank = Literal[
    "genus",
    "family",
]
Rule = Literal[
    "average_k",
    "top_k",
    "coverage",
    "balanced_average_k",
    "balanced_coverage",
    "class_coverage",
]
Verdict = Literal[
    "accepted",
    "suspect",
    "rejected",
    "not_judged",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """Which model answered, exactly."""

    name: str
    """Name of the bundle."""
    version: str
    """Version of the bundle."""
    bundle_sha256: str
    """Hash over all files of the bundle."""
    calibration_id: str
    """Names the thresholds; changes with each calibration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """What was asked, with every default filled in."""

    images: int
    """Photos in the request."""
    rule: Rule
    k: float | None
    """Average (or, for top_k, exact) set size asked for."""
    coverage: float | None
    """Share of sets that should hold the truth."""
    guarantee: Guarantee | None
    """What is promised about new photos."""
    lang: str
    """First language in which common names were looked for."""
    list: str | None
    """The list that the classes were restricted to."""
    only: tuple[str, ...] | None
    """The classes that `only` stands for, within the list if there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """Whether the photo shows something the model knows at all."""

    verdict: Verdict
    """`accepted`; `suspect`: it looks unlike the photos the model knows, the set is untouched;
    `rejected`: the same with reject=true, the set is empty; `not_judged`: the bundle has nothing to
    judge by.
    """
    method: str | None
    """How `value` is computed."""
    value: float | None
    """How familiar the photo looks; more is more."""
    threshold: float | None
    """Below it a photo is suspect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonName:
    """A name people use."""

    name: str
    lang: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ThumbnailInfo:
    """A reference picture of a class."""

    url: str
    """Where it is, relative to the root of the server."""
    author: str | None
    licence: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Taxon:
    """What a class stands for."""

    scientific_name: str
    genus: str | None
    family: str | None
    ids: Mapping[str, str | None]
    """Keys in other catalogues: always gbif, null where it is unknown."""
    common_names: tuple[CommonName, ...]
    link: str | None
    """Address of a page about it."""
    thumbnail: ThumbnailInfo | None
    """Null where there is no picture."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One class with its score."""

    rank: int
    """1 is the best."""
    class_id: str
    score: float
    """The very number compared with lambda."""
    in_set: bool
    top_k_probability: float | None
    """Probability to be among the k best; only with include=marginals."""
    taxon: Taxon


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollup:
    """A genus or family that classes of the set belong to."""

    rank: Rank
    name: str
    score: float
    """Share of all scores that its classes hold together."""
    covers_set: bool
    """Whether every class of the set belongs to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A figure measured on photos of one part of the data, with its interval."""

    value: float
    ci95: tuple[float, float] | None
    """95 % confidence interval."""
    split: str
    """The part of the data it was measured on."""
    rows: int
    """How many photos that part has."""
    selection_split: bool | None
    """Whether some of these photos also trained the network, or chose it, its head or kind of
    score: hit rates are then too good for new photos. Null where not known.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class SetInfo:
    """How the set was drawn and what it promises."""

    rule: Rule
    k: float | None
    coverage: float | None
    guarantee: Guarantee | None
    """What the threshold was chosen to promise about new photos, the coverage or a mean size of at
    most k: `mean`, on average over calibrations; `probability`, for all but a small share of
    calibrations; null: nothing, the figures are measured.
    """
    guaranteed: bool
    """Whether that promise holds: the photos calibrated on chose nothing else."""
    lambda_val: float | None = field(metadata={"json": "lambda"})
    """The threshold: a class is in the set when its score is at least this. Null for top_k, which
    compares nothing.
    """
    score_kind: str
    """softmax or sigmoid: how logits become scores."""
    head: str
    """The output of the network that scores."""
    min_size: int
    """The set always holds at least this many classes."""
    max_size: int | None
    """A larger set is cut down to this many best classes; null for no such bound."""
    size: int
    """Classes in this set."""
    calibrated: bool
    """Whether the figures below hold for this request."""
    truncated: bool
    """Whether max_results cut the list below the set."""
    expected_size: Measured | None
    """Mean set size of this rule."""
    hit_rate: Measured | None
    """Share of sets that held the true class."""
    statement: str | None
    """The same in a sentence or two: in the first language asked for that it is written in (en, fr,
    de, es), else in English.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned:
    """Something that makes the answer weaker than usual."""

    code: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A prediction set."""

    id: str
    """Id of the answer, made by the server; feedback names it."""
    model: Model
    query: Query
    set: SetInfo
    best_match: str | None
    """Scientific name of the best class of the set."""
    results: tuple[Result, ...]
    """The set, best first; then, if asked, the others."""
    rollup: tuple[Rollup, ...] | None
    """Only with include=rollup."""
    rejection: Rejection
    warnings: tuple[Warned, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassEntry:
    """A class the model knows."""

    class_id: str
    taxon: Taxon
    training_count: int | None
    """Training photos of this class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassList:
    """The classes that match, in the order of the model."""

    total: int
    """Classes that match, also those beyond limit."""
    classes: tuple[ClassEntry, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedbackReceipt:
    """Feedback that is stored."""

    request_id: str
    in_set: bool | None
    """Whether the class was in the set that was answered; null for no organism."""
    photos: int
    """How many photos of the answer are kept: with `consent`, all of them where this server keeps
    photos and still remembers these, else none.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one request may hold."""

    max_body_bytes: int
    max_pixels: int
    max_images: int
    upload_deadline_s: float
    media_types: tuple[str, ...]
    """Image types that are accepted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One calibrated setting of a rule."""

    k: float | None
    coverage: float | None
    lambda_val: float | None = field(metadata={"json": "lambda"})
    expected_size: Measured | None
    hit_rate: Measured | None
    small_classes: int | None
    """For class_coverage: classes with too few photos for a threshold of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedClasses:
    """What a rule is calibrated for with the classes of a list alone."""

    list: str
    """Its name."""
    points: tuple[Point, ...]
    """For one photo, by growing k or coverage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedList:
    """A list that `list` may name."""

    name: str
    classes: int
    """How many classes it holds."""
    calibrated: bool
    """Whether it has thresholds of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Promised:
    """What a rule is calibrated for where more is asked of it than it promises anyway."""

    guarantee: Guarantee
    delta: float | None
    """For `probability`: how often a calibration may break the promise."""
    max_size: int | None
    """Larger sets are cut down to this many classes."""
    points: tuple[Point, ...]
    """For one photo, by growing k or coverage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeveralPhotos:
    """What a rule is calibrated for with several photos of one plant."""

    images: int
    """Photos in a request."""
    fusion: str
    """How their scores become one."""
    points: tuple[Point, ...]
    """By growing k or coverage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleInfo:
    """A rule with everything it is calibrated for."""

    rule: Rule
    min_size: int
    guarantee: Guarantee | None
    """What `points` promise anyway."""
    points: tuple[Point, ...]
    """For one photo, by growing k or coverage."""
    promised: tuple[Promised, ...]
    """The other guarantees, for one photo, to be asked for with `guarantee`."""
    several: tuple[SeveralPhotos, ...]
    """Further numbers of photos of one plant it is calibrated for."""
    lists: tuple[ListedClasses, ...]
    """Lists it is calibrated for, to be asked for with `list`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """How the head and the kind of score that serve were chosen.  Attributes:     k: Mean set size
    at which they were compared.     candidates: How many pairs of head and kind were compared; 1
    where both were given.     hit_rate: Of the best pair on the rows that chose it.
    honest_hit_rate: Of a pair chosen in the same way, on rows that had no part in choosing it,
    see :mod:`florilege.calibration.nested_cross_validation`.     honest_ci95: 95 % interval of the
    pair that serves, whichever was chosen.
    """

    k: float
    candidates: int
    hit_rate: float
    honest_hit_rate: float
    honest_ci95: tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCard:
    """What the server runs."""

    model: Model
    created: str | None
    classes: int
    """How many classes the model knows."""
    image_size: int
    """Side of the square the network sees, in pixels."""
    provider: str
    """What the network runs on."""
    head: str
    score_kind: str
    default_rule: Rule
    default_k: float
    selection: Selection
    """How head and kind of score were chosen, and the hit rate to expect of them."""
    rules: tuple[RuleInfo, ...]
    lists: tuple[OfferedList, ...]
    """What `list` may name."""
    languages: tuple[str, ...]
    """Languages with at least one common name."""
    feedback: bool
    """Whether `POST /v1/feedback` takes feedback."""
    feedback_photos: bool
    """Whether it keeps photos, with `consent`."""
    feedback_licence: str | None
    """Licence under which `consent` gives them; null where none are kept."""
    limits: Limits


class IdentifyOptions(TypedDict, total=False):
    """What may be asked about photos; what is left out is the server's choice."""

    rule: Rule
    """How the set is drawn."""
    k: float | None
    """Average set size (for top_k the exact one). One of the calibrated values; default 3, or the
    first calibrated one.
    """
    coverage: float | None
    """For the coverage rules: wanted share of hits."""
    guarantee: Guarantee | None
    """`mean` or `probability`: a mean size of at most k (average_k), or the coverage, on average
    over calibrations or for all but a small share of them.
    """
    lang: str | None
    """Language of the common names, such as `fr`. Default: the header Accept-Language, then
    English.
    """
    max_results: int | None
    """Most entries of `results`."""
    include: Sequence[Include]
    """More in the answer, separated by commas: `scores` (all classes), `marginals` (probability to
    be among the k best), `rollup` (genus and family).
    """
    reject: bool
    """Whether a photo that looks unlike those the model knows gets an empty set."""
    only: Sequence[str] | None
    """Score only these classes, separated by commas: ids, or the name of a genus or family."""
    list: str | None
    """Score only the classes of this list; `/v1/model` names the lists there are."""
