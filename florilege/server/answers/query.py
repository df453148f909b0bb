"""Queries about a photo, over HTTP or of ``florilege predict``, and the languages they prefer."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, FailFast, Field, field_validator
from pydantic_core import PydanticCustomError

from florilege.calibration.rules import RULES, RuleName
from florilege.calibration.sets import Guarantee
from florilege.models.regions import month_of
from florilege.server.schemas import RequestModel
from florilege.settings import Flag

FALLBACK = "en"
MAX_LANGUAGES = 30
# RFC 5646, section 4.4.1: room for every language tag that is likely to be used.
MAX_TAG_LENGTH = 35
_LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8})*")

Include = Literal["scores", "marginals", "rollup", "dial"]
Language = Annotated[
    str | None,
    Flag(help="Language of the common names, such as fr; English by default."),
    Field(
        description="Language of the common names, such as `fr`. Default: the header "
        "Accept-Language, then English.",
        pattern=f"^{_LANGUAGE_TAG.pattern}$",
        max_length=MAX_TAG_LENGTH,
    ),
]

_NUMBERS = ("k", "coverage", "max_results", "month", "latitude", "longitude", "min_score")

# A name of its own: within `SetQuery` the word `list` is a field.
Words = list[str]


def _split(value: Any) -> Any:
    """Treat ``a,b`` like ``a&include=b``; from Python it may be one text."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        return value
    return [word for text in texts for word in str(text).split(",") if word]


def _month_of(date: str | None) -> str | None:
    """The number of the month, which is all that a query keeps of a date."""
    try:
        return None if date is None else str(month_of(date))
    except ValueError as error:
        reason = "a month must be 1 to 12 or a date YYYY-MM-DD"
        # Not ValueError, before whose text pydantic writes "Value error, ".
        raise PydanticCustomError("value_error", reason) from error


def accepted_languages(header: str) -> list[str]:
    """The languages of an ``Accept-Language`` header, the most preferred first, else English.

    Unreadable entries are skipped, as are those after `MAX_LANGUAGES`: a malformed header is no
    reason to refuse a photo.

    Example:
        >>> accepted_languages("fr-CH, fr;q=0.9, en;q=0.8, *;q=0.5")
        ['fr-CH', 'fr', 'en']
    """
    weighted = []
    # The last part is all that was not split, and is left out.
    for position, entry in enumerate(header.split(",", MAX_LANGUAGES)[:MAX_LANGUAGES]):
        tag, _, parameter = (part.strip() for part in entry.partition(";"))
        match = re.fullmatch(r"[qQ]=([01](?:\.\d{0,3})?)", parameter or "q=1")
        weight = float(match[1]) if match else 0.0
        if len(tag) <= MAX_TAG_LENGTH and _LANGUAGE_TAG.fullmatch(tag) and weight > 0:
            weighted.append((-weight, position, tag))
    return [tag for _, _, tag in sorted(weighted)] or [FALLBACK]


def fallback_chain(languages: Iterable[str]) -> list[str]:
    """The languages to try for a name: each one, then its base, and English last.

    Example:
        >>> fallback_chain(["fr-CA"])
        ['fr-ca', 'fr', 'en']
    """
    tags = [tag.lower() for tag in languages]
    chain = [language for tag in tags for language in (tag, tag.partition("-")[0])]
    return list(dict.fromkeys([*chain, FALLBACK]))


