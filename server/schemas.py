"""The shapes of the answers. Every key is always present; null means not asked for or unknown.

What an answer may hold thousands of is a dataclass, made in a fifth of the time of a model.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from florilege.calibration.guarantees import Guarantee
from florilege.calibration.record.origin import Selection
from florilege.calibration.record.schema import ANSWERED
from florilege.calibration.rules import RuleName

Rule = RuleName
Verdict = Literal["accepted", "suspect", "rejected", "not_judged"]
ClassIds = list[str]


class ResponseModel(BaseModel):
    """Base of all shapes: built by us, frozen, printed by the names of the interface."""

    model_config = ConfigDict(
        frozen=True,
        protected_namespaces=(),
        json_schema_serialization_defaults_required=True,
        from_attributes=True,  # so that an `Estimate` is taken for a `Measured`
    )

    @classmethod
    def of(cls, source: object, **fields: Any) -> Self:
        """The shape of ``source``, whose attributes have the names of the fields not given."""
        named = {name: getattr(source, name) for name in cls.model_fields if name not in fields}
        return cls(**named, **fields)


class Model(ResponseModel):
    """Which model answered, exactly."""

    name: str = Field(description="Name of the bundle.")
    version: str = Field(description="Version of the bundle.")
    bundle_sha256: str = Field(description="Hash over all files of the bundle.")
    calibration_id: str = Field(description="Names the thresholds; changes with each calibration.")


class Query(ResponseModel):
    """What was asked, with every default filled in."""

    images: int = Field(description="Photos in the request.")
    rule: Rule
    k: float | None = Field(description="Average (or, for top_k, exact) set size asked for.")
    coverage: float | None = Field(description="Share of sets that should hold the truth.")
    guarantee: Guarantee | None = Field(description="What is promised about new photos.")
    lang: str = Field(description="First language in which common names were looked for.")
    list: str | None = Field(description="The list that the classes were restricted to.")
    only: ClassIds | None = Field(
        description="The classes that `only` stands for, within the list if there is one."
    )


class Measured(ResponseModel):
    """A figure measured on photos of one part of the data, with its interval."""

    value: float
    ci95: tuple[float, float] | None = Field(description="95 % confidence interval.")
    split: str = Field(description="The part of the data it was measured on.")
    rows: int = Field(description="How many photos that part has.")
    selection_split: bool | None = Field(
        description="Whether some of these photos also trained the network, or chose it, its head "
        "or kind of score: hit rates are then too good for new photos. Null where not known."
    )


FIGURES: dict[str, Any] = {
    name: Annotated[Measured | None, Field(description=figure.metadata["description"])]
    for name, figure in ANSWERED.items()
}
"""Figures of a calibrated threshold, as fields of a shape: what `Row` marks for answers."""


class SetInfo(ResponseModel):
    """How the set was drawn and what it promises."""

    rule: Rule
    k: float | None
    coverage: float | None
    guarantee: Guarantee | None = Field(
        description="What the threshold was chosen to promise about new photos, the coverage or a "
        "mean size of at most k: `mean`, on average over calibrations; `probability`, for all but "
        "a small share of calibrations; null: nothing, the figures are measured."
    )
    guaranteed: bool = Field(
        description="Whether that promise holds: the photos calibrated on chose nothing else."
    )
    lambda_val: float | None = Field(
        serialization_alias="lambda",
        description="The threshold: a class is in the set when its score is at least this. "
        "Null for top_k, which compares nothing.",
    )
    score_kind: str = Field(description="softmax or sigmoid: how logits become scores.")
    head: str = Field(description="The output of the network that scores.")
    min_size: int = Field(description="The set always holds at least this many classes.")
    max_size: int | None = Field(
        description="A larger set is cut down to this many best classes; null for no such bound."
    )
    size: int = Field(description="Classes in this set.")
    calibrated: bool = Field(description="Whether the figures below hold for this request.")
    truncated: bool = Field(description="Whether max_results cut the list below the set.")
    __annotations__.update(FIGURES)  # expected_size, hit_rate
    statement: str | None = Field(
        description="The same in a sentence or two: in the first language asked for that it is "
        "written in (en, fr, de, es), else in English."
    )

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Measured | None: ...  # one of FIGURES


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonName:
    """A name people use."""

    name: str
    lang: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ThumbnailInfo:
    """A reference picture of a class."""

    url: Annotated[str, Field(description="Where it is, relative to the root of the server.")]
    author: str | None
    licence: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Taxon:
    """What a class stands for."""

    scientific_name: str
    genus: str | None
    family: str | None
    ids: Annotated[
        dict[str, str | None],
        Field(description="Keys in other catalogues: always gbif, null where it is unknown."),
    ]
    common_names: list[CommonName]
    link: Annotated[str | None, Field(description="Address of a page about it.")]
    thumbnail: Annotated[ThumbnailInfo | None, Field(description="Null where there is no picture.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One class with its score."""

    rank: Annotated[int, Field(description="1 is the best.")]
    class_id: str
    score: Annotated[float, Field(description="The very number compared with lambda.")]
    in_set: bool
    top_k_probability: Annotated[
        float | None,
        Field(description="Probability to be among the k best; only with include=marginals."),
    ]
    taxon: Taxon


