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
    "dial",
]
Place = Literal[
    "region",
    "region_and_month",
]
Rank = Literal[
    "genus",
    "family",
]
Reasons = Literal[
    "photos_trained",
    "origin_unknown",
    "choice_uncounted",
    "places_drawn",
    "groups_of_one_species",
    "plants_of_traffic",
    "class_counts_from_photos",
    "wrong_labels_by_class",
    "wrong_labels_cross_list",
    "suspects_rejected",
    "another_view",
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
    """The exact model that answered."""

    name: str
    """Name of the bundle."""
    version: str
    """Version of the bundle."""
    bundle_sha256: str
    """Hash over all files of the bundle."""
    calibration_id: str
    """Id of the thresholds; each calibration changes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """The query, with every default filled in."""

    images: int
    """Photos in the request."""
    rule: Rule
    k: float | None
    """Requested average (for top_k: exact) set size."""
    coverage: float | None
    """Share of sets that should contain the right class."""
    guarantee: Guarantee | None
    """What is guaranteed for new photos."""
    lang: str
    """First language in which common names are looked up."""
    list: str | None
    """The list that the classes were restricted to."""
    only: tuple[str, ...] | None
    """The classes that `only` names, within the list if there is one."""
    region: str | None
    """Where the photo was taken: a region, or its grid cell."""
    month: int | None
    """When it was taken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """Whether the photo shows something the model knows."""

    verdict: Verdict
    """`accepted`; `suspect`: it looks unlike the photos the model knows, the set is unchanged;
    `rejected`: the same with reject=true, the set is empty; `not_judged`: the bundle has no
    rejection rule.
    """
    method: str | None
    """How `value` is computed."""
    value: float | None
    """Familiarity of the photo; higher is more familiar."""
    threshold: float | None
    """A photo with a lower value is suspect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonName:
    """A name people use."""

    name: str
    lang: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ThumbnailInfo:
    """A reference picture of a class."""

    url: str
    """Its address, relative to the root of the server."""
    author: str | None
    licence: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Taxon:
    """The species of a class."""

    scientific_name: str
    genus: str | None
    family: str | None
    ids: Mapping[str, str | None]
    """Ids in other catalogues: always `gbif`, null if unknown."""
    common_names: tuple[CommonName, ...]
    link: str | None
    """Address of a page about it."""
    thumbnail: ThumbnailInfo | None
    """Null if there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One class with its score."""

    rank: int
    """1 is the best of all classes."""
    class_id: str
    score: float
    """The number compared with lambda."""
    in_set: bool
    top_k_probability: float | None
    """Probability of being among the k best; only with include=marginals."""
    in_range: bool | None
    """Whether it was recorded at the place and season of the request; null if these were not given,
    or nothing was recorded of the region or of the class.
    """
    taxon: Taxon


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollup:
    """A genus or family that classes of the set belong to."""

    rank: Rank
    name: str
    score: float
    """Share of the sum of all scores that its classes have."""
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
    """Whether some of these photos also trained or selected the network, its head or kind of score:
    hit rates are then too high for new photos. Null if unknown.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewInfo:
    """What is known beside the pictures."""

    images: int
    """Photos of one organism."""
    list: str | None
    """The list whose classes alone are scored."""
    place: Place | None
    """What is known of the place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetInfo:
    """How the set was drawn and what it guarantees."""

    rule: Rule
    k: float | None
    coverage: float | None
    guarantee: Guarantee | None
    """What the threshold guarantees for new photos, the coverage or a mean size of at most k:
    `mean`, on average over calibrations; `probability`, for all but a small share of calibrations;
    null: nothing, the figures are measured.
    """
    guaranteed: bool
    """Whether the guarantee holds for new photos; if not, `reasons` says why."""
    reasons: tuple[Reasons, ...]
    """Why nothing is promised of new photos, in stable codes; empty where it is."""
    calibrated_for: ViewInfo
    """What the threshold was calibrated for; other than the request where `calibrated` is false."""
    lambda_val: float | None = field(metadata={"json": "lambda"})
    """The threshold: a class is in the set when its score is at least this. Null for top_k, which
    uses no threshold.
    """
    score_kind: str
    """softmax or sigmoid: how logits become scores."""
    head: str
    """The output of the network that gives the scores."""
    min_size: int
    """The set always contains at least this many classes."""
    max_size: int | None
    """A larger set is cut to this many best classes; null if there is no limit."""
    size: int
    """Classes in this set."""
    none_of_these: bool | None
    """Only with none=true: whether the set also holds the answer that the photo shows none of the
    classes. For photos of unknown classes it does with the requested `coverage`, by default the
    first calibrated one. Null where this is not calibrated.
    """
    calibrated: bool
    """Whether the figures below hold for this request."""
    truncated: bool
    """Whether max_results or min_score left classes of the set out of `results`."""
    expected_size: Measured | None
    """Mean set size of this rule."""
    hit_rate: Measured | None
    """Share of sets that held the true class."""
    hit_rate_at_size: Measured | None
    """Share of sets of this size that held the true class; null where the calibration had none of
    this size. From 9 classes on, sizes up to half larger count together.
    """
    least_coverage: float | None
    """The least share of new sets that hold the true class. With 90 % confidence it holds for every
    k at once, even for a k chosen by these shares. Null if none is promised.
    """
    statement: str | None
    """These figures in a sentence or two, in the first requested language of en, fr, de and es,
    else in English.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """Another set of the same rule for the same photo, with the setting that gives it."""

    k: float | None
    coverage: float | None
    lambda_val: float | None = field(metadata={"json": "lambda"})
    size: int
    """Classes in the set: the first of `results`."""
    expected_size: Measured | None
    hit_rate: Measured | None
    hit_rate_at_size: Measured | None
    least_coverage: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned:
    """A reason why the answer is less reliable than usual."""

    code: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A prediction set."""

    id: str
    """Id of the answer, set by the server; feedback refers to it."""
    model: Model
    query: Query
    set: SetInfo
    best_match: str | None
    """Scientific name of the best class of the set."""
    results: tuple[Result, ...]
    """The set, best first; others with include=scores, include=dial or always."""
    dial: tuple[Stop, ...] | None
    """Only with include=dial: the sets of this photo at the other calibrated values of k or
    coverage, by increasing size. Of the values that give one set, it has the one nearest to that of
    the answer. A set of more than 75 classes is left out unless it is the answer's. Empty for
    class_coverage, whose sets are not nested.
    """
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
class Picture:
    """A picture to compare a photo with."""

    url: str
    """Its address, relative to the root of the server."""
    author: str | None
    licence: str | None
    organ: str | None
    """Such as flower or leaf, if that is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassDetails:
    """A class the model knows, with what helps to tell it from others."""

    class_id: str
    taxon: Taxon
    training_count: int | None
    """Training photos of this class."""
    pictures: tuple[Picture, ...]
    look_alikes: tuple[ClassEntry, ...]
    """Those it shared sets with most often on validation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassList:
    """The matching classes, in the order of the model."""

    total: int
    """All matching classes, also those beyond `limit`."""
    classes: tuple[ClassEntry, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Embeddings:
    """The features of photos: the input of the network's last layer."""

    model: Model
    dimensions: int
    """Numbers in the features of a photo."""
    embeddings: tuple[tuple[float, ...], ...] | None
    """Those of each photo; null with base64=true."""
    base64: tuple[str, ...] | None
    """With base64=true: those of each photo as float32, little-endian, in base64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedbackReceipt:
    """Feedback that is stored."""

    request_id: str
    in_set: bool | None
    """Whether the class was in the set of the answer; null for no organism."""
    photos: int
    """How many photos of the answer are kept: with `consent` all of them, if the server keeps
    photos and still has these in memory, else none.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One calibrated setting of a rule."""

    k: float | None
    coverage: float | None
    lambda_val: float | None = field(metadata={"json": "lambda"})
    expected_size: Measured | None
    hit_rate: Measured | None
    least_coverage: float | None
    macro_weight: float | None
    """For rules that favour rare species: 0 counts all photos alike, 1 all species."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownPlace:
    """What a rule is calibrated for where the place of the photo is known."""

    place: Place
    """What is known of it."""
    points: tuple[Point, ...]
    """For one photo, by increasing k or coverage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of one request."""

    max_body_bytes: int
    max_pixels: int
    max_images: int
    upload_deadline_s: float
    media_types: tuple[str, ...]
    """Accepted image types."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedClasses:
    """What a rule is calibrated for with only the classes of a list."""

    list: str
    """Name of the list."""
    points: tuple[Point, ...]
    """For one photo, by increasing k or coverage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedList:
    """A list that `list` may name."""

    name: str
    classes: int
    """How many classes it holds."""
    calibrated: bool
    """Whether it has thresholds of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacesInfo:
    """The table of occurrences behind `region`, `month`, `latitude`, `longitude` and `date`."""

    regions: tuple[str, ...] | None
    """What `region` may name; null for cells of a grid, which latitude and longitude name."""
    cell_degrees: float | None
    """Side of a cell; null for named regions."""
    calibrated: tuple[Place, ...]
    """What has thresholds of its own."""
    strength: float
    """How much a place counts: 0 not at all, 1 as recorded."""
    gain: float
    """Hit rate that a place gains at the default k."""
    simulated: bool
    """Whether the places of the calibration photos were drawn from the table: real photos then gain
    less.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Promised:
    """What a rule is calibrated for with another guarantee than its own."""

    guarantee: Guarantee
    delta: float | None
    """For `probability`: how often a calibration may break the guarantee."""
    max_size: int | None
    """Larger sets are cut to this many classes."""
    points: tuple[Point, ...]
    """For one photo, by increasing k or coverage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeveralPhotos:
    """What a rule is calibrated for with several photos of one plant."""

    images: int
    """Photos in a request."""
    fusion: str
    """How they are combined: `mean_score`, or `product` of their likelihoods."""
    exponent: float | None
    """Of the product; null for the mean."""
    points: tuple[Point, ...]
    """By increasing k or coverage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleInfo:
    """A rule with everything it is calibrated for."""

    rule: Rule
    min_size: int
    guarantee: Guarantee | None
    """What `points` guarantee."""
    points: tuple[Point, ...]
    """For one photo, by increasing k or coverage."""
    promised: tuple[Promised, ...]
    """The other guarantees, for one photo; request them with `guarantee`."""
    several: tuple[SeveralPhotos, ...]
    """Other numbers of photos of one plant that it is calibrated for."""
    lists: tuple[ListedClasses, ...]
    """Lists it is calibrated for; request them with `list`."""
    places: tuple[KnownPlace, ...]
    """What of a place it is calibrated for; request it with `region` and `month`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The choice of the head and the kind of score to serve.  Attributes:     k: Mean set size of
    the comparison.     candidates: Number of compared pairs of head and kind; 1 where both were
    given.     hit_rate: Hit rate of the best pair on the rows that chose it.     honest_hit_rate:
    Hit rate of a pair chosen in the same way, on rows that did not choose it,         see
    :mod:`florilege.calibration.comparison`; None where the rows chose or trained the
    network too, or nobody knows: the record has no outputs of other networks.     honest_ci95: 95 %
    interval of the chosen pair, valid whichever pair and network was chosen;         None where
    nothing can be promised, see :mod:`florilege.calibration.certificate`.
    """

    k: float
    candidates: int
    hit_rate: float
    honest_hit_rate: float | None
    honest_ci95: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCard:
    """The model that the server runs."""

    model: Model
    created: str | None
    classes: int
    """How many classes the model knows."""
    image_size: int
    """Side of the square the network sees, in pixels."""
    provider: str
    """Execution provider that runs the network."""
    head: str
    score_kind: str
    default_rule: Rule
    default_k: float
    selection: Selection
    """How head and kind of score were selected, and their expected hit rate."""
    rules: tuple[RuleInfo, ...]
    lists: tuple[OfferedList, ...]
    """What `list` may name."""
    places: PlacesInfo | None
    """Null without a table of occurrences."""
    languages: tuple[str, ...]
    """Languages with at least one common name."""
    feedback: bool
    """Whether `POST /v1/feedback` accepts feedback."""
    feedback_photos: bool
    """Whether feedback with `consent` keeps the photos."""
    feedback_licence: str | None
    """Licence that `consent` gives these photos; null if none are kept."""
    limits: Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class SurveyResult:
    """One class of a plot; `score` is the best of all tiles."""

    rank: int
    """1 is the best of all classes."""
    class_id: str
    score: float
    """The number compared with lambda."""
    in_set: bool
    top_k_probability: float | None
    """Probability of being among the k best; only with include=marginals."""
    in_range: bool | None
    """Whether it was recorded at the place and season of the request; null if these were not given,
    or nothing was recorded of the region or of the class.
    """
    taxon: Taxon
    tiles: int
    """Tiles whose set holds the class."""
    box: tuple[int, int, int, int]
    """The tile with the best score: left, top, right, bottom, in pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """The tiles that a photo was cut into, and what holds for the set of one."""

    size: int
    """Side in pixels."""
    stride: int
    """Pixels from one to the next."""
    total: int
    unfamiliar: int
    """Tiles left out: they look unlike what the model knows."""
    calibrated: bool
    """Whether the figures below hold for the set of one tile, if tiles are like the photos of the
    validation data.
    """
    expected_size: Measured | None
    hit_rate: Measured | None
    statement: str | None
    """These figures in a sentence or two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SurveyAnswer:
    """The classes in the sets of the tiles of a photo; nothing is promised of their list."""

    id: str
    """Id of the answer, set by the server; feedback refers to it."""
    model: Model
    query: Query
    set: SetInfo
    best_match: str | None
    """Scientific name of the best class of the set."""
    results: tuple[SurveyResult, ...]
    """The classes in the set of any tile, those in most tiles first."""
    dial: tuple[Stop, ...] | None
    """Only with include=dial: the sets of this photo at the other calibrated values of k or
    coverage, by increasing size. Of the values that give one set, it has the one nearest to that of
    the answer. A set of more than 75 classes is left out unless it is the answer's. Empty for
    class_coverage, whose sets are not nested.
    """
    rollup: tuple[Rollup, ...] | None
    """Only with include=rollup."""
    rejection: Rejection
    warnings: tuple[Warned, ...]
    tiles: Tiles


class IdentifyOptions(TypedDict, total=False):
    """What `identify` may ask; what is left out is the server's choice."""

    rule: Rule
    """How the set is drawn."""
    k: float | None
    """Average (for top_k: exact) set size, one of the calibrated values; default 3, or the first
    calibrated one.
    """
    coverage: float | None
    """For the coverage rules: requested share of hits."""
    guarantee: Guarantee | None
    """Guarantee a mean size of at most k (average_k), or the coverage: `mean`, on average over
    calibrations; `probability`, for all but a small share of them.
    """
    lang: str | None
    """Language of the common names, such as `fr`. Default: the header Accept-Language, then
    English.
    """
    max_results: int | None
    """Maximum number of `results`."""
    only: Sequence[str] | None
    """Score only these classes, separated by commas: ids, or the name of a genus or family."""
    list: str | None
    """Score only the classes of this list; `/v1/model` names the lists."""
    region: str | None
    """Where the photo was taken: a region of the model's table of occurrences. Species that are
    more common there count more; none is left out.
    """
    month: int | None
    """With a place: the month of the photo, 1 to 12."""
    latitude: float | None
    """In place of region, with longitude: degrees."""
    longitude: float | None
    """In place of region, with latitude: degrees."""
    date: str | None
    """In place of month: the day of the photo, such as `2026-06-30`."""
    include: Sequence[Include]
    """Extra content, separated by commas: `scores` (all classes), `marginals` (probability of being
    among the k best), `rollup` (genus and family), `dial` (the sets at other values of k or
    coverage, and the classes of the largest).
    """
    reject: bool
    """Return an empty set for a photo that looks unlike those the model knows."""
    none: bool
    """Say in `set.none_of_these` whether the photo may show none of the classes."""
    always: Sequence[str] | None
    """Report these classes whatever they score, named as for `only`; `in_set` tells whether they
    are in the set.
    """
    min_score: float | None
    """Leave lower scores out of `results`. The set, its size and figures stay."""


class SurveyOptions(TypedDict, total=False):
    """What `survey` may ask; what is left out is the server's choice."""

    rule: Rule
    """How the set is drawn."""
    k: float | None
    """Average (for top_k: exact) set size of a tile, one of the calibrated values; default 1, since
    the wrong classes of all tiles add up.
    """
    coverage: float | None
    """For the coverage rules: requested share of hits."""
    guarantee: Guarantee | None
    """Guarantee a mean size of at most k (average_k), or the coverage: `mean`, on average over
    calibrations; `probability`, for all but a small share of them.
    """
    lang: str | None
    """Language of the common names, such as `fr`. Default: the header Accept-Language, then
    English.
    """
    max_results: int | None
    """Maximum number of `results`."""
    only: Sequence[str] | None
    """Score only these classes, separated by commas: ids, or the name of a genus or family."""
    list: str | None
    """Score only the classes of this list; `/v1/model` names the lists."""
    region: str | None
    """Where the photo was taken: a region of the model's table of occurrences. Species that are
    more common there count more; none is left out.
    """
    month: int | None
    """With a place: the month of the photo, 1 to 12."""
    latitude: float | None
    """In place of region, with longitude: degrees."""
    longitude: float | None
    """In place of region, with latitude: degrees."""
    date: str | None
    """In place of month: the day of the photo, such as `2026-06-30`."""
    tile_size: int
    """Side of a tile, in pixels."""
    tile_stride: int | None
    """Pixels from a tile to the next; default half a tile."""
