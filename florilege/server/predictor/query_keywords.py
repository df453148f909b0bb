"""The keywords of `Predictor.predict`, for editors and type checkers."""

import inspect
from collections.abc import Callable, Sequence
from typing import TypedDict, TypeVar

from florilege.calibration.guarantees import Guarantee
from florilege.calibration.rules import RuleName
from florilege.server.answers.query import IdentifyQuery, Include

Method = TypeVar("Method", bound=Callable[..., object])
_Names = str | Sequence[str] | None


class QueryKeywords(TypedDict, total=False):
    """What a request may ask: the fields of `florilege.server.answers.query.IdentifyQuery`.

    ``docs/http.md`` says what each means and what it is by default.
    """

    rule: RuleName
    k: float | None
    coverage: float | None
    guarantee: Guarantee | None
    lang: str | None
    max_results: int | None
    only: _Names
    list: str | None
    region: str | None
    month: int | None
    latitude: float | None
    longitude: float | None
    date: str | None
    include: Include | Sequence[Include]
    reject: bool
    none: bool
    always: _Names
    min_score: float | None


def with_keywords(method: Method) -> Method:
    """Name the keywords of a method in its signature, for ``help`` and for shells.

    Editors and type checkers read them from ``Unpack[QueryKeywords]``; at run time the signature
    would only say ``**query``, and IPython would complete none.
    """
    signature = inspect.signature(method)
    own = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind != parameter.VAR_KEYWORD
    ]
    defaults = IdentifyQuery().model_dump()
    keywords = [
        inspect.Parameter(name, own[0].KEYWORD_ONLY, default=defaults[name], annotation=kind)
        for name, kind in QueryKeywords.__annotations__.items()
    ]
    method.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]  # what inspect reads
    return method
