"""`POST /v2/identify/{project}` for apps written for the Pl@ntNet API; only with ``--plantnet``.

It asks our own pipeline and tells the answer, and what is refused, in the other shape. Unlike
everywhere else, parameters that do not exist are ignored and the key may stand in the address.
"""

import re
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from hashlib import md5
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from server.answers.ask import Ask, Language
from server.answers.names import FALLBACK
from server.answers.plantnet import EVERYTHING, PlantNetAnswer, PlantNetError, plantnet_answer
from server.errors import MalformedRequest, Problem
from server.http.answering import answered, rendered
from server.http.handlers import note_problem, problem_of_query
from server.http.keys import Keys
from server.http.multipart import FIELD, parts_of_form
from server.routes import PHOTO, EngineOf

LONGEST_ORGAN = 40

FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {
                        "images": {"type": "array", "items": PHOTO, "minItems": 1, "maxItems": 5},
                        "organs": {"type": "array", "items": {"type": "string"}},
                    },
                }
            }
        },
    }
}
ERRORS: dict[int | str, Any] = {
    status: {"model": PlantNetError, "description": HTTPStatus(status).phrase}
    for status in (400, 401, 403, 404, 408, 413, 415, 422, 429, 503)
}


class SpeciesNotFound(Problem):
    """A photo that looks unlike those the model knows; apps look for these very words."""

    status, code, title = 404, "species_not_found", "Species not found"


class PlantNetQuestion(BaseModel):
    """The parameters of the Pl@ntNet API that mean something here."""

    model_config = ConfigDict(frozen=True)

    nb_results: int = Field(20, ge=1, alias="nb-results", description="Most species to list.")
    lang: Language = FALLBACK
    no_reject: bool = Field(
        False,
        alias="no-reject",
        description="Whether a photo that looks unlike those the model knows is answered all the "
        "same, instead of by 404 `Species not found`.",
    )
    include_related_images: bool = Field(
        False,
        alias="include-related-images",
        description="Whether each species comes with its reference picture.",
    )
    type: str | None = Field(None, description="Repeated in the answer.", max_length=40)

    def ask(self, project: str) -> Ask:
        """What the pipeline is asked: the default set, filled up with the next best species."""
        language = self.lang or FALLBACK
        return Ask(
            lang=language,
            languages=(language,),
            max_results=self.nb_results,
            include=["scores"],
            reject=not self.no_reject,
            list=None if project == EVERYTHING else project,
        )


class _InTheirShape(APIRoute):
    """A route whose problems are told as `PlantNetError`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_or_refuse(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                problem = problem_of_query(error)
            except Problem as error:
                problem = error
            note_problem(request, problem)
            return _refusal(problem)

        return handle_or_refuse


def _refusal(problem: Problem) -> JSONResponse:
    told = PlantNetError(
        status_code=problem.status,
        error=HTTPStatus(problem.status).phrase,
        message=problem.detail,
        code=problem.code,
    )
    headers = dict(problem.headers)
    if problem.retry_after is not None:
        headers["Retry-After"] = str(problem.retry_after)
    return JSONResponse(told.model_dump(by_alias=True), problem.status, headers)


async def _check_key(request: Request) -> None:
    """As `check_key`, but the key may also be the parameter ``api-key``."""
    keys: Keys | None = request.app.state.keys
    if keys is None:
        return
    given = request.query_params.get("api-key", "")
    request.state.key, request.state.rate_limit = (
        keys.check_given(given.encode()) if given else keys.check(request.headers)
    )


plantnet_router = APIRouter(
    route_class=_InTheirShape, dependencies=[Depends(_check_key)], responses=ERRORS
)


@plantnet_router.post("/v2/identify/{project}", response_model=PlantNetAnswer, openapi_extra=FORM)
async def plantnet_identify(
    request: Request,
    project: str,
    question: Annotated[PlantNetQuestion, Query()],
    engine: EngineOf,
) -> Response:
    """Return the species one to five photos of a plant may show, in the shape of Pl@ntNet's API.

    `project` is the name of a list, or `all`. `results` holds the species of the calibrated set,
    best first, then the next best. The parts `organs` are repeated and change nothing.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise MalformedRequest(f"send photos as multipart/form-data, in parts named `{FIELD}`")
    hashes, organs = list[str](), list[str]()

    def find(body: bytes, content_type: str) -> list[bytes]:
        parts = parts_of_form(body, content_type)
        photos = [content for name, content in parts if name == FIELD]
        hashes.extend(md5(photo, usedforsecurity=False).hexdigest() for photo in photos)
        said = (content for name, content in parts if name == "organs")
        organs.extend(organ[:LONGEST_ORGAN].decode("utf-8", "replace") for organ in said)
        return photos

    answer, headers = await answered(request, engine, question.ask(project), find)
    if answer.rejection.verdict == "rejected":  # the engine has counted it already
        request.state.code = SpeciesNotFound.code
        return _refusal(SpeciesNotFound(SpeciesNotFound.title))
    shape = partial(
        plantnet_answer,
        hashes=hashes,
        organs=organs,
        root=str(request.base_url) if question.include_related_images else None,
        no_reject=question.no_reject,
        kind=question.type,
        left=_left(getattr(request.state, "rate_limit", {})),
    )
    body = await rendered(engine, answer, shape)
    return Response(body, media_type="application/json", headers=headers)


def _left(rate_limit: Mapping[str, str]) -> int | None:
    """How many requests the header of a key says are left; None where it has no rate."""
    found = re.search(r";r=(\d+)", rate_limit.get("RateLimit", ""))
    return None if found is None else int(found[1])
