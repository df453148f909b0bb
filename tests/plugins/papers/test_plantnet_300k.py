import json
from collections.abc import Callable
from pathlib import Path

import pytest

from florilege.data.checks import check
from florilege.data.sources import list_source, open_dataset
from florilege.errors import DataError
from florilege.plugins.papers.data_sets import METADATA, METADATA_2, NAMES, SPECIES_2
from tests.data.pictures import write_folder


def _plantnet(root: Path) -> Path:
    write_folder(
        root / "images",
        {"train": {"1355868": 2, "1355920": 1}, "val": {"1355868": 1}, "test": {"1355920": 1}},
    )
    for split, class_id, stem in (("val", "1355868", "v"), ("test", "1355920", "t")):
        folder = root / "images" / split / class_id
        (folder / "000.png").rename(folder / f"{stem}.png")
    metadata = {
        "000": {"species_id": "1355868", "obs_id": "1001", "split": "train"},
        "v": {"species_id": "1355868", "obs_id": 1002, "split": "val"},
    }
    names = {
        "1355868": "Lactuca virosa L.",
        "1355920": "Pelargonium capitatum (L.) L'Hér.",
        "9": "",
    }
    (root / METADATA).write_text(json.dumps(metadata))
    (root / NAMES[0]).write_text(json.dumps(names))
    return root


def test_species_names_and_observations_are_joined(tmp_path: Path) -> None:
    dataset = open_dataset(str(_plantnet(tmp_path)))
    assert dataset.classes.ids == ("1355868", "1355920")
    assert dataset.classes[0].scientific_name == "Lactuca virosa"
    assert dataset.classes[1].genus == "Pelargonium"
    assert dataset.classes[0].training_count == 2
    assert dataset.split("train").observations == ["1001", "train/1355868/001.png", "1001"]
    assert dataset.split("val").observations == ["1002"]
    (tmp_path / METADATA).write_text(json.dumps({"000": {"obs_id": " "}, "v": {"obs_id": ""}}))
    for split in open_dataset(str(tmp_path)).splits.values():  # a blank one is none
        assert split.observations == split.names


@pytest.mark.parametrize("inner", ["images", "images/"])
def test_the_folder_of_photos_is_read_with_the_tables_above_it(tmp_path: Path, inner: str) -> None:
    whole = open_dataset(str(_plantnet(tmp_path)))
    photos = open_dataset(f"{tmp_path}/{inner}")
    assert photos.split("train").observations == whole.split("train").observations
    assert photos.split("train").observations is not None
    assert photos.classes == whole.classes


def test_photos_that_no_table_names_are_a_warning(tmp_path: Path) -> None:
    (result,) = [
        each for each in check(str(_plantnet(tmp_path))).warnings if each.kind == "unlisted"
    ]
    assert result.items == ["001", "t"]
    assert "10.5281/zenodo.5645731" in result.message


def test_names_that_differ_in_their_author_alone_keep_it(tmp_path: Path) -> None:
    root = _plantnet(tmp_path)
    names = {"1355868": "Rosa alba L.", "1355920": "Rosa alba Mill."}
    (root / NAMES[0]).rename(root / NAMES[1])  # as in older copies
    (root / NAMES[1]).write_text(json.dumps(names))
    classes = open_dataset(str(root)).classes
    assert [item.scientific_name for item in classes] == ["Rosa alba L.", "Rosa alba Mill."]


# As the README of version 2 describes its tables.
PHOTOS_2 = """\
species_id,PN_observation_id,organ,author,license,split,PN_hash
0,101,leaf,Ada,cc-by-sa,train,a0
0,101,flower,Ada,cc-by-sa,train,a1
0,102,flower,Bo,cc-by-nc,val,a2
12,103,habit,Bo,cc-by-nc-sa,train,b0
12,104,fruit,Cy,cc-by-sa,val,b1
12,104,fruit,Cy,cc-by-sa,test,b2
999,,leaf,Cy,cc-by-sa,train,c0
999,105,leaf,Cy,cc-by-sa,test,c1
"""
COLUMNS_2 = (
    "species_id,full_species,species,genus,family,epithet,author,unmatched_terms,iucn_status"
)
SPECIES = f"""\
{COLUMNS_2}
0,Lactuca virosa L.,Lactuca virosa,Lactuca,Asteraceae,virosa,L.,,LC
12,Rosa alba L.,Rosa alba,Rosa,Rosaceae,alba,L.,,NE
999,Rosa alba Mill.,Rosa alba,Rosa,,alba,Mill.,,NE
"""


def _version_2(root: Path, folder: str = "images") -> Path:
    counts = {
        "train": {"0000": 2, "0012": 1, "0999": 1},
        "val": {"0000": 1, "0012": 1},
        "test": {"0012": 1, "0999": 1},
    }
    write_folder(root / folder, counts)
    for line in PHOTOS_2.splitlines()[1:]:
        species, *_, split, name = line.split(",")
        place = root / folder / split / species.zfill(4)
        min(path for path in place.iterdir() if path.stem.isdigit()).rename(place / f"{name}.jpg")
    (root / METADATA_2).write_text(PHOTOS_2)
    (root / SPECIES_2).write_text(SPECIES)
    return root


