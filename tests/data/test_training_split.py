"""Options of the training split after a source: parsing and effect."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from florilege.data.dataset import Dataset
from florilege.data.layouts.plantnet_300k import METADATA, NAMES
from florilege.data.sources import open_dataset, own_pictures
from florilege.data.training_split import TrainingOptions, add_options, parse_options
from florilege.errors import DataError
from tests.data.pictures import write_folder

FOLDER = {
    "train": {"Rosa canina": 40, "Rosa rugosa": 20, "Acer rubrum": 30, "Acer negundo": 10},
    "val": {"Rosa canina": 3, "Rosa rugosa": 3, "Acer rubrum": 3},
    "test": {"Rosa canina": 2, "Acer negundo": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), FOLDER)


@pytest.fixture(scope="module")
def manifest(folder: Path) -> Path:
    path = folder / "photos.csv"
    files = sorted(folder.rglob("*.png"))
    lines = [
        f"{file.relative_to(folder)},{file.parent.name},{file.parts[-3]},all" for file in files
    ]
    path.write_text("\n".join(["path,class_id,split,group", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def plantnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plantnet")
    counts = {"train": {"11": 30, "12": 30}, "val": {"11": 2, "12": 2}, "test": {"11": 2}}
    write_folder(root / "images", counts)
    (root / METADATA).write_text("{}")
    (root / NAMES[0]).write_text('{"11": "Rosa canina L.", "12": "Rosa rugosa Thunb."}')
    return root


def changed(clean: Dataset, noisy: Dataset) -> dict[str, float]:
    """The share of labels that differ, by split."""
    return {
        name: float(np.mean(split.labels != noisy.split(name).labels))
        for name, split in clean.splits.items()
    }


def test_options_follow_any_source_and_leave_its_own() -> None:
    assert parse_options("flora: train=40, noise=.5 ,seed=3,fraction=0.5") == (
        "flora: train=40,seed=3",
        TrainingOptions(noise=0.5, fraction=0.5),
    )
    assert parse_options("flora:noise=0.5,noise_seed=2") == (
        "flora",
        TrainingOptions(noise=0.5, noise_seed=2),
    )
    assert parse_options("photos.csv:imbalance=100,sample_seed=7") == (
        "photos.csv",
        TrainingOptions(imbalance=100, sample_seed=7),
    )
    assert parse_options("photos:imbalance=1,fraction=1,noise=1") == (
        "photos",
        TrainingOptions(noise=1.0),
    )
    for plain in ("flora", "photos", "flora:train=4,val=2,seed=1", ""):
        assert parse_options(plain) == (plain, TrainingOptions())


@pytest.mark.parametrize("layout", ["folder", "manifest", "plantnet"])
def test_noise_changes_labels_of_train_alone_whatever_the_layout(
    layout: str, request: pytest.FixtureRequest
) -> None:
    source = str(request.getfixturevalue(layout))
    clean, noisy = open_dataset(source), open_dataset(f"{source}:noise=0.8,noise_seed=1")
    shares = changed(clean, noisy)
    assert 0.25 < shares.pop("train") < 0.8
    assert set(shares.values()) == {0}
    assert noisy.source == f"{source}:noise=0.8,noise_seed=1"
    assert noisy.classes.ids == clean.classes.ids
    assert noisy.split("train").names == clean.split("train").names
    alone = open_dataset(f"{source}:noise=0.8,noise_seed=1", splits=["train"])
    np.testing.assert_array_equal(alone.split("train").labels, noisy.split("train").labels)
    other = open_dataset(f"{source}:noise=0.8,noise_seed=2")
    assert changed(noisy, other)["train"] > 0


def test_noise_in_the_flora_stays_within_the_genus() -> None:
    clean = open_dataset("flora:train=3000,val=50,test=50")
    noisy = open_dataset("flora:train=3000,val=50,test=50,noise=0.5")
    shares = changed(clean, noisy)
    assert 0.3 < shares["train"] < 0.5
    assert shares["val"] == shares["test"] == 0
    genera = np.array([item.genus for item in clean.classes])
    before, after = clean.split("train").labels, noisy.split("train").labels
    assert (genera[before] == genera[after]).all()


def test_training_counts_are_of_the_labels_trained_on(folder: Path) -> None:
    dataset = open_dataset(f"{folder}:noise=1,fraction=0.5")
    labels = dataset.split("train").labels
    assert dataset.classes.counts is not None
    assert dataset.classes.counts.tolist() == np.bincount(labels, minlength=4).tolist()
    assert dataset.classes.counts.tolist() != [5, 15, 20, 10]
    assert len(labels) == 50


def test_pictures_left_out_do_not_change_the_labels_of_those_kept(folder: Path) -> None:
    noisy = open_dataset(f"{folder}:noise=0.8").split("train")
    fewer = open_dataset(f"{folder}:noise=0.8,fraction=0.3,imbalance=5").split("train")
    label_of = dict(zip(noisy.names, noisy.labels.tolist(), strict=True))
    assert len(fewer) < 0.31 * len(noisy)
    assert fewer.labels.tolist() == [label_of[name] for name in fewer.names]
    for row in (0, len(fewer) - 1):
        assert fewer.read(row) == (folder / fewer.names[row]).read_bytes()


def test_thinning_touches_train_alone_and_follows_its_seed(folder: Path) -> None:
    whole = open_dataset(str(folder))
    half = open_dataset(f"{folder}:fraction=0.5")
    assert half.classes.counts is not None
    assert half.classes.counts.tolist() == [5, 15, 20, 10]
    for name in ("val", "test"):
        assert half.split(name).names == whole.split(name).names
    other = open_dataset(f"{folder}:fraction=0.5,sample_seed=1")
    assert half.split("train").names != other.split("train").names


def test_a_class_that_noise_takes_the_last_picture_of_stays_a_class(tmp_path: Path) -> None:
    counts = {
        "train": {"Rosa alba": 60, "Rosa bella": 1, "Rosa clara": 1},
        "val": {"Rosa alba": 1, "Rosa bella": 1},
    }
    write_folder(tmp_path, {**counts, "test": {"Rosa clara": 1}})
    count = 0
    for seed in range(5):
        dataset = open_dataset(f"{tmp_path}:noise=1,noise_seed={seed},fraction=0.02")
        assert dataset.classes.ids == ("Rosa alba", "Rosa bella", "Rosa clara")
        count += 0 in [item.training_count for item in dataset.classes]
    assert count


def test_what_train_lacks_is_still_refused_under_noise(tmp_path: Path) -> None:
    write_folder(tmp_path, {"train": {"Rosa alba": 9, "Rosa bella": 9}, "val": {"Rosa clara": 1}})
    with pytest.raises(DataError, match="1 class of val without a picture in train: 'Rosa clara'"):
        open_dataset(f"{tmp_path}:noise=1")


def test_data_without_train_are_read_whatever_is_asked_of_it(tmp_path: Path) -> None:
    write_folder(tmp_path, {"test": {"a": 1, "b": 1}})
    assert len(open_dataset(f"{tmp_path}:noise=0.5,fraction=0.1").split("test")) == 2


@pytest.mark.parametrize("name", ["photos:noise=0.2", "a=b", "c:d", "x:y=1,z=2"])
def test_a_path_that_exists_wins_over_options(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path / name, {"train": {"Rosa alba": 30, "Rosa bella": 30}})
    path = str(tmp_path / name)
    assert parse_options(path) == (path, TrainingOptions())
    assert parse_options(f"{path}:noise=1") == (path, TrainingOptions(noise=1))
    assert changed(open_dataset(path), open_dataset(f"{path}:noise=1"))["train"] > 0


@pytest.mark.parametrize("path", [r"C:\photos\a=b", "C:/photos/noise=1", "nowhere:0.2", "a:b:c"])
def test_what_does_not_look_like_options_is_a_path(path: str) -> None:
    assert parse_options(path) == (path, TrainingOptions())
    with pytest.raises(DataError, match="no such file or folder"):
        open_dataset(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("noise=0.2,noise=0.3", "noise is given twice"),
        ("noise=1.5", r"noise must be a number from 0 to 1, got '1\.5'"),
        ("noise=nan", "noise must be"),
        ("noise=", "noise must be .* got ''"),
        ("fraction=0", "fraction must be a number above 0 and at most 1"),
        ("imbalance=0.5", "imbalance must be a finite number of 1 or more"),
        ("imbalance=inf", "imbalance must be"),
        ("noise=0.1,noise_seed=-1", "noise_seed must be a whole number of 0 or more, got '-1'"),
        ("sample_seed=1.5", "sample_seed must be a whole number"),
    ],
)
@pytest.mark.parametrize("source", ["nowhere", "flora"])
def test_a_value_that_an_option_does_not_take_is_refused(
    source: str, options: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        open_dataset(f"{source}:{options}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "nowhere:nois=0.2",
            "unknown option .nois.; a source takes noise=, .*; did you mean noise?",
        ),
        ("nowhere:noise=0.2,imbalanced=2", "did you mean imbalance"),
        ("nowhere:size=3", "unknown option 'size'; a source takes"),
        (
            "flora:nois=1",
            "unknown option 'nois'; flora takes train=.* the options of any source, noise=",
        ),
    ],
)
def test_an_unknown_option_is_refused_with_those_there_are(source: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as refused:
        open_dataset(source)
    for field in fields(TrainingOptions):
        assert f"{field.name}=" in str(refused.value)


def test_a_source_with_options_tells_its_picture_size(tmp_path: Path) -> None:
    assert (
        own_pictures("flora:noise=0.2")
        == own_pictures("flora:train=4,fraction=0.5")
        == (48, None, None)
    )
    assert own_pictures(f"{tmp_path}:noise=0.2") is own_pictures("flora:noise=2") is None
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test", "meta"):
        (tmp_path / "cifar-100-python" / name).touch()
    cifar = own_pictures(f"{tmp_path}:noise=0.2,noise_seed=1")
    assert cifar is not None
    assert cifar.side == 32


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("photos", "photos:noise=0.2,hold_out=5"),
        ("photos:fraction=0.5", "photos:fraction=0.5,noise=0.2,hold_out=5"),
        ("photos: noise =0", "photos: noise =0,hold_out=5"),
        ("photos:hold_out=1,noise=1", "photos:hold_out=1,noise=1"),
        ("flora:train=4000", "flora:train=4000,noise=0.2,hold_out=5"),
        ("a:b/photos", "a:b/photos:noise=0.2,hold_out=5"),
        ("x" * 5000, "x" * 5000 + ":noise=0.2,hold_out=5"),
    ],
)
def test_options_are_added_but_for_those_that_are_named(source: str, found: str) -> None:
    assert add_options(source, "noise=0.2,hold_out=5") == found
    assert add_options(found, "noise=0.2,hold_out=5") == found


def test_a_folder_that_is_called_like_options_has_none(tmp_path: Path) -> None:
    (tmp_path / "x:noise=1").mkdir()
    assert add_options(f"{tmp_path}/x:noise=1", "noise=0.2") == f"{tmp_path}/x:noise=1:noise=0.2"
