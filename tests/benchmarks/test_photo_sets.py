import io
import json
import pickle
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import typer
from PIL import Image

from benchmarks.figures import photo_sets
from benchmarks.figures.photo_sets import main, make, manifest, place, unpack
from benchmarks.figures.published_photos import LISTS, ORIGINALS
from florilege.data.sources import open_dataset
from florilege.errors import DataError, UsageError
from florilege.tables import read_table
from tests.commands import call
from tests.data.pictures import png
from tests.server.garden import encoded

INDEX = [
    ("test/Leek/1.png", 0, 0, "test"),
    ("train/Leek/2.png", 0, 0, "train"),
    ("ood/Milk.png", -1, -1, "ood"),
    ("train/Aubergine/1.png", 1, 1, "train"),
    ("cal/Onion/9.png", 2, 0, "cal"),
    ("train/Onion/3.png", 2, 0, "train"),
]


def _handed_on(folder: Path, *, missing: str = "") -> Path:
    folder.mkdir()
    names = {"fine": ["Leek", "Aubergine", "Onion"], "coarse": ["Alliums", "Nightshades"]}
    (folder / "classes.json").write_text(json.dumps(names))
    lines = ["path,fine,coarse,split", *(",".join(map(str, row)) for row in INDEX)]
    (folder / "index.csv").write_text("\n".join(lines) + "\n")
    (folder / "LICENSE").write_text("MIT")
    with tarfile.open(folder / "images.tar", "w") as archive:
        for seed, (path, *_) in enumerate(INDEX):
            if path != missing:
                member = tarfile.TarInfo(path)
                member.size = len(png(seed))
                archive.addfile(member, io.BytesIO(png(seed)))
    return folder


def test_the_command_makes_a_manifest_with_groups_and_a_folder_with_the_rest(
    tmp_path: Path,
) -> None:
    app = typer.Typer()
    app.command()(main)
    folder, out = _handed_on(tmp_path / "given"), tmp_path / "set"
    result = call(app, folder, "--out", out)
    assert result.exit_code == 0, result.output
    assert "train 3, val 1, test 1; 3 classes in 2 groups" in result.stdout
    assert (out / "ood/Milk.png").read_bytes() == png(2)
    assert (out / "LICENSE").read_text() == "MIT"
    for source in (out / "photos.csv", out):
        dataset = open_dataset(str(source))
        assert dataset.classes.ids == ("Aubergine", "Leek", "Onion")
        assert [len(split) for split in dataset.splits.values()] == [3, 1, 1]
        assert dataset.split("val").read(0) == png(4)
    noisy = open_dataset(f"{out / 'photos.csv'}:noise=1").split("train")
    label_of = dict(zip(noisy.names, noisy.labels.tolist(), strict=True))
    assert label_of["train/Aubergine/1.png"] == 0
    assert {label_of["train/Leek/2.png"], label_of["train/Onion/3.png"]} <= {1, 2}


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    folder = _handed_on(tmp_path / "given", missing="train/Onion/3.png")
    with pytest.raises(DataError, match=r"images\.tar has no photo train/Onion/3\.png"):
        unpack(folder, tmp_path / "set")
    with (folder / "index.csv").open("a") as index:
        index.write("extra/Onion/4.png,2,0,extra\n")
    with pytest.raises(DataError, match="split"):
        manifest(folder)


@pytest.mark.parametrize("path", ["../x.png", "train/../../x.png", "/train/x.png"])
def test_no_photo_is_written_outside_the_folder(path: str) -> None:
    with pytest.raises(DataError, match="leads out"):
        place(path)


CALTECH = [
    *("train/elk/image_0002.jpg", "train/gnu/image_0001.jpg"),
    *("val/gnu/image_0002.jpg", "test/elk/image_0001.jpg"),
]
GROCERY = [
    *("test/Kiwi/Kiwi_001.jpg", "train/Red-Beet/Red-Beet_001.jpg", "val/Kiwi/Kiwi_001.jpg"),
    *("train/Kiwi/Kiwi_001.jpg", "ood/val/Milk_001.jpg"),
]