@pytest.mark.parametrize("folder", ["images", "images/images", "."])
def test_version_2_is_read_wherever_its_archive_puts_the_photos(
    tmp_path: Path, folder: str
) -> None:
    listing = list_source(str(_version_2(tmp_path, folder)))
    assert listing.ignored == []
    assert listing.missing == []
    dataset = open_dataset(str(tmp_path))
    assert dataset.classes.ids == ("0000", "0012", "0999")
    first, second, third = dataset.classes
    assert (first.scientific_name, first.genus, first.family) == (
        "Lactuca virosa",
        "Lactuca",
        "Asteraceae",
    )
    assert (second.scientific_name, third.scientific_name) == ("Rosa alba L.", "Rosa alba Mill.")
    assert third.family is None
    train = dataset.split("train")
    assert train.names == [
        "train/0000/a0.jpg",
        "train/0000/a1.jpg",
        "train/0012/b0.jpg",
        "train/0999/c0.jpg",
    ]
    assert train.observations == ["101", "101", "103", "train/0999/c0.jpg"]
    assert dataset.split("test").observations == ["104", "105"]


def test_a_published_split_that_cuts_a_plant_is_a_warning_with_numbers(tmp_path: Path) -> None:
    report = check(str(_version_2(tmp_path)), threads=1)
    assert report.errors == []
    warning = report.warnings[0]
    assert (warning.kind, list(warning.items)) == ("observation_across_splits", ["104: val, test"])
    assert "including 1 photo of val and 1 photo of test" in warning.message
    assert "data split --keep" in warning.message


def test_photos_that_are_not_there_are_a_warning_and_said_where_to_get(tmp_path: Path) -> None:
    root = _version_2(tmp_path)
    (root / "images/train/0000/a1.jpg").unlink()
    (root / "images/test/0999/c1.jpg").unlink()
    (result,) = [each for each in check(str(root), threads=1).warnings if each.kind == "missing"]
    assert list(result.items) == ["train/0000/a1.jpg", "test/0999/c1.jpg"]
    assert "zenodo.10419064" in result.message
    (root / "images/test/0012/b2.jpg").unlink()
    with pytest.raises(
        DataError, match=r"'test' holds no pictures; .*DOI 10\.5281/zenodo\.10419064"
    ):
        open_dataset(str(root))
    old = _plantnet(tmp_path / "old")
    metadata = json.loads((old / METADATA).read_text())
    metadata["w"] = {"species_id": "1355868", "obs_id": "7", "split": "val"}
    (old / METADATA).write_text(json.dumps(metadata))
    assert list_source(str(old)).missing == ["val/1355868/w.jpg"]


@pytest.mark.parametrize(
    ("layout", "name", "content", "message"),
    [
        (_plantnet, NAMES[0], "[]", "must hold one JSON object, got list"),
        (_plantnet, NAMES[0], None, r"no plantnet300K_species_id_2_name.*zenodo\.5645731"),
        (_plantnet, METADATA, "{", r"metadata\.json is not a JSON file"),
        (_plantnet, METADATA, None, r"but no plantnet300K_metadata\.json; .*zenodo\.5645731"),
        (_plantnet, "images", None, r"no folder 'images' with photos.*zenodo\.5645731"),
        (
            _version_2,
            METADATA_2,
            PHOTOS_2.replace("PN_observation_id", "observation"),
            r"metadata\.csv has no column 'PN_observation_id'",
        ),
        (_version_2, SPECIES_2, None, r"no species_metadata\.csv; .*zenodo\.10419064"),
    ],
)
def test_missing_or_damaged_parts_are_named(
    tmp_path: Path, layout: Callable[[Path], Path], name: str, content: str | None, message: str
) -> None:
    root = layout(tmp_path)
    (root / name).rename(root / "elsewhere")
    if content is not None:
        (root / name).write_text(content)
    with pytest.raises(DataError, match=message):
        open_dataset(str(root))


@pytest.mark.parametrize("layout", [_plantnet, _version_2])
def test_a_class_table_adds_keys_and_common_names(
    tmp_path: Path, layout: Callable[[Path], Path]
) -> None:
    root = layout(tmp_path)
    before = open_dataset(str(root)).classes[0]
    (root / "classes.csv").write_text(
        f"class_id,gbif,common_name_fr,group\n{before.id},3140254,laitue vireuse,lettuce\n"
    )
    listing = list_source(str(root))
    assert listing.groups == {before.id: ["lettuce"]}
    after, *others = open_dataset(str(root)).classes
    assert (after.scientific_name, after.family) == (before.scientific_name, before.family)
    assert (after.gbif, after.common_names) == ("3140254", {"fr": ("laitue vireuse",)})
    assert all(other.scientific_name != other.id for other in others)


def test_a_table_called_species_metadata_may_be_somebodys_own(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": {"a": 1, "b": 1}})
    (root / SPECIES_2).write_text("anything\n")
    assert list_source(str(root)).published is None
    old = _plantnet(tmp_path / "old")
    (old / SPECIES_2).write_text("anything\n")
    assert open_dataset(str(old)).classes[0].scientific_name == "Lactuca virosa"
    (root / "train").rename(root / "images")
    with pytest.raises(DataError, match=r"no plantnet300K_metadata\.csv; .*zenodo\.10419064"):
        open_dataset(str(root))
