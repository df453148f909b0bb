import json
from pathlib import Path
from typing import Any

import pytest

from florilege.data.checks import check
from florilege.data.sources import list_source, open_dataset
from florilege.errors import DataError
from tests.data.pictures import write_folder

CATEGORIES: list[dict[str, Any]] = [
    {
        "id": 9,
        "name": "Rosa canina",
        "common_name": "dog rose",
        "class": "Magnoliopsida",
        "family": "Rosaceae",
        "genus": "Rosa",
        "image_dir_name": "00009_Plantae",
    },
    {"id": 10, "name": "Rosa rugosa", "family": "Rosaceae", "genus": "Rosa"},
    {"id": 11, "name": "Acer rubrum"},
]
COUNTS = {"train": {"00009_Plantae": 3, "00010_Plantae": 2}, "val": {"00009_Plantae": 1}}


def _list(split: str, photos: dict[str, int]) -> dict[str, Any]:
    """The list of a split in the published order of its parts."""
    names = [f"{split}/{folder}/{i:03d}.png" for folder, n in photos.items() for i in range(n)]
    return {
        "info": {"year": 2021},
        "images": [{"id": 100 - row, "file_name": name} for row, name in enumerate(names)],
        "categories": CATEGORIES,
        "annotations": [
            {"id": row, "image_id": 100 - row, "category_id": int(name.split("/")[1][:5])}
            for row, name in enumerate(names)
        ],
        "licenses": [],
    }


def _inaturalist(root: Path, year: str = "") -> Path:
    write_folder(root, COUNTS)
    for split, photos in COUNTS.items():
        (root / f"{split}{year}.json").write_text(json.dumps(_list(split, photos)))
    return root


@pytest.mark.parametrize("year", ["", "2018", "2021"])
def test_lists_give_photos_and_what_is_known_of_the_species(tmp_path: Path, year: str) -> None:
    root = _inaturalist(tmp_path, year)
    dataset = open_dataset(str(root))
    assert dataset.classes.ids == ("9", "10")
    first, second = dataset.classes
    assert (first.scientific_name, first.genus, first.family) == ("Rosa canina", "Rosa", "Rosaceae")
    assert first.common_names == {"en": ("dog rose",)}
    assert (second.scientific_name, second.common_names) == ("Rosa rugosa", {})
    assert [each.training_count for each in dataset.classes] == [3, 2]
    train = dataset.split("train")
    assert train.labels.tolist() == [0, 0, 0, 1, 1]
    assert train.read(4) == (root / "train/00010_Plantae/001.png").read_bytes()
    assert train.observations is None
    assert check(str(root), threads=1).errors == []


def test_names_that_a_year_hides_come_from_its_table_or_are_left_out(tmp_path: Path) -> None:
    root = _inaturalist(tmp_path, "2018")
    for split, photos in COUNTS.items():
        hidden = [
            {"id": each["id"], "name": str(8000 + each["id"]), "genus": "JRIDJA"}
            for each in CATEGORIES
        ]
        content = {**_list(split, photos), "categories": hidden}
        (root / f"{split}2018.json").write_text(json.dumps(content))
    results = [(each.scientific_name, each.genus) for each in open_dataset(str(root)).classes]
    assert results == [("9", None), ("10", None)]
    (unnamed,) = [each for each in check(str(root)).warnings if each.kind == "unnamed"]
    assert unnamed.items == ["9", "10"]
    (root / "categories.json").write_text(json.dumps(CATEGORIES))
    results = [(each.scientific_name, each.genus) for each in open_dataset(str(root)).classes]
    assert results == [("Rosa canina", "Rosa"), ("Rosa rugosa", "Rosa")]


def test_lists_of_boxes_are_passed_over_and_a_byte_order_mark_too(tmp_path: Path) -> None:
    root = _inaturalist(tmp_path, "2017")
    for path in root.glob("*2017.json"):
        (root / f"{path.stem}_bboxes.json").write_bytes(path.read_bytes())
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(open_dataset(str(root)).split("train")) == 5


def test_a_path_with_a_null_character_is_one_more_file_that_cannot_be_read(tmp_path: Path) -> None:
    root = _inaturalist(tmp_path)
    content = _list("val", COUNTS["val"])
    content["images"][0]["file_name"] = "val/a\0b.png"
    (root / "val.json").write_text(json.dumps(content))
    assert [finding.kind for finding in check(str(root), threads=1).errors] == ["unreadable_file"]


def test_a_named_list_stands_for_its_split(tmp_path: Path) -> None:
    root = _inaturalist(tmp_path)
    mini = _list("train", {"00009_Plantae": 1, "00010_Plantae": 1})
    (root / "train_mini.json").write_text(json.dumps(mini))
    message = r"several lists of train: 'train\.json', 'train_mini\.json'; name one"
    with pytest.raises(DataError, match=message):
        open_dataset(str(root))
    dataset = open_dataset(str(root / "train_mini.json"))
    assert {name: len(split) for name, split in dataset.splits.items()} == {"train": 2, "val": 1}
    assert len(open_dataset(str(root / "train.json")).split("train")) == 5


@pytest.mark.parametrize("empty", [{}, {"annotations": []}])
def test_a_list_of_test_without_annotations_is_passed_over(
    tmp_path: Path, empty: dict[str, Any]
) -> None:
    root = _inaturalist(tmp_path)
    (root / "test.json").write_text(json.dumps({"info": {}, "images": [], **empty}))
    listing = list_source(str(root))
    assert (list(listing.splits), listing.ignored) == (["train", "val"], ["test.json"])
    with pytest.raises(DataError, match="inat_comp"):
        open_dataset(str(root), splits=["test"])


def test_missing_photos_are_named_and_said_where_to_get(tmp_path: Path) -> None:
    root = _inaturalist(tmp_path)
    (root / "val/00009_Plantae/000.png").unlink()
    open_dataset(str(root), splits=["train"])
    with pytest.raises(DataError, match=r"1 of 1 photo of val are missing .*visipedia/inat_comp"):
        open_dataset(str(root), splits=["val"])


def _without(part: str) -> dict[str, Any]:
    return {key: value for key, value in _list("val", COUNTS["val"]).items() if key != part}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_without("images"), "not a list of iNaturalist: it lacks 'images'"),
        (_without("categories"), "it lacks 'categories'; .*visipedia/inat_comp"),
        (
            {**_list("val", COUNTS["val"]), "images": 2 * _list("val", COUNTS["val"])["images"]},
            "photos listed twice: 'val/0000",
        ),
        ({**_without("annotations"), "annotations": []}, "photos without an annotation: 'val/0000"),
        (
            {
                **_without("annotations"),
                "annotations": [{"image_id": 100, "category_id": each} for each in (9, 10)],
            },
            "photos with several categories: '100'",
        ),
        (
            {**_without("categories"), "categories": [{"id": 9, "name": "Acer rubrum"}]},
            "name these categories differently: '9'; the lists are of different years",
        ),
    ],
)
def test_every_fault_of_a_list_is_named(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    root = _inaturalist(tmp_path)
    (root / "val.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        open_dataset(str(root))


def test_a_damaged_list_is_named_and_another_json_is_none(tmp_path: Path) -> None:
    root = _inaturalist(tmp_path)
    (root / "val.json").write_text('{"info": {')
    with pytest.raises(DataError, match="json"):
        open_dataset(str(root))
    for name in ("train.json", "val.json"):
        (root / name).write_text('{"settings": 1}')
    assert open_dataset(str(root)).classes.ids == ("00009_Plantae", "00010_Plantae")
