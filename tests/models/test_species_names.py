"""Names of species as other people's tables write them."""

import pytest

from florilege.models.classes import ClassInfo, ClassTable, SpeciesNames

CLASSES = ClassTable(
    (
        ClassInfo(id="7", scientific_name="Bellis perennis", gbif="3117424"),
        ClassInfo(id="Canis_lupus"),
        ClassInfo(id="9", scientific_name="Canis lupus familiaris"),
        ClassInfo(id="10", scientific_name="Mentha \u00d7 piperita L."),
        ClassInfo(id="11", scientific_name="Bellis"),
        ClassInfo(id="e\u0301pine"),
        ClassInfo(id="13", scientific_name="Panthera tigris altaica Temminck, 1844"),
        ClassInfo(id="12", scientific_name="Bombus (Pyrobombus) pratorum", gbif="7"),
    )
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 0),  # an id comes before the key of another class
        ("3117424", 0),
        ("3117424.0", 0),  # as pandas writes numbers beside a gap
        ("https://www.gbif.org/species/3117424", 0),
        ("GBIF:3117424", 0),
        ("Bellis perennis", 0),
        ("BELLIS PERENNIS", 0),
        ("bellis  perennis", 0),
        ("Bellis perennis L.", 0),
        ("bellis perennis l.", 0),
        ("Bellis perennis subsp. hybrida (Ten.) Nyman", 0),
        ("Bellis_perennis", 0),
        ("Canis lupus Linnaeus, 1758", 1),
        ("Canis lupus italicus Altobello, 1921", 1),
        ("Canis lupus familiaris Linnaeus, 1758", 2),
        ("Mentha \u00d7 piperita", 3),
        ("Mentha \u00d7piperita L.", 3),
        ("mentha x piperita", 3),
        ("Bellis", 4),
        ("\u00e9pine", 5),
        ("Bombus (Pyrobombus) pratorum (Linnaeus, 1761)", 7),
        ("Bombus pratorum", 7),
        ("Panthera tigris altaica", 6),
        ("Panthera tigris (Linnaeus, 1758)", None),  # the species, of which a subspecies is a class
        ("Bellis annua L.", None),  # a species of a genus that is a class
        ("Bellis perennis \u00d7 Bellis annua", None),  # a hybrid is neither parent
        ("Mentha piperita", None),
        ("urn:lsid:local:77", None),
        ("Bellis perennisx", None),
        ("", None),
    ],
)
def test_a_name_means_a_class_however_it_is_written(text: str, expected: int | None) -> None:
    names = SpeciesNames(CLASSES)
    assert names.index(text) == names.index(text) == expected
