import json
from pathlib import Path

import pytest

from data.layouts.plantnet import METADATA, NAMES, without_author
from data.sources import open_dataset
from models.errors import DataError
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


def test_names_that_differ_in_their_author_alone_keep_it(tmp_path: Path) -> None:
    root = _plantnet(tmp_path)
    names = {"1355868": "Rosa alba L.", "1355920": "Rosa alba Mill."}
    (root / NAMES[0]).rename(root / NAMES[1])  # as in older copies
    (root / NAMES[1]).write_text(json.dumps(names))
    classes = open_dataset(str(root)).classes
    assert [item.scientific_name for item in classes] == ["Rosa alba L.", "Rosa alba Mill."]


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("Trifolium pratense L.", "Trifolium pratense"),
        ("Hibiscus rosa-sinensis L.", "Hibiscus rosa-sinensis"),
        ("Mentha x piperita L.", "Mentha x piperita"),
        (
            "Lapsana communis subsp. intermedia (M. Bieb.) Hayek",
            "Lapsana communis subsp. intermedia",
        ),
        ("unknown plant", "unknown plant"),
    ],
)
def test_authors_are_taken_off(full: str, short: str) -> None:
    assert without_author(full) == short


def test_missing_or_damaged_parts_are_named(tmp_path: Path) -> None:
    root = _plantnet(tmp_path)
    (root / NAMES[0]).write_text("[]")
    with pytest.raises(DataError, match="must hold one JSON object, got list"):
        open_dataset(str(root))
    (root / NAMES[0]).unlink()
    with pytest.raises(DataError, match="no plantnet300K_species_id_2_name"):
        open_dataset(str(root))
    (root / METADATA).write_text("{")
    with pytest.raises(DataError, match=r"metadata\.json is not a JSON file"):
        open_dataset(str(root))
    (root / "images").rename(root / "pictures")
    with pytest.raises(DataError, match="no folder 'images'"):
        open_dataset(str(root))
