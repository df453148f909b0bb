"""Routes for apps written for the Pl@ntNet API, such as `POST /v2/identify/{project}`.

They exist only with ``--plantnet``, and return answers and errors of our pipeline in the format of
that API. Unlike our other routes they ignore unknown parameters and accept the key in the address.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import md5
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response, Security
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyQuery
from pydantic import BaseModel, Field

from florilege.plugins.plantnet.plantnet_schema import (
    EVERYTHING,
    UNDETECTED,
    UNLIMITED,
    PlantNetAnswer,
    PlantNetCount,
    PlantNetError,
    PlantNetListedSpecies,
    PlantNetProject,
    PlantNetQuery,
    PlantNetQuota,
    plantnet_answer,
    species_table,
)
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import FALLBACK, IdentifyQuery, Language, fallback_chain
from florilege.server.engine import Engine
from florilege.server.http.api_keys import check_key
from florilege.server.http.cached_responses import BundleInfo
from florilege.server.http.photo_routes import answer_request
from florilege.server.http.request import FIELD, body_of, form_of_photos, parts_of_form
from florilege.server.problems import Code, Problem
from florilege.server.schemas import Answer

MAX_ORGAN_LENGTH = 40

FORM = body_of(form_of_photos(organs={"type": "array", "items": {"type": "string"}}))
ERRORS: dict[int | str, Any] = {
    status: {"model": PlantNetError, "description": HTTPStatus(status).phrase}
    for status in (400, 401, 403, 404, 408, 413, 415, 422, 429, 503)
}


class _IdentifyParameters(BaseModel):
    """The parameters of the Pl@ntNet API that have an effect here."""

    nb_results: int = Field(20, ge=1, alias="nb-results", description="Maximum number of species.")
    lang: Language = FALLBACK
    no_reject: bool = Field(
        False,
        alias="no-reject",
        description="Answer a photo that looks unlike those the model knows, instead of returning "
        "404 `Species not found`.",
    )
    include_related_images: bool = Field(
        False,
        alias="include-related-images",
        description="Include the reference picture of each species.",
    )
    type: str | None = Field(None, description="Repeated in the answer.", max_length=40)


class _SpeciesParameters(BaseModel):
    """The parameters of the lists of species."""

    lang: Language = FALLBACK
    prefix: str = Field("", description="Only species whose name starts with this.", max_length=200)
    page: int | None = Field(None, ge=1, description="From 1, together with pageSize.")
    page_size: int | None = Field(None, ge=1, alias="pageSize")


async def _render_problems(request: Request) -> None:
    """Render all problems of a route in the format of that API."""
    request.state.render_problem = _refusal


def _refusal(problem: Problem, _: str = "") -> JSONResponse:
    status = problem.code.status
    document = PlantNetError(
        status_code=status,
        error=HTTPStatus(status).phrase,
        message=problem.detail,
        code=problem.code,
    )
    return JSONResponse(document.model_dump(by_alias=True), status, problem.headers)


_KEY_IN_ADDRESS = APIKeyQuery(name="api-key", scheme_name="query", auto_error=False)


async def _check_key(
    request: Request, address_key: Annotated[str | None, Security(_KEY_IN_ADDRESS)]
) -> None:
    check_key(request, address_key or "")


plantnet_router = APIRouter(
    dependencies=[Depends(_render_problems), Depends(_check_key)],
    responses=ERRORS,
)
status_router = APIRouter(dependencies=[Depends(_render_problems)])


@plantnet_router.post("/v2/identify/{project}", response_model=PlantNetAnswer, openapi_extra=FORM)
async def _plantnet_identify(
    request: Request, project: str, parameters: Annotated[_IdentifyParameters, Query()]
) -> Response:
    """Return the species one to five photos of a plant may show, in the format of Pl@ntNet's API.

    `project` is the name of a list; any other name, such as `all`, means every species. `results`
    holds the species of the calibrated set, best first, then the next best. The parts `organs` are
    repeated in the answer and change nothing else.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        detail = f"send photos as multipart/form-data, in parts named `{FIELD}`"
        raise Problem(Code.MALFORMED_REQUEST, detail)
    hashes, organs = list[str](), list[str]()

    def find_photos(body: bytes, content_type: str) -> list[bytes]:
        parts = parts_of_form(body, content_type)
        photos = [content for name, content in parts if name == FIELD]
        # Pl@ntNet's API names photos by their MD5, which some systems refuse where it may protect.
        hashes.extend(md5(photo, usedforsecurity=False).hexdigest() for photo in photos)
        words = (content[:MAX_ORGAN_LENGTH] for name, content in parts if name == "organs")
        organs.extend(word.decode("utf-8", "replace") for word in words)
        return photos

    query = IdentifyQuery(
        lang=parameters.lang,
        max_results=parameters.nb_results,
        include=["scores"],  # the set, then the next best species
        reject=not parameters.no_reject,
        list=project if project in _pipeline(request).planner.lists.by_name else None,
    )
    root, remaining = str(request.base_url), _rate_of(request)[1]

    def write(answer: Answer) -> str:
        plantnet_query = PlantNetQuery.of(
            parameters,
            project=project,
            images=hashes,
            organs=[*organs, *[UNDETECTED] * len(hashes)][: len(hashes)],
        )
        return plantnet_answer(answer, plantnet_query, root=root, remaining=remaining)

    answer, response = await answer_request(request, query, find_photos, write)
    if answer.rejection.verdict == "rejected":  # the engine has counted it already
        request.state.code = Code.SPECIES_NOT_FOUND
        return _refusal(Problem(Code.SPECIES_NOT_FOUND, Code.SPECIES_NOT_FOUND.summary))
    return response


