import numpy as np

from florilege.data.flora.posterior import SPECIES, TRAITS, flora_classes, prior, species_traits
from florilege.models.classes import ClassTable


def test_there_are_85_species_in_16_genera() -> None:
    assert SPECIES == len(flora_classes()) == len(species_traits()["genus"]) == 85
    sizes = np.bincount(species_traits()["genus"]).tolist()
    assert sizes == [8, *[7] * 2, *[6] * 4, *[5] * 4, *[4] * 4, 3]


def test_every_trait_is_an_index_of_its_values() -> None:
    for name, values in TRAITS.items():
        column = species_traits()[name]
        assert column.shape == (85,)
        assert set(column.tolist()) == set(range(len(values)))


def test_a_pair_of_forms_belongs_to_one_genus() -> None:
    traits = species_traits()
    columns = [traits["genus"], traits["petal_form"], traits["leaf_form"]]
    assert len(set(zip(*columns, strict=True))) == len(set(zip(*columns[1:], strict=True))) == 16


def test_each_species_differs_from_the_type_of_its_genus_in_one_trait() -> None:
    traits = species_traits()
    kinds = np.stack([traits["flower"], traits["leaf"], traits["fruit"]], axis=1)
    for index in range(16):
        of_genus = kinds[traits["genus"] == index]
        differences = (of_genus[1:] != of_genus[0]).sum(axis=1)
        assert set(differences.tolist()) == {1}
        assert len(np.unique(of_genus, axis=0)) == len(of_genus)


def test_the_prior_is_zipf_from_a_fifth_down_to_a_quarter_percent() -> None:
    np.testing.assert_allclose(prior().max() / np.sort(prior())[::-1], range(1, 86), rtol=1e-12)
    assert abs(prior().sum() - 1) < 1e-12
    assert 0.19 < prior().max() < 0.21
    assert 0.0022 < prior().min() < 0.0024


def test_names_are_unique_complete_and_survive_classes_json() -> None:
    classes = flora_classes()
    assert len(classes) == 85
    assert len({item.scientific_name for item in classes}) == 85
    assert len({item.common_names["fr"] for item in classes}) == 85
    assert [item.scientific_name.split()[0] for item in classes] == [c.genus for c in classes]
    assert all(item.family and item.common_names["en"] for item in classes)
    assert ClassTable.from_json(classes.to_json()) == classes


def test_an_epithet_tells_the_trait_that_differs() -> None:
    names = [item.scientific_name for item in flora_classes()]
    species = names.index("Brevelia cyaniflora")
    assert TRAITS["flower"][species_traits()["flower"][species]] == "blue"
    assert flora_classes()[species].common_names["en"] == ("blue-flowered brevelia",)
