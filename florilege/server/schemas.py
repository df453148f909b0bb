"""Schemas of the responses. Every key is always present; null means not requested or unknown.

Schemas that one answer may hold thousands of are dataclasses, created in a fifth of the time.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from florilege.calibration.certificate import Reason
from florilege.calibration.rules import RuleName
from florilege.calibration.sets import Guarantee
from florilege.models.regions import PlaceKind

Verdict = Literal["accepted", "suspect", "rejected", "not_judged"]
# A name of its own: within `Query` the word `list` is a field.
ClassIds = list[str]
ReasonCode = Annotated[str, WithJsonSchema({"type": "string", "enum": [*Reason]})]


class ResponseModel(BaseModel):
    """Base of all response schemas: frozen and built by the server."""

    model_config = ConfigDict(
        frozen=True,
        protected_namespaces=(),
        json_schema_serialization_defaults_required=True,
        from_attributes=True,  # accepts an `Estimate` as a `Measured`
    )

    @classmethod
    def of(cls, source: object, **fields: Any) -> Self:
        """Build it from ``fields``, and the other fields from attributes of ``source``."""
        named = {name: getattr(source, name) for name in cls.model_fields if name not in fields}
        return cls(**named, **fields)


class Model(ResponseModel):
    """The exact model that answered."""

    name: str = Field(description="Name of the bundle.")
    version: str = Field(description="Version of the bundle.")
    bundle_sha256: str = Field(description="Hash over all files of the bundle.")
    calibration_id: str = Field(description="Id of the thresholds; each calibration changes it.")


class Query(ResponseModel):
    """The query, with every default filled in."""

    images: int = Field(description="Photos in the request.")
    rule: RuleName
    k: float | None = Field(description="Requested average (for top_k: exact) set size.")
    coverage: float | None = Field(description="Share of sets that should contain the right class.")
    guarantee: Guarantee | None = Field(description="What is guaranteed for new photos.")
    lang: str = Field(description="First language in which common names are looked up.")
    list: str | None = Field(description="The list that the classes were restricted to.")
    only: ClassIds | None = Field(
        description="The classes that `only` names, within the list if there is one."
    )
    region: str | None = Field(description="Where the photo was taken: a region, or its grid cell.")
    month: int | None = Field(description="When it was taken.")


class Measured(ResponseModel):
    """A figure measured on photos of one part of the data, with its interval."""

    value: float
    ci95: tuple[float, float] | None = Field(description="95 % confidence interval.")
    split: str = Field(description="The part of the data it was measured on.")
    rows: int = Field(description="How many photos that part has.")
    selection_split: bool | None = Field(
        description="Whether some of these photos also trained or selected the network, its head "
        "or kind of score: hit rates are then too high for new photos. Null if unknown."
    )


class ViewInfo(ResponseModel):
    """What is known beside the pictures."""

    images: int = Field(description="Photos of one organism.")
    list: str | None = Field(description="The list whose classes alone are scored.")
    place: PlaceKind | None = Field(description="What is known of the place.")


class SetInfo(ResponseModel):
    """How the set was drawn and what it guarantees."""

    rule: RuleName
    k: float | None
    coverage: float | None
    guarantee: Guarantee | None = Field(
        description="What the threshold guarantees for new photos, the coverage or a mean size of "
        "at most k: `mean`, on average over calibrations; `probability`, for all but a small share "
        "of calibrations; null: nothing, the figures are measured."
    )
    guaranteed: bool = Field(
        description="Whether the guarantee holds for new photos; if not, `reasons` says why."
    )
    reasons: list[ReasonCode] = Field(
        description="Why nothing is promised of new photos, in stable codes; empty where it is."
    )
    calibrated_for: ViewInfo = Field(
        description="What the threshold was calibrated for; other than the request where "
        "`calibrated` is false."
    )
    lambda_val: float | None = Field(
        serialization_alias="lambda",
        description="The threshold: a class is in the set when its score is at least this. "
        "Null for top_k, which uses no threshold.",
    )
    score_kind: str = Field(description="softmax or sigmoid: how logits become scores.")
    head: str = Field(description="The output of the network that gives the scores.")
    min_size: int = Field(description="The set always contains at least this many classes.")
    max_size: int | None = Field(
        description="A larger set is cut to this many best classes; null if there is no limit."
    )
    size: int = Field(description="Classes in this set.")
    none_of_these: bool | None = Field(
        description="Only with none=true: whether the set also holds the answer that the photo "
        "shows none of the classes. For photos of unknown classes it does with the requested "
        "`coverage`, by default the first calibrated one. Null where this is not calibrated."
    )
    calibrated: bool = Field(description="Whether the figures below hold for this request.")
    truncated: bool = Field(
        description="Whether max_results or min_score left classes of the set out of `results`."
    )
    expected_size: Measured | None = Field(description="Mean set size of this rule.")
    hit_rate: Measured | None = Field(description="Share of sets that held the true class.")
    hit_rate_at_size: Measured | None = Field(
        description="Share of sets of this size that held the true class; null where the "
        "calibration had none of this size. From 9 classes on, sizes up to half larger count "
        "together."
    )
    least_coverage: float | None = Field(
        description="The least share of new sets that hold the true class. With 90 % confidence it "
        "holds for every k at once, even for a k chosen by these shares. Null if none is promised."
    )
    statement: str | None = Field(
        description="These figures in a sentence or two, in the first requested language of en, "
        "fr, de and es, else in English."
    )


class Stop(ResponseModel):
    """Another set of the same rule for the same photo, with the setting that gives it."""

    k: float | None
    coverage: float | None
    lambda_val: float | None = Field(serialization_alias="lambda")
    size: int = Field(description="Classes in the set: the first of `results`.")
    expected_size: Measured | None
    hit_rate: Measured | None
    hit_rate_at_size: Measured | None
    least_coverage: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonName:
    """A name people use."""

    name: str
    lang: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ThumbnailInfo:
    """A reference picture of a class."""

    url: Annotated[str, Field(description="Its address, relative to the root of the server.")]
    author: str | None
    licence: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Taxon:
    """The species of a class."""

    scientific_name: str
    genus: str | None
    family: str | None
    ids: Annotated[
        dict[str, str | None],
        Field(description="Ids in other catalogues: always `gbif`, null if unknown."),
    ]
    common_names: list[CommonName]
    link: Annotated[str | None, Field(description="Address of a page about it.")]
    thumbnail: Annotated[ThumbnailInfo | None, Field(description="Null if there is none.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One class with its score."""

    rank: Annotated[int, Field(description="1 is the best of all classes.")]
    class_id: str
    score: Annotated[float, Field(description="The number compared with lambda.")]
    in_set: bool
    top_k_probability: Annotated[
        float | None,
        Field(description="Probability of being among the k best; only with include=marginals."),
    ]
    in_range: Annotated[
        bool | None,
        Field(
            description="Whether it was recorded at the place and season of the request; null if "
            "these were not given, or nothing was recorded of the region or of the class."
        ),
    ]
    taxon: Taxon

    @property
    def name(self) -> str:
        """The scientific name."""
        return self.taxon.scientific_name

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f}"


