"""Languages: reading Accept-Language, falling back, never mixing languages in one answer."""

import pytest

from florilege.models.classes import ClassInfo, ClassTable
from florilege.server.answers.class_list import TaxonTable
from florilege.server.answers.query import (
    MAX_LANGUAGES,
    MAX_TAG_LENGTH,
    accepted_languages,
    fallback_chain,
)
from florilege.server.schemas import Taxon

LONGEST = "aaa" + "-aaaaaaa" * 4
ROSE = ClassInfo(
    id="1",
    scientific_name="Rosa canina",
    genus="Rosa",
    gbif="42",
    common_names={
        "en": ("dog rose", "briar"),
        "fr": ("églantier",),
        "pt-BR": ("roseira",),
        "de": (),
    },
)


def taxon_of(item: ClassInfo, languages: list[str]) -> Taxon:
    return TaxonTable(ClassTable((item,))).taxon(item, languages)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", ["en"]),
        ("fr", ["fr"]),
        ("en;q=0.2, fr;q=0.9", ["fr", "en"]),
        ("de-CH, de;q=0.9, *;q=0.1", ["de-CH", "de"]),
        ("fr;q=0, en", ["en"]),
        ("fr;q=nonsense, en", ["en"]),
        ("<script>, en;q=0.5", ["en"]),
        ("en;q=0.5, fr;q=0.5", ["en", "fr"]),
        (",,;;=,", ["en"]),
        ("en;Q=0.5, fr", ["fr", "en"]),
        (f"{LONGEST}, fr", [LONGEST, "fr"]),
        (f"{LONGEST}a, fr", ["fr"]),
    ],
)
def test_accept_language_is_read_by_weight_then_order(header: str, expected: list[str]) -> None:
    assert accepted_languages(header) == expected
    assert len(LONGEST) == MAX_TAG_LENGTH


def test_the_number_of_languages_is_limited() -> None:
    tags = [f"en-{number}" for number in range(MAX_LANGUAGES + 5)]
    assert accepted_languages(",".join(tags)) == tags[:MAX_LANGUAGES]
    assert accepted_languages(",".join(tags[:MAX_LANGUAGES])) == tags[:MAX_LANGUAGES]


def test_the_chain_goes_to_the_base_language_and_ends_in_english() -> None:
    assert fallback_chain(["fr-CA", "de"]) == ["fr-ca", "fr", "de", "en"]
    assert fallback_chain(["en-GB"]) == ["en-gb", "en"]
    assert fallback_chain([]) == ["en"]


@pytest.mark.parametrize(
    ("wanted", "names", "lang"),
    [
        ("fr-CA", ["églantier"], "fr"),
        ("PT-br", ["roseira"], "pt-br"),
        ("de", ["dog rose", "briar"], "en"),
        ("ja", ["dog rose", "briar"], "en"),
    ],
)
def test_names_come_from_the_first_language_that_has_any(
    wanted: str, names: list[str], lang: str
) -> None:
    result = taxon_of(ROSE, fallback_chain([wanted]))
    assert [one.name for one in result.common_names] == names
    assert {one.lang for one in result.common_names} == {lang}
