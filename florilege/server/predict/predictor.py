"""A calibrated bundle that answers photos from Python."""

import inspect
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from contextlib import closing
from itertools import chain, islice
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack, overload

from pydantic import ValidationError

from florilege.calibration.rules import RuleName
from florilege.calibration.sets import Guarantee
from florilege.cores import in_order
from florilege.errors import DataError, UsageError
from florilege.models.session import Outputs
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.plan import Plan
from florilege.server.answers.query import IdentifyQuery, Include
from florilege.server.http.model_card import ModelCard, Point, RuleInfo
from florilege.server.predict.photo_answer import (
    Photo,
    PhotoAnswer,
    is_photo,
    name_of,
    photos_of_plant,
    read_photo,
)
from florilege.server.predict.prediction import find_photos, portion_size
from florilege.server.problems import Code, Problem
from florilege.server.settings import Settings
from florilege.settings import complaint
from florilege.terminal import progress

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


def _with_keywords(method: Method) -> Method:
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


class ModelInfo(ModelCard):
    """All that ``GET /v1/model`` answers, for Python; as text, what a person asks first."""

    def __repr__(self) -> str:
        """What it is, what a set is worth, and what else may be asked."""
        first = next(rule for rule in self.rules if rule.rule == self.default_rule)
        default = [point for point in first.points if point.k == self.default_k]
        lines = [
            f"{self.model.name}, version {self.model.version}: {self.classes:,} classes, photos of "
            f"{self.image_size} px, {self.provider}",
            *map(_worth, default),
        ]
        regions = [] if self.places is None else self.places.regions or ["latitude and longitude"]
        lines += _listed("rules", map(_values, self.rules))
        lines += _listed("lists", (region.name for region in self.lists))
        lines += _listed("regions", regions)
        lines += _listed("common names", self.languages)
        return "\n".join(lines)

    __str__ = __repr__


def _listed(title: str, names: Iterable[str]) -> list[str]:
    """A line with all names; none if there are none."""
    text = ", ".join(names)
    return [f"{title}: {text}"] if text else []


def _values(rule: RuleInfo) -> str:
    """A rule with the least and the most it is calibrated for, such as ``average_k 1 to 12``."""
    least, most = (rule.points[at].k or rule.points[at].coverage for at in (0, -1))
    return f"{rule.rule} {least:g} to {most:g}"


def _worth(point: Point) -> str:
    text = f"k = {point.k:g}"
    if point.expected_size is not None:
        text += f": sets of {point.expected_size.value:.2f} on average"
    if point.hit_rate is not None:
        rate = point.hit_rate
        text += f", {100 * rate.value:.1f} % of them hold the right one"
        text += f" ({rate.rows:,} photos of {rate.split})"
    return text


_OF_PHOTOS: Final = (Code.IMAGE_TOO_LARGE, Code.IMAGE_UNREADABLE, Code.UNSUPPORTED_IMAGE_TYPE)
Plant = Photo | Sequence[Photo]  # one photo, or some photos, of one plant