class Rollup(ResponseModel):
    """A genus or family that classes of the set belong to."""

    rank: Literal["genus", "family"]
    name: str
    score: float = Field(description="Share of the sum of all scores that its classes have.")
    covers_set: bool = Field(description="Whether every class of the set belongs to it.")


class Rejection(ResponseModel):
    """Whether the photo shows something the model knows."""

    verdict: Verdict = Field(
        description="`accepted`; `suspect`: it looks unlike the photos the model knows, the set is "
        "unchanged; `rejected`: the same with reject=true, the set is empty; `not_judged`: the "
        "bundle has no rejection rule."
    )
    method: str | None = Field(description="How `value` is computed.")
    value: float | None = Field(description="Familiarity of the photo; higher is more familiar.")
    threshold: float | None = Field(description="A photo with a lower value is suspect.")


class Warned(ResponseModel):
    """A reason why the answer is less reliable than usual."""

    code: str
    detail: str


class Answer(ResponseModel):
    """A prediction set."""

    id: str = Field(description="Id of the answer, set by the server; feedback refers to it.")
    model: Model
    query: Query
    set: SetInfo
    best_match: str | None = Field(description="Scientific name of the best class of the set.")
    results: list[Result] = Field(
        description="The set, best first; others with include=scores, include=dial or always."
    )
    dial: list[Stop] | None = Field(
        description="Only with include=dial: the sets of this photo at the other calibrated values "
        "of k or coverage, by increasing size. Of the values that give one set, it has the one "
        "nearest to that of the answer. A set of more than 75 classes is left out unless it is "
        "the answer's. Empty for class_coverage, whose sets are not nested."
    )
    rollup: list[Rollup] | None = Field(description="Only with include=rollup.")
    rejection: Rejection
    warnings: list[Warned]