class SetQuery(RequestModel):
    """How sets are drawn, and how they are shown."""

    rule: RuleName = Field(default="average_k", description="How the set is drawn.")
    k: float | None = Field(
        default=None,
        description="Average (for top_k: exact) set size, one of the calibrated values; "
        "default 3, or the first calibrated one.",
        allow_inf_nan=False,
    )
    coverage: float | None = Field(
        default=None,
        description="For the coverage rules: requested share of hits.",
        allow_inf_nan=False,
    )
    guarantee: Guarantee | None = Field(
        default=None,
        description="Guarantee a mean size of at most k (average_k), or the coverage: `mean`, on "
        "average over calibrations; `probability`, for all but a small share of them.",
    )
    lang: Language = None
    max_results: int | None = Field(default=None, ge=1, description="Maximum number of `results`.")
    only: Annotated[Words | None, BeforeValidator(_split), Flag(type=Words | None)] = Field(
        default=None,
        description="Score only these classes, separated by commas: ids, or the name of a genus or "
        "family.",
    )
    list: Annotated[
        str | None, Flag(help="Score only the classes of this file, or list of the bundle.")
    ] = Field(
        default=None,
        description="Score only the classes of this list; `/v1/model` names the lists.",
    )
    region: str | None = Field(
        default=None,
        max_length=100,
        description="Where the photo was taken: a region of the model's table of occurrences. "
        "Species that are more common there count more; none is left out.",
    )
    month: int | None = Field(
        default=None, ge=1, le=12, description="With a place: the month of the photo, 1 to 12."
    )
    latitude: float | None = Field(
        default=None, ge=-90, le=90, description="In place of region, with longitude: degrees."
    )
    longitude: float | None = Field(
        default=None, ge=-180, le=180, description="In place of region, with latitude: degrees."
    )
    date: Annotated[str | None, Field(max_length=40), AfterValidator(_month_of)] = Field(
        default=None,
        description="In place of month: the day of the photo, such as `2026-06-30`.",
    )

    @field_validator(*_NUMBERS, mode="before", check_fields=False)
    @classmethod
    def _refuse_bool(cls, value: Any) -> Any:
        if isinstance(value, bool):  # from Python; pydantic would take True as 1
            raise PydanticCustomError("float_type", "must be a number")
        return value

    @property
    def languages(self) -> Sequence[str]:
        """Tags for the common names, the most preferred first."""
        return accepted_languages(self.lang or "")

    def accepting(self, accept_language: str) -> Self:
        """The same query, with the languages of this header in ``lang`` if it names none."""
        return self if self.lang else self.model_copy(update={"lang": accept_language})


class IdentifyQuery(SetQuery):
    """A query about the photos of one organism."""

    include: Annotated[
        # FailFast: to complain of each wrong word of 60 kB took .2 s of the event loop.
        list[Include], FailFast(), BeforeValidator(_split), Flag(type=list[str] | None)
    ] = Field(
        default_factory=list,
        description="Extra content, separated by commas: `scores` (all classes), "
        "`marginals` (probability of being among the k best), `rollup` (genus and family), `dial` "
        "(the sets at other values of k or coverage, and the classes of the largest).",
    )
    reject: bool = Field(
        default=False,
        description="Return an empty set for a photo that looks unlike those the model knows.",
    )
    none: bool = Field(
        default=False,
        description="Say in `set.none_of_these` whether the photo may show none of the classes.",
    )
    always: Annotated[Words | None, BeforeValidator(_split), Flag(type=Words | None)] = Field(
        default=None,
        description="Report these classes whatever they score, named as for `only`; `in_set` tells "
        "whether they are in the set.",
    )
    min_score: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Leave lower scores out of `results`. The set, its size and figures stay.",
    )


class SurveyQuery(SetQuery):
    """A query about the tiles of one large photo."""

    k: float | None = Field(
        default=None,
        description="Average (for top_k: exact) set size of a tile, one of the calibrated values; "
        "default 1, since the wrong classes of all tiles add up.",
        allow_inf_nan=False,
    )
    tile_size: int = Field(default=518, ge=32, description="Side of a tile, in pixels.")
    tile_stride: int | None = Field(
        default=None, ge=16, description="Pixels from a tile to the next; default half a tile."
    )

    def of_tile(self) -> IdentifyQuery:
        """The query about each tile: the set of one that looks unfamiliar is empty."""
        fields = self.model_dump(exclude={"lang", "max_results", "tile_size", "tile_stride"})
        if self.k is None and RULES[self.rule].asks == "k":
            fields["k"] = 1.0
        return IdentifyQuery(**fields, reject=True).accepting(self.lang or "")