class Predictor:
    """A calibrated bundle, ready to answer. Threads may share it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def __repr__(self) -> str:
        return repr(self.info())

    @_with_keywords
    def predict(self, photos: Plant, **query: Unpack[QueryKeywords]) -> PhotoAnswer:
        """The prediction set of one plant, as ``POST /v1/identify`` returns it.

        Args:
            photos: One photo, or a list of one to five photos of the same plant. A photo is a path,
                a ``file:`` URL, an open binary file, the bytes of a file, an image of Pillow, or
                pixels, uint8 ``(height, width, 3)`` in RGB.
            query: What the request asks, such as ``k=3``, ``rule="coverage"``, ``list="alps"`` or
                ``region="north", month=6``; docs/http.md has all.

        Raises:
            UsageError: A parameter is unknown, its value is not allowed, or the bundle is not
                calibrated for it; the message lists what is.
            DataError: A photo cannot be read.
        """
        work = _Work(self._pipeline, self._plan(query))
        return work.answer(photos)

    @overload
    def predict_many(
        self,
        photos: Iterable[Plant] | str | os.PathLike[str],
        *,
        threads: int | None = None,
        show_progress: bool = True,
        return_exceptions: Literal[False] = False,
        **query: Unpack[QueryKeywords],
    ) -> Generator[PhotoAnswer, None, None]: ...

    @overload
    def predict_many(
        self,
        photos: Iterable[Plant] | str | os.PathLike[str],
        *,
        threads: int | None = None,
        show_progress: bool = True,
        return_exceptions: Literal[True],
        **query: Unpack[QueryKeywords],
    ) -> Generator[PhotoAnswer | DataError, None, None]: ...

    @_with_keywords
    def predict_many(
        self,
        photos: Iterable[Plant] | str | os.PathLike[str],
        *,
        threads: int | None = None,
        show_progress: bool = True,
        return_exceptions: bool = False,
        **query: Unpack[QueryKeywords],
    ) -> Generator[PhotoAnswer | DataError, None, None]:
        """The prediction set of each plant, in order, computed on all cores as they are asked for.

        Args:
            photos: One photo of each plant, or a list for a plant with several; also a folder, or a
                manifest with a column ``path``. They are read a few ahead of the answers, so there
                may be any number; paths need less memory than what is read already.
            threads: Photos to compute at once; by default as many as `florilege predict` does.
            show_progress: Show a bar, on a terminal.
            return_exceptions: Give the `DataError` of a photo that cannot be read in its place; by
                default it is raised, and ends the answers.
            query: What each request asks, as for :meth:`predict`.

        Raises:
            UsageError: As for :meth:`predict`; before any photo is read.
            DataError: A photo cannot be read; the message names it.
        """
        work = _Work(self._pipeline, self._plan(query))
        if isinstance(photos, str | os.PathLike):
            photos = _photos_at(photos)
        elif is_photo(photos) or not isinstance(photos, Iterable):
            raise UsageError(
                "predict_many takes a list of photos, a folder or a manifest, got "
                f"{type(photos).__name__}; predict answers one photo"
            )
        total = len(photos) if isinstance(photos, Sized) else None
        threads = threads or self._pipeline.session.concurrency
        portions = in_order(work, _portions(photos, portion_size(total, threads)), threads=threads)
        return _answers(portions, total if show_progress else 0, raising=not return_exceptions)

    def info(self) -> ModelInfo:
        """What the model knows and is calibrated for, as ``GET /v1/model`` returns it.

        The limits are those of a server by default.
        """
        return ModelInfo.of_pipeline(self._pipeline, Settings(bundle=self._pipeline.bundle.path))

    def close(self) -> None:
        """Release the network's threads."""
        self._pipeline.close()

    def _plan(self, query: QueryKeywords) -> Plan:
        """What a query asks; checked before any photo is read."""
        try:
            return self._pipeline.planner.plan(IdentifyQuery.model_validate(query))
        except ValidationError as error:
            raise UsageError(complaint(error, IdentifyQuery)) from error
        except Problem as problem:
            raise UsageError(problem.advice) from problem


class _Work:
    """Answers plants, one or a portion of several."""

    def __init__(self, pipeline: Pipeline, plan: Plan) -> None:
        self._pipeline, self._plan = pipeline, plan

    def answer(self, plant: Any) -> PhotoAnswer:
        photos, rows = self._run_network(plant)
        return self._decide(photos, rows)

    def __call__(self, plants: Sequence[Any]) -> list[PhotoAnswer | DataError]:
        """The answers to a portion: all networks first, as `florilege.server.predict` says why."""
        outputs: list[tuple[Sequence[Any], list[Outputs]] | DataError] = []
        for plant in plants:
            try:
                outputs.append(self._run_network(plant))
            except DataError as error:
                outputs.append(error)
        return [rows if isinstance(rows, DataError) else self._decide(*rows) for rows in outputs]

    def _run_network(self, plant: Any) -> tuple[Sequence[Any], list[Outputs]]:
        """The photos of a plant in a form that can be shown again, and their outputs."""
        photos, rows = photos_of_plant(plant), list[Outputs]()
        for at, photo in enumerate(photos):
            content = read_photo(photo)
            try:
                rows.append(self._pipeline.outputs(content))
            except Problem as problem:
                kind = DataError if problem.code in _OF_PHOTOS else UsageError
                raise kind(f"{name_of(photo)}: {problem.advice}") from problem
            if hasattr(photo, "read"):
                photos[at] = content  # a file is read only once
        return photos, rows

    def _decide(self, photos: Sequence[Any], rows: Sequence[Outputs]) -> PhotoAnswer:
        outcome = self._pipeline.decide(rows, self._plan, "")
        return PhotoAnswer.of_photos(outcome.answer, photos)


def _photos_at(place: str | os.PathLike[str]) -> Sequence[Any]:
    """The photos of a folder or a manifest, each of a plant of its own."""
    if not os.fspath(place):  # a variable that is not set; as a path it would be the working folder
        raise UsageError("the path of the photos is empty")
    observations, _ = find_photos([os.fspath(place)], ())
    if not observations:
        raise DataError(f"no photos found under {place}")
    return [observation.photos[0] for observation in observations]


def _portions(plants: Iterable[Any], size: int) -> Iterator[Sequence[Any]]:
    remaining = iter(plants)
    while portion := list(islice(remaining, size)):
        yield portion


def _answers(
    portions: Generator[list[PhotoAnswer | DataError], None, None],
    total: int | None,
    *,
    raising: bool,
) -> Generator[Any, None, None]:
    """The answers of portions with a bar of ``total`` steps, None if unknown, 0 without a bar."""
    with closing(portions), progress(total, "predicting") as advance:
        for answer in chain.from_iterable(portions):
            if raising and isinstance(answer, DataError):
                raise answer
            yield answer
            advance()
