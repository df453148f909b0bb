"""An answer in the format of the Pl@ntNet API, version 2, for apps that were written for it.

The fields are those that https://my.plantnet.org/doc/api/identify shows and apps read. Our own
fields are `florilege` and `inSet`, which apps ignore.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from pydantic import AliasGenerator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema

from florilege.models.classes import ClassInfo, ClassTable, without_author
from florilege.server import schemas
from florilege.server.answers.class_list import LANGUAGES_KEPT, TaxonTable, language_of

EVERYTHING: Final = "all"  # the project that means every species
UNDETECTED: Final = "auto"  # the organ of a photo for which none was given
UNLIMITED: Final = 2**31 - 1  # remaining requests without a limit: apps expect an integer


class _PlantNetModel(schemas.ResponseModel):
    """Base of these schemas: names as in Pl@ntNet's API."""

    model_config = ConfigDict(
        alias_generator=AliasGenerator(serialization_alias=to_camel),
        json_schema_serialization_defaults_required=False,
    )


def _if_known(description: str) -> Any:
    """A field that is left out if it is None."""
    return Field(default=None, description=description, exclude_if=lambda value: value is None)


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

    @classmethod
    def parse(cls, full: str, **fields: Any) -> Self:
        """Separate a name from its authors, if it seems to have any.

        Example:
            >>> PlantNetName.parse("Mentha aquatica L.").scientific_name_authorship
            'L.'
        """
        short = without_author(full)
        author = full[len(short) :].strip()
        if author and not (author[0].isupper() or author[0] == "("):
            short, author = full, ""
        return cls(
            scientific_name_without_author=short,
            scientific_name_authorship=author,
            scientific_name=full,
            **fields,
        )


class PlantNetSpecies(PlantNetName):
    """A species."""

    genus: PlantNetName
    family: PlantNetName
    common_names: list[str]


class PlantNetImage(_PlantNetModel):
    """The reference picture of a species."""

    organ: str = UNDETECTED
    author: str
    license: str
    citation: str
    date: dict[str, int | str] = Field(default={"timestamp": 0, "string": ""})
    url: dict[str, str] = Field(description="Its addresses; the three sizes are the same here.")


class PlantNetResult(_PlantNetModel):
    """A species with its score."""

    score: float
    species: PlantNetSpecies
    gbif: dict[str, str] | SkipJsonSchema[None] = _if_known("Its `id` at GBIF.")
    images: list[PlantNetImage] | SkipJsonSchema[None] = _if_known(
        "Only with include-related-images: its reference picture, if any."
    )
    in_set: bool = Field(description="Extension: whether it is in the calibrated set.")


class PlantNetExtension(_PlantNetModel):
    """What `POST /v1/identify` returns beyond this format; it describes the fields."""

    id: str
    model: schemas.Model
    set: schemas.SetInfo
    rejection: schemas.Rejection
    warnings: list[schemas.Warned]


class PlantNetAnswer(_PlantNetModel):
    """Species that the photos may show, best first."""

    query: PlantNetQuery
    predicted_organs: list[str] = Field(default=[], description="Always empty.")
    language: str
    # Spelled as in that API.
    prefered_referential: str = Field(description="The list that was used, or all.")
    best_match: str
    results: list[PlantNetResult]
    version: str = Field(description="Name and version of the bundle.")
    remaining_identification_requests: int = Field(description="2147483647 if there is no limit.")
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
    powo_id: str | None = None
    iucn_category: str | None = None

    @classmethod
    def of_class(cls, item: ClassInfo, language: str) -> Self:
        """A class of the model, with its names in a language."""
        name = PlantNetName.parse(item.scientific_name)
        return cls(
            id=item.id,
            common_names=list(item.by_language.get(language, ())),
            scientific_name_without_author=name.scientific_name_without_author,
            scientific_name_authorship=name.scientific_name_authorship,
            gbif_id=int(item.gbif) if item.gbif and item.gbif.isdecimal() else None,
        )


class _SpeciesTable:
    """The classes of a model as `PlantNetListedSpecies`, each written once per language."""

    def __init__(self, taxa: TaxonTable) -> None:
        cached = lru_cache(maxsize=LANGUAGES_KEPT * len(taxa.classes))
        self._entry = cached(partial(_species_of, taxa.classes))  # no method, as in `TaxonTable`

    def write(self, items: Iterable[ClassInfo], languages: Sequence[str]) -> bytes:
        """A JSON array of classes, with names in the first of ``languages`` that has any."""
        return b"[%b]" % b",".join(
            self._entry(item.id, language_of(item, languages)) for item in items
        )


_TABLES: Final = WeakKeyDictionary[TaxonTable, _SpeciesTable]()


def species_table(taxa: TaxonTable) -> _SpeciesTable:
    """The table of a model's classes, made once and freed with them."""
    return _TABLES.setdefault(taxa, _SpeciesTable(taxa))


def _species_of(classes: ClassTable, class_id: str, language: str) -> bytes:
    item = classes.items[classes.index_of[class_id]]
    species = PlantNetListedSpecies.of_class(item, language)
    return species.model_dump_json(by_alias=True).encode()


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


def plantnet_answer(
    answer: schemas.Answer, query: PlantNetQuery, *, root: str, remaining: int
) -> str:
    """An answer in the format of the Pl@ntNet API, as JSON.

    A warning is added if no list has the name of the project. ``root`` is the address of the
    server, ending in a slash; ``remaining`` is how many requests the key may still send.
    """
    list_name = answer.query.list or EVERYTHING
    warnings = answer.warnings
    if query.project != list_name:
        detail = f"there is no list named {query.project[:80]!r}: all species were scored"
        warnings = [schemas.Warned(code="project_unknown", detail=detail), *warnings]
    return PlantNetAnswer(
        query=query,
        language=answer.query.lang,
        prefered_referential=list_name,
        best_match=answer.results[0].taxon.scientific_name if answer.results else "",
        results=[_result(result, root, query.include_related_images) for result in answer.results],
        version=f"{answer.model.name} {answer.model.version}",
        remaining_identification_requests=remaining,
        florilege=PlantNetExtension.of(answer, warnings=warnings),
    ).model_dump_json(by_alias=True)


def _result(result: schemas.Result, root: str, with_images: bool) -> PlantNetResult:
    taxon, gbif = result.taxon, result.taxon.ids["gbif"]
    return PlantNetResult(
        score=result.score,
        species=PlantNetSpecies.parse(
            taxon.scientific_name,
            genus=PlantNetName.parse(taxon.genus or ""),
            family=PlantNetName.parse(taxon.family or ""),
            common_names=[common.name for common in taxon.common_names],
        ),
        gbif=None if gbif is None else {"id": gbif},
        images=_images(taxon.thumbnail, root) if with_images else None,
        in_set=result.in_set,
    )


def _images(picture: schemas.ThumbnailInfo | None, root: str) -> list[PlantNetImage]:
    if picture is None:
        return []
    image = PlantNetImage(
        author=picture.author or "",
        license=picture.licence or "",
        citation=", ".join(word for word in (picture.author, picture.licence) if word),
        url=dict.fromkeys(("o", "m", "s"), root + picture.url),
    )
    return [image]
