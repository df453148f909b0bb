"""The query parameters of the interface. Unknown ones are refused, not ignored."""

from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from calibration.guarantees import Guarantee
from server.answers.answer import Ask
from server.answers.names import FALLBACK, LANGUAGE_TAG, accepted_languages
from server.errors import InvalidParameter
from server.schemas import Rule

Include = Literal["scores", "marginals", "rollup"]
Language = Annotated[
    str | None,
    Field(
        description="Language of the common names, such as `fr`. Default: the header "
        "Accept-Language, then English.",
        pattern=f"^{LANGUAGE_TAG.pattern}$",
        max_length=35,
    ),
]


def _split(value: Any) -> Any:
    """``a,b`` and ``a&include=b`` are the same."""
    if not isinstance(value, list):
        return value
    return [word for text in value for word in str(text).split(",") if word]


class Strict(BaseModel):
    """Base: a parameter that does not exist is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoQuery(Strict):
    """No parameters at all."""


class IdentifyQuery(Strict):
    """What to answer."""

    rule: Rule = Field("average_k", description="How the set is drawn.")
    k: float | None = Field(
        None,
        description="Average set size (for top_k the exact one). One of the calibrated values; "
        "default 3, or the first calibrated one.",
        allow_inf_nan=False,
    )
    coverage: float | None = Field(
        None, description="For the coverage rules: wanted share of hits.", allow_inf_nan=False
    )
    guarantee: Guarantee | None = Field(
        None,
        description="`mean` or `probability`: a mean size of at most k (average_k), or the "
        "coverage, on average over calibrations or for all but a small share of them.",
    )
    lang: Language = None
    max_results: int | None = Field(None, ge=1, description="Most entries of `results`.")
    include: Annotated[list[Include], BeforeValidator(_split)] = Field(
        default_factory=list,
        description="More in the answer, separated by commas: `scores` (all classes), "
        "`marginals` (probability to be among the k best), `rollup` (genus and family).",
    )
    reject: bool = Field(
        False,
        description="Whether a photo that looks unlike those the model knows gets an empty set.",
    )

    def ask(self, accept_language: str) -> Ask:
        """What the pipeline is asked.

        Raises:
            InvalidParameter: Parameters that contradict each other.
        """
        return Ask(
            rule=self.rule,
            k=self.k,
            coverage=self.coverage,
            guarantee=self.guarantee,
            languages=languages(self.lang, accept_language),
            max_results=self.max_results,
            include=frozenset(self.include),
            reject=self.reject,
        )


class ClassQuery(Strict):
    """How to show one class."""

    lang: Language = None


class ClassesQuery(ClassQuery):
    """Which classes to list, and how."""

    q: str | None = Field(
        None,
        description="Only classes whose id or any name contains this, without regard to case.",
        max_length=200,
    )
    limit: int | None = Field(None, ge=0, description="Most classes to list; all by default.")


async def refuse_repeated(request: Request) -> None:
    """Only `include` may be given more than once: of the others one value would be ignored.

    Raises:
        InvalidParameter: Another one was.
    """
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name in seen and name != "include":
            raise InvalidParameter(f"parameter `{name[:80]}`: it is given more than once")
        seen.add(name)


def languages(lang: str | None, accept_language: str) -> tuple[str, ...]:
    """The languages to look for, the most wanted first; never empty."""
    return (lang,) if lang else tuple(accepted_languages(accept_language)) or (FALLBACK,)