class Rollup(ResponseModel):
    """A genus or family that classes of the set belong to."""

    rank: Literal["genus", "family"]
    name: str
    score: float = Field(description="Share of all scores that its classes hold together.")
    covers_set: bool = Field(description="Whether every class of the set belongs to it.")


class Rejection(ResponseModel):
    """Whether the photo shows something the model knows at all."""

    verdict: Verdict = Field(
        description="`accepted`; `suspect`: it looks unlike the photos the model knows, the set is "
        "untouched; `rejected`: the same with reject=true, the set is empty; `not_judged`: the "
        "bundle has nothing to judge by."
    )
    method: str | None = Field(description="How `value` is computed.")
    value: float | None = Field(description="How familiar the photo looks; more is more.")
    threshold: float | None = Field(description="Below it a photo is suspect.")


class Warned(ResponseModel):
    """Something that makes the answer weaker than usual."""

    code: str
    detail: str


class Answer(ResponseModel):
    """A prediction set."""

    id: str = Field(description="Id of the answer, made by the server; feedback names it.")
    model: Model
    query: Query
    set: SetInfo
    best_match: str | None = Field(description="Scientific name of the best class of the set.")
    results: list[Result] = Field(description="The set, best first; then, if asked, the others.")
    rollup: list[Rollup] | None = Field(description="Only with include=rollup.")
    rejection: Rejection
    warnings: list[Warned]


class Point(ResponseModel):
    """One calibrated setting of a rule."""

    k: float | None
    coverage: float | None
    lambda_val: float | None = Field(serialization_alias="lambda")
    __annotations__.update(dict.fromkeys(FIGURES, Measured | None))
    small_classes: int | None = Field(
        description="For class_coverage: classes with too few photos for a threshold of their own."
    )


Points = list[Point]


class Promised(ResponseModel):
    """What a rule is calibrated for where more is asked of it than it promises anyway."""

    guarantee: Guarantee
    delta: float | None = Field(
        description="For `probability`: how often a calibration may break the promise."
    )
    max_size: int | None = Field(description="Larger sets are cut down to this many classes.")
    points: list[Point] = Field(description="For one photo, by growing k or coverage.")


class SeveralPhotos(ResponseModel):
    """What a rule is calibrated for with several photos of one plant."""

    images: int = Field(description="Photos in a request.")
    fusion: str = Field(description="How their scores become one.")
    points: list[Point] = Field(description="By growing k or coverage.")


class ListedClasses(ResponseModel):
    """What a rule is calibrated for with the classes of a list alone."""

    list: str = Field(description="Its name.")
    points: Points = Field(description="For one photo, by growing k or coverage.")


class RuleInfo(ResponseModel):
    """A rule with everything it is calibrated for."""

    rule: Rule
    min_size: int
    guarantee: Guarantee | None = Field(description="What `points` promise anyway.")
    points: list[Point] = Field(description="For one photo, by growing k or coverage.")
    promised: list[Promised] = Field(
        description="The other guarantees, for one photo, to be asked for with `guarantee`."
    )
    several: list[SeveralPhotos] = Field(
        description="Further numbers of photos of one plant it is calibrated for."
    )
    lists: list[ListedClasses] = Field(
        description="Lists it is calibrated for, to be asked for with `list`."
    )


class Limits(ResponseModel):
    """What one request may hold."""

    max_body_bytes: int
    max_pixels: int
    max_images: int
    upload_deadline_s: float
    media_types: list[str] = Field(description="Image types that are accepted.")


class OfferedList(ResponseModel):
    """A list that `list` may name."""

    name: str
    classes: int = Field(description="How many classes it holds.")
    calibrated: bool = Field(description="Whether it has thresholds of its own.")


class ModelCard(ResponseModel):
    """What the server runs."""

    model: Model
    created: str | None
    classes: int = Field(description="How many classes the model knows.")
    image_size: int = Field(description="Side of the square the network sees, in pixels.")
    provider: str = Field(description="What the network runs on.")
    head: str
    score_kind: str
    default_rule: Rule
    default_k: float
    selection: Selection = Field(
        description="How head and kind of score were chosen, and the hit rate to expect of them."
    )
    rules: list[RuleInfo]
    lists: list[OfferedList] = Field(description="What `list` may name.")
    languages: list[str] = Field(description="Languages with at least one common name.")
    feedback: bool = Field(description="Whether `POST /v1/feedback` takes feedback.")
    feedback_photos: bool = Field(description="Whether it keeps photos, with `consent`.")
    feedback_licence: str | None = Field(
        description="Licence under which `consent` gives them; null where none are kept."
    )
    limits: Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassEntry:
    """A class the model knows."""

    class_id: str
    taxon: Taxon
    training_count: Annotated[int | None, Field(description="Training photos of this class.")]


class ClassList(ResponseModel):
    """The classes that match, in the order of the model."""

    total: int = Field(description="Classes that match, also those beyond limit.")
    classes: list[ClassEntry]


class RequestModel(BaseModel):
    """Base of what is asked or sent: a field that does not exist is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Health(ResponseModel):
    """Whether the server lives, or is ready for work."""

    status: Literal["alive", "ready"]
