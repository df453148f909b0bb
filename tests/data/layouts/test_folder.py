import os
import sys
from pathlib import Path

import pytest

from florilege.data.layouts.folder import _NAME_TABLES, list_folder
from florilege.data.sources import list_source, open_dataset
from florilege.errors import DataError
from florilege.models.classes import ClassInfo, ClassTable
from tests.data.pictures import png, write_folder

NFC, NFD = "\u00e9pine", "e\u0301pine"
COUNTS = {"train": {"rosa": 3, "acer": 2}, "validation": {"acer": 1}, "test": {"rosa": 2}}


def test_labels_follow_the_sorted_folder_names_and_bytes_are_read_when_wanted(
    tmp_path: Path,
) -> None:
    dataset = open_dataset(str(write_folder(tmp_path, COUNTS)))
    assert dataset.classes.ids == ("acer", "rosa")
    assert [item.training_count for item in dataset.classes] == [2, 3]
    assert list(dataset.splits) == ["train", "val", "test"]
    train = dataset.split("train")
    assert train.labels.tolist() == [0, 0, 1, 1, 1]
    assert train.names[2] == "train/rosa/000.png"
    (tmp_path / train.names[1]).write_bytes(b"changed")
    for row, name in enumerate(train.names):
        assert train.read(row) == (tmp_path / name).read_bytes()


def test_labels_do_not_depend_on_the_splits_asked_for(tmp_path: Path) -> None:
    dataset = open_dataset(str(write_folder(tmp_path, COUNTS)), splits=["test"])
    assert list(dataset.splits) == ["test"]
    assert dataset.split("test").labels.tolist() == [1, 1]


def test_hidden_entries_are_passed_over_and_stray_ones_listed(tmp_path: Path) -> None:
    root = write_folder(tmp_path, COUNTS)
    (root / "train/.thumbs").mkdir()
    (root / "train/.thumbs/a.png").write_bytes(png(1))
    (root / "train/acer/.DS_Store").write_bytes(b"x")
    (root / "train/acer/notes.txt").write_text("x")
    (root / "train/readme.md").write_text("x")
    (root / "train/empty").mkdir()
    (root / "licence").write_text("x")
    (root / "train/acer/deeper").mkdir()
    (root / "train/acer/deeper/B.JPG").write_bytes(png(2))
    listing = list_folder(root, str(root))
    assert listing.splits["train"].names[-4:-3] == ["train/acer/deeper/B.JPG"]
    assert set(listing.splits["train"].class_ids) == {"acer", "rosa"}
    stray = ["licence", "train/acer/notes.txt", "train/empty/", "train/readme.md"]
    assert sorted(listing.ignored) == stray


