"""An answer in the format of the Pl@ntNet API, version 2, for apps that were written for it.

The fields are those that https://my.plantnet.org/doc/api/identify shows and apps read. Our own
fields are `florilege` and `inSet`, which apps ignore.
"""

from typing import Any, Final

from pydantic import AliasGenerator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema

from florilege.models.classes import ClassInfo, without_author
from florilege.server.answers.class_list import TaxonTable
from florilege.server.answers.common_names import fallback_chain
from florilege.server.schemas import (
    Answer,
    Model,
    Rejection,
    ResponseModel,
    Result,
    SetInfo,
    Taxon,
    Warned,
)

EVERYTHING: Final = "all"
"""The project that means every species."""
UNDETECTED: Final = "auto"
"""The organ of a photo for which none was given."""
UNLIMITED: Final = 2**31 - 1
"""Remaining requests if there is no limit: apps expect an integer."""


class _PlantNetModel(ResponseModel):
    """Base of these schemas: names as in Pl@ntNet's API, without unset fields."""

    model_config = ConfigDict(
        alias_generator=AliasGenerator(serialization_alias=to_camel),
        json_schema_serialization_defaults_required=False,
    )


class PlantNetQuery(_PlantNetModel):
    """The query."""

    project: str
    images: list[str] = Field(description="MD5 of each photo.")
    organs: list[str] = Field(description="As given; they change nothing.")
    include_related_images: bool
    no_reject: bool
    type: str | None


class PlantNetName(_PlantNetModel):
    """A genus or family; empty if unknown."""

    scientific_name_without_author: str
    scientific_name_authorship: str
    scientific_name: str


class PlantNetSpecies(PlantNetName):
    """A species."""

    genus: PlantNetName
    family: PlantNetName
    common_names: list[str]


class PlantNetImage(_PlantNetModel):
    """The reference picture of a species."""

    organ: str
    author: str
    license: str
    citation: str
    date: dict[str, int | str] = Field(description="Always 0 and empty: bundles hold no dates.")
    url: dict[str, str] = Field(description="Its addresses; the three sizes are the same here.")


class PlantNetResult(_PlantNetModel):
    """A species with its score."""

    score: float
    species: PlantNetSpecies
    gbif: dict[str, str] | SkipJsonSchema[None] = Field(
        None, description="Its `id` at GBIF; absent if unknown."
    )
    images: list[PlantNetImage] | SkipJsonSchema[None] = Field(
        None, description="Only with include-related-images: its reference picture, if any."
    )
    in_set: bool = Field(description="Extension: whether it is in the calibrated set.")


class PlantNetExtension(_PlantNetModel):
    """What `POST /v1/identify` returns beyond this format; it describes the fields."""

    id: str
    model: Model
    set: SetInfo
    rejection: Rejection
    warnings: list[Warned]


class PlantNetAnswer(_PlantNetModel):
    """Species that the photos may show, best first."""

    query: PlantNetQuery
    predicted_organs: list[str] = Field(description="Always empty: organs are not recognised.")
    language: str
    prefered_referential: str = Field(description="The list that was used, or all.")
    best_match: str
    results: list[PlantNetResult]
    version: str = Field(description="Name and version of the bundle.")
    remaining_identification_requests: int = Field(
        description="How many the key may still send; 2147483647 if there is no limit."
    )
    florilege: PlantNetExtension


class PlantNetProject(_PlantNetModel):
    """A list of species, or all of them."""

    id: str
    title: str
    description: str
    species_count: int


class PlantNetListedSpecies(_PlantNetModel):
    """A species that the model knows."""

    id: str = Field(description="Its class id.")
    common_names: list[str]
    scientific_name_without_author: str
    scientific_name_authorship: str
    gbif_id: int | None
    powo_id: str | None = Field(description="Always null.")
    iucn_category: str | None = Field(description="Always null.")


class PlantNetCount(_PlantNetModel):
    """How many requests a key sent."""

    count: int
    total: int = Field(description="How many it may send; 2147483647 if there is no limit.")
    remaining: int