@plantnet_router.get("/v2/projects", response_model=list[PlantNetProject])
async def _plantnet_projects(request: Request) -> list[PlantNetProject]:
    """Return what `project` may be: `all`, and the lists of this server."""
    pipeline = _pipeline(request)
    sizes = {
        name: len(restriction.infos)
        for name, restriction in sorted(pipeline.planner.lists.by_name.items())
    }
    return [
        PlantNetProject(id=name, title=name, description=pipeline.model.name, species_count=size)
        for name, size in [(EVERYTHING, len(pipeline.bundle.classes)), *sizes.items()]
    ]


@plantnet_router.get("/v2/species", response_model=list[PlantNetListedSpecies])
async def _plantnet_species(
    request: Request, query: Annotated[_SpeciesParameters, Query()]
) -> Response:
    """Return every species that the model knows."""
    return await _plantnet_project_species(request, EVERYTHING, query)


@plantnet_router.get("/v2/projects/{project}/species", response_model=list[PlantNetListedSpecies])
async def _plantnet_project_species(
    request: Request, project: str, query: Annotated[_SpeciesParameters, Query()]
) -> Response:
    """Return the species of a list; for any other project, every species that the model knows."""
    engine: Engine = request.app.state.engine
    about: BundleInfo = request.app.state.about
    restriction = engine.pipeline.planner.lists.by_name.get(project)
    classes = engine.pipeline.bundle.classes if restriction is None else restriction.infos

    def write_species(
        _: str | None, prefix: str, part: tuple[int, int] | None, languages: tuple[str, ...]
    ) -> bytes:
        matches = [item for item in classes if item.scientific_name.casefold().startswith(prefix)]
        species = species_table(about.classes)
        return species.write(matches if part is None else matches[slice(*part)], languages)

    name, part = None if restriction is None else project, None
    if query.page is not None and query.page_size is not None:
        part = ((query.page - 1) * query.page_size, query.page * query.page_size)
    languages = about.known_languages(fallback_chain([query.lang or FALLBACK]))
    response = await about.cached_list(
        engine.lookups, write_species, name, query.prefix.casefold(), part, languages
    )
    return response.answer(request)


@plantnet_router.get("/v2/languages", response_model=list[str])
async def _plantnet_languages(request: Request) -> list[str]:
    """Return the languages with at least one common name."""
    return sorted(_pipeline(request).taxa.languages)


@plantnet_router.get("/v2/quota/daily", response_model=PlantNetQuota)
async def _plantnet_quota(request: Request) -> PlantNetQuota:
    """Return the remaining requests of a key; this request counts too."""
    total, remaining = _rate_of(request)
    used = PlantNetCount(count=total - remaining, total=total, remaining=remaining)
    return PlantNetQuota(day=f"{datetime.now(UTC):%F}", quota={"identify": used})


@status_router.get("/v2/_status", include_in_schema=False)
async def _plantnet_status(request: Request) -> dict[str, str]:
    """Return `ok` when `/readyz` does; it needs no key."""
    request.app.state.engine.check_ready()
    return {"status": "ok"}


def _pipeline(request: Request) -> Pipeline:
    engine: Engine = request.app.state.engine
    return engine.pipeline


def _rate_of(request: Request) -> tuple[int, int]:
    """How many requests the key may send, and how many of them are left."""
    headers: Mapping[str, str] = getattr(request.state, "rate_limit", {})
    numbers = re.findall(r";[qr]=(\d+)", "".join(headers.values()))
    total, remaining = numbers or (UNLIMITED, UNLIMITED)
    return int(total), int(remaining)