def test_two_folders_for_one_split_are_refused(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": {"a": 1, "b": 1}, "val": {"a": 1}, "cal": {"a": 1}})
    with pytest.raises(DataError, match="split"):
        open_dataset(str(root))


FISH, CRANE, MACHINE = "n01440764", "n02012849", "n03126707"
TABLE = f"{FISH} tench, Tinca tinca\n{CRANE} crane\n{MACHINE} crane\nn09999999 nowhere\n\n"


def _imagenet(root: Path) -> Path:
    counts = {FISH: 4, CRANE: 4, MACHINE: 3}
    return write_folder(root, {"train": counts, "val": dict.fromkeys(counts, 1)})


@pytest.mark.parametrize("name", _NAME_TABLES)
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
    names = [each.scientific_name for each in open_dataset(str(root)).classes]
    assert names == ["Tinca tinca", CRANE, MACHINE]
    (root / _NAME_TABLES[0]).write_text(TABLE)
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
    with pytest.raises(DataError, match="image-net"):
        open_dataset(str(root), splits=["train", "val"])


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    root = _imagenet(tmp_path)
    (root / _NAME_TABLES[0]).write_bytes(b"n01440764 \xff\n")
    with pytest.raises(DataError, match=r"LOC_synset_mapping\.txt is not a text file in UTF-8"):
        open_dataset(str(root))


def test_other_folders_are_none_of_imagenet(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": {FISH: 1, "rosa": 1}})
    (root / _NAME_TABLES[0]).write_text(TABLE)
    listing = list_source(str(root))
    assert (listing.published, listing.class_infos, listing.ignored) == (
        None,
        {},
        [_NAME_TABLES[0]],
    )


@pytest.mark.parametrize(
    "other",
    [
        *(NFD, "Rosa  canina", "Rosa canina ", "Rosa\u00a0canina"),
        *("Rosa canina\u200b", "\ufeffRosa canina", "Rosa ca\u00adnina", "\u200eRosa canina"),
    ],
)
def test_folders_whose_names_look_the_same_are_one_class(tmp_path: Path, other: str) -> None:
    plain = NFC if other == NFD else "Rosa canina"
    for split, name in (("train", plain), ("train", "bellis"), ("val", other), ("val", "bellis")):
        (tmp_path / split / name).mkdir(parents=True)
        (tmp_path / split / name / "a.png").write_bytes(png(1))
    dataset = open_dataset(str(tmp_path))
    assert set(dataset.classes.ids) == {plain, "bellis"}
    val = dataset.splits["val"]
    row = val.names.index(f"val/{other}/a.png")  # the file keeps its own name
    assert dataset.classes.ids[val.labels[row]] == plain
    assert val.read(row) == png(1)


def test_two_such_folders_in_one_split_are_one_class(tmp_path: Path) -> None:
    for number, name in enumerate((NFC, NFD, "bellis")):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "a.png").write_bytes(png(number))
    dataset = open_dataset(str(tmp_path))
    assert dataset.classes.ids == ("bellis", NFC)
    assert sorted(dataset.splits["train"].labels.tolist()) == [0, 1, 1]


def test_a_model_that_knows_a_class_by_the_other_bytes_knows_its_photos(tmp_path: Path) -> None:
    (tmp_path / "val" / NFC).mkdir(parents=True)
    (tmp_path / "val" / NFC / "a.png").write_bytes(png(1))
    table = ClassTable((ClassInfo(id="bellis"), ClassInfo(id=NFD)))
    dataset = open_dataset(str(tmp_path), classes=table)
    assert dataset.splits["val"].labels.tolist() == [1]


def test_testing_beside_training_and_validation_is_the_test_split(tmp_path: Path) -> None:
    for split in ("training", "Validation", "testing"):
        for name in ("rosa", "bellis"):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "a.png").write_bytes(png(1))
    listing = list_source(str(tmp_path))
    assert list(listing.splits) == ["val", "test", "train"]
    assert listing.ignored == []


def test_a_link_to_a_folder_above_is_passed_over_and_listed(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", COUNTS)
    (root / "train/acer/more").symlink_to(write_folder(tmp_path / "other", {"train": {"a": 2}}))
    (root / "train/acer/here").symlink_to(".")
    (root / "train/acer/up").symlink_to("..")
    (root / "train/acer/other").symlink_to("../rosa")
    (root / "train/rosa/back").symlink_to("../acer")
    (root / "train/all").symlink_to("..")
    listing = list_folder(root, "data")
    assert sorted(listing.ignored) == sorted(
        f"train/{name}"
        for name in (
            *("all", "acer/here/", "acer/up/", "acer/other/back/"),
            *("rosa/back/here/", "rosa/back/up/", "rosa/back/other/"),
        )
    )
    train = listing.splits["train"]
    assert train.class_ids.count("acer") == 2 + 2 + 3
    assert train.class_ids.count("rosa") == 3 + 2 + 2


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep no such names")
@pytest.mark.parametrize("name", [b"caf\xe9/1.jpg", b"oak/\xe9.jpg"])
def test_a_name_that_is_not_utf8_is_shown_with_the_remedy(tmp_path: Path, name: bytes) -> None:
    """It ended in a table that cannot hold it: unexpected: UnicodeEncodeError."""
    photo = Path(os.fsdecode(os.fsencode(tmp_path / "train") + b"/" + name))
    photo.parent.mkdir(parents=True)
    photo.touch()
    with pytest.raises(DataError, match=r"\\xe9.* is not in UTF-8; rename it"):
        list_source(str(tmp_path))