@dataclass(frozen=True, kw_only=True, slots=True)
class SurveyResult(Result):
    """One class of a plot; `score` is the best of all tiles."""

    tiles: Annotated[int, Field(description="Tiles whose set holds the class.")]
    box: Annotated[
        tuple[int, int, int, int],
        Field(description="The tile with the best score: left, top, right, bottom, in pixels."),
    ]


class Tiles(ResponseModel):
    """The tiles that a photo was cut into, and what holds for the set of one."""

    size: int = Field(description="Side in pixels.")
    stride: int = Field(description="Pixels from one to the next.")
    total: int
    unfamiliar: int = Field(description="Tiles left out: they look unlike what the model knows.")
    calibrated: bool = Field(
        description="Whether the figures below hold for the set of one tile, if tiles are like the "
        "photos of the validation data."
    )
    expected_size: Measured | None
    hit_rate: Measured | None
    statement: str | None = Field(description="These figures in a sentence or two.")


class SurveyAnswer(Answer):
    """The classes in the sets of the tiles of a photo; nothing is promised of their list."""

    results: list[SurveyResult] = Field(  # type: ignore[assignment]  # each is a `Result`
        description="The classes in the set of any tile, those in most tiles first."
    )
    tiles: Tiles


class Embeddings(ResponseModel):
    """The features of photos: the input of the network's last layer."""

    model: Model
    dimensions: int = Field(description="Numbers in the features of a photo.")
    embeddings: list[list[float]] | None = Field(
        description="Those of each photo; null with base64=true."
    )
    base64: list[str] | None = Field(
        description="With base64=true: those of each photo as float32, little-endian, in base64."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassEntry:
    """A class the model knows."""

    class_id: str
    taxon: Taxon
    training_count: Annotated[int | None, Field(description="Training photos of this class.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A picture to compare a photo with."""

    url: Annotated[str, Field(description="Its address, relative to the root of the server.")]
    author: str | None
    licence: str | None
    organ: Annotated[str | None, Field(description="Such as flower or leaf, if that is known.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassDetails(ClassEntry):
    """A class the model knows, with what helps to tell it from others."""

    pictures: list[Picture]
    look_alikes: Annotated[
        list[ClassEntry], Field(description="Those it shared sets with most often on validation.")
    ]


class ClassList(ResponseModel):
    """The matching classes, in the order of the model."""

    total: int = Field(description="All matching classes, also those beyond `limit`.")
    classes: list[ClassEntry]


class RequestModel(BaseModel):
    """Base of queries and request bodies: an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Health(ResponseModel):
    """Whether the server is alive, or ready for requests."""

    status: Literal["alive", "ready"]