class PlantNetQuota(_PlantNetModel):
    """The remaining requests of a key, whose period need not be a day."""

    day: str = Field(description="Today, in UTC.")
    quota: dict[str, PlantNetCount] = Field(description="All requests count as `identify`.")


class PlantNetError(_PlantNetModel):
    """Every error response of these routes."""

    status_code: int
    error: str = Field(description="The reason phrase of the status.")
    message: str = Field(description="What is wrong, for a person.")
    code: str = Field(description="Extension: stable identifier for programs.")


def plantnet_answer(answer: Answer, query: PlantNetQuery, *, root: str, remaining: int) -> str:
    """An answer in the format of the Pl@ntNet API, as JSON.

    Args:
        answer: The answer of the pipeline.
        query: The query; a warning is added if no list has the name of its project.
        root: Address of the server, ending in a slash.
        remaining: How many requests the key may still send.
    """
    list_name = answer.query.list or EVERYTHING
    warnings = answer.warnings
    if query.project != list_name:
        detail = (
            f"this server has no list named {query.project[:80]!r}: all its species were scored"
        )
        warnings = [Warned(code="project_unknown", detail=detail), *warnings]
    return PlantNetAnswer(
        query=query,
        predicted_organs=[],
        language=answer.query.lang,
        prefered_referential=list_name,
        best_match=answer.results[0].taxon.scientific_name,
        results=[
            _result(each, root if query.include_related_images else None) for each in answer.results
        ],
        version=f"{answer.model.name} {answer.model.version}",
        remaining_identification_requests=remaining,
        florilege=PlantNetExtension.of(answer, warnings=warnings),
    ).model_dump_json(by_alias=True, exclude_unset=True)


def _result(result: Result, root: str | None) -> PlantNetResult:
    """One species, with its pictures if ``root`` is given."""
    taxon = result.taxon
    optional: dict[str, Any] = {}
    if taxon.ids["gbif"] is not None:
        optional["gbif"] = {"id": taxon.ids["gbif"]}
    if root is not None:
        optional["images"] = _images(taxon, root)
    species = PlantNetSpecies(
        **dict(plantnet_name(taxon.scientific_name)),
        genus=plantnet_name(taxon.genus or ""),
        family=plantnet_name(taxon.family or ""),
        common_names=[each.name for each in taxon.common_names],
    )
    return PlantNetResult(score=result.score, species=species, in_set=result.in_set, **optional)


def plantnet_name(full: str) -> PlantNetName:
    """A name and its authors, if it seems to have any.

    Example:
        >>> plantnet_name("Mentha aquatica L.").scientific_name_authorship
        'L.'
    """
    short = without_author(full)
    author = full[len(short) :].strip()
    if author and not (author[0].isupper() or author[0] == "("):
        short, author = full, ""
    return PlantNetName(
        scientific_name_without_author=short,
        scientific_name_authorship=author,
        scientific_name=full,
    )


def listed_species(item: ClassInfo, taxa: TaxonTable, language: str) -> PlantNetListedSpecies:
    """A species in the format of that API's lists."""
    name = plantnet_name(item.scientific_name)
    names = taxa.taxon(item, fallback_chain([language])).common_names
    return PlantNetListedSpecies(
        id=item.id,
        common_names=[each.name for each in names],
        scientific_name_without_author=name.scientific_name_without_author,
        scientific_name_authorship=name.scientific_name_authorship,
        gbif_id=int(item.gbif) if item.gbif and item.gbif.isdecimal() else None,
        powo_id=None,
        iucn_category=None,
    )


def _images(taxon: Taxon, root: str) -> list[PlantNetImage]:
    picture = taxon.thumbnail
    if picture is None:
        return []
    image = PlantNetImage(
        organ=UNDETECTED,
        author=picture.author or "",
        license=picture.licence or "",
        citation=", ".join(word for word in (picture.author, picture.licence) if word),
        date={"timestamp": 0, "string": ""},
        url=dict.fromkeys(("o", "m", "s"), root + picture.url),
    )
    return [image]
