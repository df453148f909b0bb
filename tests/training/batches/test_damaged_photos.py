"""Damaged photos are named in one error, or left out and listed."""

import json
from pathlib import Path

import pytest

from florilege.data.sources import open_dataset
from florilege.errors import DataError
from florilege.training.configuration import RunFolder
from florilege.training.preparation import _find_damaged, all_named, without_damaged
from tests.training.small import lines_of, small_config, train_quietly, write_photos


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three photos that cannot be read: two of train, one of val, one of test."""
    folder = write_photos(tmp_path / "photos", train=6, val=4)
    (folder / "test" / "red").mkdir(parents=True)
    whole = (folder / "train/red/1.png").read_bytes()
    (folder / "train/red/3.png").write_bytes(b"no picture")
    (folder / "train/blue/0.png").write_bytes(whole[:300])
    (folder / "val/green/2.png").write_bytes(b"")
    (folder / "test/red/0.png").write_bytes(whole[:-40])
    return folder


@pytest.mark.parametrize("cache_mb", [0, 1024])
def test_all_of_all_splits_are_named_at_once(photos: Path, tmp_path: Path, cache_mb: int) -> None:
    config = small_config(photos, cache_mb=cache_mb)
    with pytest.raises(DataError) as caught:
        train_quietly(config, tmp_path / "run")
    first, *names = str(caught.value).splitlines()
    assert first == (
        "2 pictures of train, 1 picture of val and 1 picture of test cannot be read; repair or "
        "remove them, or train without them (--skip-damaged):"
    )
    assert [name.strip().partition(": ")[0] for name in names] == [
        *("train/blue/0.png", "train/red/3.png", "val/green/2.png", "test/red/0.png")
    ]


def test_of_whole_photos_none_is_named(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", train=3, val=1)
    assert all_named(str(folder)) is None
    dataset = open_dataset(str(folder))
    assert without_damaged(dataset) == (dataset, [])
    assert _find_damaged(dataset) == {"train": {}, "val": {}}


@pytest.mark.parametrize("freeze", [False, True])
def test_they_are_skipped_and_listed(photos: Path, tmp_path: Path, freeze: bool) -> None:
    settings = {}
    if freeze:
        whole = write_photos(tmp_path / "whole", train=2, val=1)
        train_quietly(small_config(whole, epochs=0), tmp_path / "start")
        settings = {"freeze": "backbone", "weights": str(tmp_path / "start")}
    config = small_config(photos, skip_damaged=True, epochs=1, **settings)
    lines = lines_of(config, tmp_path / "run")
    place = lines.index(
        "skipped because they cannot be read: 2 pictures of train and 1 picture of val"
    )
    names = [line.strip().partition(": ")[0] for line in lines[place + 1 : place + 4]]
    assert names == ["train/blue/0.png", "train/red/3.png", "val/green/2.png"]
    classes = json.loads(RunFolder(tmp_path / "run").classes.read_bytes())
    counts = {item["id"]: item["training_count"] for item in classes}
    assert counts == {"blue": 5, "green": 6, "red": 5}


def test_photos_that_a_table_names_and_nobody_has_are_skipped_too(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", train=3, val=1)
    rows = [
        f"{path.relative_to(folder)},{path.parts[-2]},{path.parts[-3]}\n"
        for path in folder.rglob("*.png")
    ]
    gone = ["train/red/gone.png,red,train\n", "val/red/gone.png,red,val\n"]
    manifest = folder / "photos.csv"
    manifest.write_text("".join(["path,class_id,split\n", *rows, *gone]))
    with pytest.raises(DataError, match=r"1 of 10 photos of train, 1 of 4 photos of val are missi"):
        open_dataset(str(manifest))
    config = small_config(manifest, skip_damaged=True, epochs=1)
    lines = lines_of(config, tmp_path / "run")
    assert lines[:3] == [
        "skipped because they cannot be read: 1 picture of train and 1 picture of val",
        "  train/red/gone.png: No such file or directory",
        "  val/red/gone.png: No such file or directory",
    ]