def _jpeg(seed: int, size: tuple[int, int] = (300, 200)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)
    return encoded(pixels, "JPEG")


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short lists in place of those of 7,027 and 2,970 photos."""
    folder = tmp_path / "lists"
    folder.mkdir()
    for name, paths in (("caltech101-96", CALTECH), ("grocery-plants", GROCERY)):
        rows = [f"{path},{'' if 'ood' in path else 'herd'}" for path in paths]
        (folder / f"{name}.csv").write_text("\n".join(["path,group", *rows]) + "\n")
    monkeypatch.setattr(photo_sets, "LISTS", folder)


def _caltech(folder: Path) -> Path:
    """Caltech-101 in its own layout: a folder for each class, with more than the list names."""
    root = folder / "101_ObjectCategories"
    for seed, path in enumerate(("elk/1", "elk/2", "elk/3", "gnu/1", "gnu/2", "Faces/1")):
        name, number = path.split("/")
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"image_{number.zfill(4)}.jpg").write_bytes(_jpeg(seed))
    return folder


def _as_tar(root: Path) -> Path:
    path = root.parent / "101_ObjectCategories.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(root / "101_ObjectCategories", "101_ObjectCategories")
    return path


def _as_zip(root: Path) -> Path:
    path = root.parent / "caltech-101.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(_as_tar(root), "caltech-101/101_ObjectCategories.tar.gz")
        archive.writestr("caltech-101/show_annotation.m", "%")
    return path


def _as_unzipped(root: Path) -> Path:
    folder = root.parent / "caltech-101"
    folder.mkdir()
    shutil.move(_as_tar(root), folder)
    return folder


CALTECH_FORMS: list[Callable[[Path], Path]] = [
    *(_as_tar, _as_zip, _as_unzipped),
    *(lambda root: root, lambda root: root / "101_ObjectCategories"),
]


@pytest.mark.parametrize("form", CALTECH_FORMS, ids=["tar", "zip", "unzipped", "parent", "folder"])
@pytest.mark.usefixtures("lists")
def test_caltech_101_is_taken_as_it_is_published(
    tmp_path: Path, form: Callable[[Path], Path]
) -> None:
    original = form(_caltech(tmp_path / "published"))
    answer = make("caltech101-96", original, tmp_path / "set")
    assert answer.endswith("photos.csv: train 2, val 1, test 1; 2 classes in 1 groups")
    dataset = open_dataset(str(tmp_path / "set" / "photos.csv"))
    assert dataset.split("train").names == CALTECH[:2]
    with Image.open(io.BytesIO(dataset.split("train").read(0))) as photo:
        assert (photo.size, photo.format) == ((96, 96), "JPEG")
    names = {path.name for path in (tmp_path / "set").iterdir()}
    assert names == {"photos.csv", "test", "train", "val"}


def _grocery(folder: Path) -> Path:
    """A checkout: a tree of classes in each part, its names counted from one in each."""
    tree = ["Fruit/Kiwi/Kiwi", "Vegetables/Red-Beet/Red-Beet", "Packages/Milk/Milk"]
    for seed, part in enumerate(("train", "val", "test")):
        for path in tree:
            photo = folder / "dataset" / part / f"{path}_001.jpg"
            photo.parent.mkdir(parents=True)
            photo.write_bytes(_jpeg(10 * seed + tree.index(path), (348, 464)))
    (folder / "dataset/iconic-images-and-descriptions/Fruit/Kiwi").mkdir(parents=True)
    (folder / "dataset/iconic-images-and-descriptions/Fruit/Kiwi/Kiwi_001.jpg").write_bytes(b"")
    (folder / "LICENSE").write_text("MIT")
    return folder


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.usefixtures("lists")
def test_the_groceries_are_taken_from_a_checkout_or_its_zip(tmp_path: Path, zipped: bool) -> None:
    original = _grocery(tmp_path / "GroceryStoreDataset-master")
    if zipped:
        result = shutil.make_archive(str(tmp_path / "master"), "zip", tmp_path, original.name)
        original = Path(result)
    out = tmp_path / "set"
    answer = make("grocery-plants", original, out)
    assert answer.endswith("photos.csv: train 2, val 1, test 1; 2 classes in 1 groups")
    assert (out / "LICENSE").read_text() == "MIT"
    assert (out / "ood/val/Milk_001.jpg").read_bytes() == _jpeg(12, (348, 464))
    assert (out / "test/Kiwi/Kiwi_001.jpg").read_bytes() == _jpeg(20, (348, 464))
    for path in ("train/Kiwi/Kiwi_001.jpg", "val/Kiwi/Kiwi_001.jpg"):
        with Image.open(out / path) as photo:
            assert photo.size == (224, 299)


@pytest.mark.parametrize("packed", [False, True])
def test_cifar_100_is_unpacked_as_torchvision_reads_it(tmp_path: Path, packed: bool) -> None:
    original = tmp_path / "cifar-100-python"
    original.mkdir()
    labels = [label for label in range(2) for _ in range(10)]
    pixels = np.zeros((20, 3072), np.uint8)
    for name in ("train", "test"):
        content = {"data": pixels, "fine_labels": labels, "coarse_labels": labels}
        (original / name).write_bytes(pickle.dumps(content))
    names = {"fine_label_names": ["ash", "elm"], "coarse_label_names": ["a", "e"]}
    (original / "meta").write_bytes(pickle.dumps(names))
    if packed:
        with tarfile.open(tmp_path / "cifar-100-python.tar.gz", "w:gz") as archive:
            archive.add(original, original.name)
        original = tmp_path / "cifar-100-python.tar.gz"
    assert make("cifar-100", original, tmp_path / "set").endswith("train 18, val 2, test 20")


@pytest.mark.parametrize(
    ("name", "place", "licence"),
    [
        ("caltech101-96", "data.caltech.edu/records/mzrjq-6wc02, 137 MB", "CC BY 4.0"),
        ("grocery-plants", "github.com/marcusklasson/GroceryStoreDataset, 130 MB", "MIT"),
        ("cifar-100", "www.cs.toronto.edu/~kriz/cifar.html, 169 MB", "state no licence"),
    ],
)
def test_without_the_original_it_says_where_to_get_it(
    tmp_path: Path, name: str, place: str, licence: str
) -> None:
    app = typer.Typer()
    app.command()(main)
    for words in ([], [tmp_path / "nothing"], [tmp_path]):
        result = call(app, name, *words, "--out", tmp_path / "set")
        assert result.exit_code == 3
        assert result.stderr.startswith("error: ")
        assert place in result.stderr
        assert licence in result.stderr


@pytest.mark.usefixtures("lists")
def test_a_damaged_or_incomplete_original_is_refused(tmp_path: Path) -> None:
    original = _as_tar(_caltech(tmp_path / "published"))
    original.write_bytes(original.read_bytes()[:-3000])
    with pytest.raises(DataError, match=r"cannot be read .*: caltech101-96 is made from"):
        make("caltech101-96", original, tmp_path / "set")
    (tmp_path / "published/101_ObjectCategories/gnu/image_0002.jpg").unlink()
    with pytest.raises(DataError, match=r"lacks 1 of 5 files, such as 'gnu/image_0002\.jpg'"):
        make("caltech101-96", tmp_path / "published", tmp_path / "set")


def test_a_set_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="caltech101-96, grocery-plants, cifar-100"):
        make("grocery", None, tmp_path / "set")


def test_the_lists_name_each_photo_once_with_its_split_and_its_group() -> None:
    counts = {}
    for name in ("caltech101-96", "grocery-plants"):
        table = read_table(LISTS / f"{name}.csv")
        keys = {ORIGINALS[name].listed_key(PurePosixPath(path)) for path in table["path"]}
        assert len(keys) == len(table["path"])
        pairs = zip(table["path"], table["group"], strict=True)
        assert all((group == "") == path.startswith("ood/") for path, group in pairs)
        counts[name] = Counter(path.partition("/")[0] for path in table["path"])
    assert counts == {
        "caltech101-96": {"train": 4527, "val": 938, "test": 1562},
        "grocery-plants": {"train": 1776, "val": 196, "test": 938, "ood": 60},
    }
