from pathlib import Path

import pytest

from florilege.data.checks import check
from florilege.data.layouts.imagenet_folder import NAMES
from florilege.data.sources import list_source, open_dataset
from florilege.errors import DataError
from tests.data.pictures import png, write_folder

FISH, CRANE, MACHINE = "n01440764", "n02012849", "n03126707"
TABLE = f"{FISH} tench, Tinca tinca\n{CRANE} crane\n{MACHINE} crane\nn09999999 nowhere\n\n"


def _imagenet(root: Path) -> Path:
    counts = {FISH: 4, CRANE: 4, MACHINE: 3}
    return write_folder(root, {"train": counts, "val": dict.fromkeys(counts, 1)})


@pytest.mark.parametrize("name", NAMES)
def test_a_small_table_beside_the_splits_names_the_classes(tmp_path: Path, name: str) -> None:
    root = _imagenet(tmp_path)
    text = TABLE.replace(" ", "\t", 1) if name == "words.txt" else TABLE
    (root / name).write_text(text)
    listing = list_source(str(root))
    assert listing.ignored == []
    assert set(listing.class_infos) == {FISH, CRANE, MACHINE}
    fish, crane, machine = open_dataset(str(root)).classes
    assert (fish.id, fish.scientific_name) == (FISH, "tench")
    assert fish.common_names == {"en": ("tench", "Tinca tinca")}
    assert crane.scientific_name == f"crane ({CRANE})"
    assert machine.scientific_name == f"crane ({MACHINE})"


def test_a_class_table_comes_before_it_and_may_do_without(tmp_path: Path) -> None:
    root = _imagenet(tmp_path)
    (root / "classes.csv").write_text(f"class_id,scientific_name\n{FISH},Tinca tinca\n{CRANE},\n")
    assert [each.scientific_name for each in open_dataset(str(root)).classes] == [
        "Tinca tinca",
        CRANE,
        MACHINE,
    ]
    (root / NAMES[0]).write_text(TABLE)
    fish, crane, _ = open_dataset(str(root)).classes
    assert (fish.scientific_name, fish.common_names["en"][0]) == ("Tinca tinca", "tench")
    assert crane.scientific_name == f"crane ({CRANE})"


def test_val_as_the_archive_has_it_is_refused_with_the_way_out(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": {FISH: 2, CRANE: 2}})
    (root / "val").mkdir()
    (root / "val/ILSVRC2012_val_00000001.JPEG").write_bytes(png(1))
    with pytest.raises(DataError, match=r"move them to folders such as val/n01440764"):
        open_dataset(str(root))


def test_a_split_that_is_not_there_is_said_where_to_get(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": {FISH: 2, CRANE: 2}})
    with pytest.raises(DataError, match=r"no split 'val'; it has: train; .*image-net\.org"):
        open_dataset(str(root), splits=["train", "val"])


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    root = _imagenet(tmp_path)
    (root / NAMES[0]).write_bytes(b"n01440764 \xff\n")
    with pytest.raises(DataError, match=r"LOC_synset_mapping\.txt is not a text file in UTF-8"):
        open_dataset(str(root))


def test_the_same_photo_in_two_published_splits_is_a_warning(tmp_path: Path) -> None:
    root = _imagenet(tmp_path)
    copy = (root / "train" / FISH / "000.png").read_bytes()
    (root / "val" / FISH / "copy.png").write_bytes(copy)
    report = check(str(root), threads=1)
    assert report.errors == []
    assert report.warnings[0].kind == "same_file_across_splits"


def test_other_folders_are_none_of_imagenet(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": {FISH: 1, "rosa": 1}})
    (root / NAMES[0]).write_text(TABLE)
    listing = list_source(str(root))
    assert (listing.published, listing.class_infos, listing.ignored) == (None, {}, [NAMES[0]])
