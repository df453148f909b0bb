"""Classes are listed as JSON, each serialised once per language."""

import json
from dataclasses import replace

import pytest

from florilege.models.classes import ClassTable
from florilege.server.answers import class_list
from florilege.server.answers.class_list import LANGUAGES_KEPT, TaxonTable
from florilege.server.schemas import Taxon
from tests.server import garden

TABLE = garden.classes()


@pytest.fixture
def languages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The languages in which taxa were created, one entry per call."""
    make, languages = class_list._taxon_of, list[str]()

    def noted(classes: ClassTable, class_id: str, language: str) -> Taxon:
        languages.append(language)
        return make(classes, class_id, language)

    monkeypatch.setattr(class_list, "_taxon_of", noted)
    return languages


def test_a_list_holds_the_entries_of_its_classes() -> None:
    classes = TaxonTable(TABLE)
    listed = json.loads(classes.find(["fr", "en"], "rosa", 2))
    entries = [json.loads(classes.entry(id_, ["fr", "en"])) for id_ in ("1001", "1002")]
    assert listed == {"total": 3, "classes": entries}
    assert entries[1]["taxon"]["common_names"] == [{"name": "églantier", "lang": "fr"}]
    assert ("1001" in classes, "99" in classes) == (True, False)


def test_a_class_is_serialised_once_per_language(languages: list[str]) -> None:
    classes = TaxonTable(TABLE)
    french = classes.find(["fr-ch", "fr", "en"], None, None)
    assert len(languages) == len(TABLE)
    assert {"fr", "en", ""} == set(languages)  # some have English names alone, one has none
    assert classes.find(["ja", "fr", "en"], None, 99) == french
    classes.find(["fr"], None, 2)
    assert len(languages) == len(TABLE)
    classes.find(["en"], None, None)
    assert languages.count("en") == len(TABLE) - 1


def test_entries_of_the_last_languages_are_cached(languages: list[str]) -> None:
    names = {f"x{number}": ("name",) for number in range(LANGUAGES_KEPT + 1)}
    rose = replace(TABLE[0], common_names=names)
    classes = TaxonTable(ClassTable((rose,)))
    for language in names:
        classes.entry(rose.id, [language])
    classes.entry(rose.id, [f"x{LANGUAGES_KEPT}"])
    assert len(languages) == LANGUAGES_KEPT + 1
    classes.entry(rose.id, ["x0"])
    assert len(languages) == LANGUAGES_KEPT + 2
