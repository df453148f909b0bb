from pathlib import Path

import pytest

from florilege.data.checks import check
from florilege.data.sources import list_source, open_dataset
from florilege.errors import DataError
from tests.data.pictures import png, write_folder

FISH, BIRD = "n01440764", "n01530575"
LISTS = {
    "train": f"train/{BIRD}/000.png 1\ntrain/{FISH}/000.png 0\ntrain/{FISH}/001.png 0\n",
    "val": f"train/{FISH}/002.png 0\ntrain/{BIRD}/001.png 1\n",
    "test": f"val/{FISH}/000.png 0\nval/{BIRD}/000.png 1\n\n",
}


def _imagenet_lt(root: Path, folder: str = "ImageNet_LT") -> Path:
    """ImageNet with the three lists in a separate folder; returns that folder."""
    write_folder(root, {"train": {FISH: 4, BIRD: 3}, "val": {FISH: 1, BIRD: 1}})
    place = root / folder
    place.mkdir(exist_ok=True)
    for split, text in LISTS.items():
        (place / f"ImageNet_LT_{split}.txt").write_text(text)
    return place


def _named(root: Path) -> Path:
    return _imagenet_lt(root, ".") / "ImageNet_LT_train.txt"


@pytest.mark.parametrize("layout", [_imagenet_lt, _named])
def test_lists_say_which_photos_are_in_which_split(tmp_path: Path, layout: object) -> None:
    assert callable(layout)
    dataset = open_dataset(str(layout(tmp_path)))
    assert dataset.classes.ids == (FISH, BIRD)
    assert [each.training_count for each in dataset.classes] == [2, 1]
    train = dataset.split("train")
    assert train.names == [
        f"train/{BIRD}/000.png",
        f"train/{FISH}/000.png",
        f"train/{FISH}/001.png",
    ]
    assert train.labels.tolist() == [1, 0, 0]
    assert train.read(0) == (tmp_path / "train" / BIRD / "000.png").read_bytes()
    assert dataset.split("val").names == [f"train/{FISH}/002.png", f"train/{BIRD}/001.png"]
    assert dataset.split("test").labels.tolist() == [0, 1]


def test_a_folder_with_splits_stays_a_folder_whatever_lists_lie_there(tmp_path: Path) -> None:
    assert len(open_dataset(str(_imagenet_lt(tmp_path, "."))).split("train")) == 7


def test_names_come_from_a_table_beside_the_lists_or_the_photos(tmp_path: Path) -> None:
    place = _imagenet_lt(tmp_path)
    (tmp_path / "LOC_synset_mapping.txt").write_text(f"{FISH} tench, Tinca tinca\n")
    assert open_dataset(str(place)).classes[0].scientific_name == "tench"
    (place / "classes.csv").write_text(f"class_id,scientific_name\n{FISH},Tinca tinca\n")
    assert open_dataset(str(place)).classes[0].scientific_name == "Tinca tinca"


def test_labels_are_class_ids_where_folders_do_not_tell_them_apart(tmp_path: Path) -> None:
    write_folder(tmp_path, {"my photos": {"a": 2, "b": 1}})
    (tmp_path / "train.txt").write_text("my photos/a/000.png 10\nmy photos/b/000.png 9\n")
    (tmp_path / "val.txt").write_text("my photos/a/001.png 9\n")
    dataset = open_dataset(str(tmp_path))
    assert dataset.classes.ids == ("9", "10")
    assert dataset.split("val").labels.tolist() == [0]
    assert list_source(str(tmp_path)).published is None


def test_photos_of_test_need_not_lie_in_folders_of_their_classes(tmp_path: Path) -> None:
    place = _imagenet_lt(tmp_path)
    for name in ("000.png", "001.png"):
        (tmp_path / "val" / name).write_bytes(png(7))
    (place / "ImageNet_LT_test.txt").write_text("val/000.png 0\nval/001.png 1\n")
    dataset = open_dataset(str(place))
    assert dataset.classes.ids == (FISH, BIRD)
    assert dataset.split("test").labels.tolist() == [0, 1]


def test_a_missing_first_photo_is_one_of_all_and_a_byte_order_mark_is_none(tmp_path: Path) -> None:
    place = _imagenet_lt(tmp_path)
    for other in ("val", "test"):
        (place / f"ImageNet_LT_{other}.txt").unlink()
    train = place / "ImageNet_LT_train.txt"
    train.write_text(train.read_text("utf-8"), "utf-8-sig")
    assert len(open_dataset(str(place)).split("train")) == 3
    (tmp_path / "train" / BIRD / "000.png").unlink()
    with pytest.raises(DataError, match=f"1 of 3 photos of train are missing from {tmp_path}:"):
        open_dataset(str(place))


def test_only_the_photos_of_wanted_splits_must_be_there(tmp_path: Path) -> None:
    place = _imagenet_lt(tmp_path)
    (tmp_path / "val" / FISH / "000.png").unlink()
    open_dataset(str(place), splits=["train", "val"])
    message = (
        r"1 of 2 photos of test are missing from .*: 'val/n01440764/000.png'; .*image-net\.org"
    )
    with pytest.raises(DataError, match=message):
        open_dataset(str(place), splits=["test"])
    (error,) = check(str(place), threads=1).errors
    assert (error.kind, len(error.items)) == ("unreadable_file", 1)
    assert "image-net.org" in error.message


def test_photos_that_are_nowhere_are_said_where_to_get(tmp_path: Path) -> None:
    for split, text in LISTS.items():
        (tmp_path / f"ImageNet_LT_{split}.txt").write_text(text)
    with pytest.raises(DataError, match=r"3 of 3 photos of train, 2 of 2 photos of val, 2 of 2"):
        open_dataset(str(tmp_path))


def test_lists_of_several_data_sets_in_one_folder_are_refused(tmp_path: Path) -> None:
    place = _imagenet_lt(tmp_path)
    (place / "Places_LT_train.txt").write_text("x/y.png 0\n")
    with pytest.raises(DataError, match="Places_LT_train"):
        open_dataset(str(place))
    assert len(open_dataset(str(place / "ImageNet_LT_test.txt")).split("val")) == 2


@pytest.mark.parametrize(
    ("split", "content", "message"),
    [
        *(
            ("val", LISTS["val"] + line, rf"ImageNet_LT_val\.txt, line 3: .*got '{line}'")
            for line in ("train/a.png", "train/a.png one", "train/a.png -1")
        ),
        ("val", b"\xff\xfe", r"ImageNet_LT_val\.txt is not a text file in UTF-8"),
        (
            "train",
            f"{LISTS['train']}train/{FISH}/001.png 1\n",
            f"photos with several labels: 'train/{FISH}/001.png'",
        ),
        ("val", None, r"no split 'val'; it has: train, test; .*OpenLongTail"),
    ],
)
def test_a_missing_or_damaged_list_is_named(
    tmp_path: Path, split: str, content: str | bytes | None, message: str
) -> None:
    path = _imagenet_lt(tmp_path) / f"ImageNet_LT_{split}.txt"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=message):
        open_dataset(str(path.parent), splits=["train", "val"])
