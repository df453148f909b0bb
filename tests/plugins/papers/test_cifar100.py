import io
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from florilege.data.checks import check
from florilege.data.sources import list_source, open_dataset, own_pictures
from florilege.errors import DataError
from florilege.plugins.papers.data_sets import _val_rows

NAMES = [f"thing_{index:02d}" for index in range(100)]


def _archive(root: Path, *, protocol: int = 2, **changes: Any) -> Path:
    """A small archive in the standard format: 20 train and 2 test pictures per class."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"meta": {b"fine_label_names": [name.encode() for name in NAMES]}}
    for name, each in (("train", 20), ("test", 2)):
        rows = 100 * each
        content[name] = {
            b"fine_labels": [row % 100 for row in range(rows)],
            b"data": np.random.default_rng(rows).integers(0, 256, (rows, 3072), dtype=np.uint8),
            b"filenames": [b"x.png"] * rows,
        }
    for key, value in changes.items():
        file, field = key.split("__")
        content[file][field.encode()] = value
    for name, entry in content.items():
        (folder / name).write_bytes(pickle.dumps(entry, protocol=protocol))
    return folder


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_the_archive_gives_classes_labels_and_the_very_pixels(
    tmp_path: Path, protocol: int
) -> None:
    dataset = open_dataset(str(_archive(tmp_path, protocol=protocol)))
    assert dataset.classes.ids == tuple(NAMES)
    assert dataset.classes[3].scientific_name == "thing 03"
    assert open_dataset(str(tmp_path)).classes == dataset.classes  # the folder around it will do
    test = dataset.split("test")
    assert test.labels.tolist() == [row % 100 for row in range(200)]
    pixels = np.random.default_rng(200).integers(0, 256, (200, 3072), dtype=np.uint8)
    read = pickle.loads(pickle.dumps(test.read))
    with Image.open(io.BytesIO(read(17))) as picture:
        np.testing.assert_array_equal(
            np.asarray(picture), pixels[17].reshape(3, 32, 32).transpose(1, 2, 0)
        )


def test_a_pickle_that_is_not_there_is_named_and_said_where_to_get(tmp_path: Path) -> None:
    folder = _archive(tmp_path)
    (folder / "meta").unlink()
    for source in (tmp_path, folder):
        with pytest.raises(DataError, match=r"lacks meta of CIFAR-100; .*cs\.toronto\.edu"):
            open_dataset(str(source))
    assert own_pictures(str(tmp_path)) is None


def test_a_copy_in_test_is_a_warning_as_the_splits_are_published(tmp_path: Path) -> None:
    pixels = np.random.default_rng(2000).integers(0, 256, (200, 3072), dtype=np.uint8)
    pixels[3] = np.random.default_rng(2000).integers(0, 256, (2000, 3072), dtype=np.uint8)[3]
    report = check(str(_archive(tmp_path, test__data=pixels)), threads=1)
    assert report.errors == []
    assert "same_file_across_splits" in [each.kind for each in report.warnings]


def test_val_is_one_in_ten_of_each_class_of_train(tmp_path: Path) -> None:
    dataset = open_dataset(str(_archive(tmp_path)))
    train, val = dataset.split("train"), dataset.split("val")
    assert (len(train), len(val)) == (1800, 200)
    assert set(Counter(val.labels.tolist()).values()) == {2}
    assert sorted([*train.names, *val.names]) == [f"train/{row:05d}" for row in range(2000)]
    row = _val_rows([index % 100 for index in range(2000)])[0]
    assert val.names[0] == f"train/{row:05d}"
    assert val.labels[0] == row % 100
    pixels = np.random.default_rng(2000).integers(0, 256, (2000, 3072), dtype=np.uint8)
    with Image.open(io.BytesIO(val.read(0))) as picture:
        assert picture.getpixel((0, 0)) == tuple(pixels[row, ::1024].tolist())


def test_the_full_archive_would_be_cut_into_45000_and_5000_the_same_way_each_time() -> None:
    labels = [row % 100 for row in range(50_000)]
    rows = _val_rows(labels)
    assert len(set(rows.tolist())) == 5000
    assert rows[:3].tolist() == [15, 44, 46]
    assert set(Counter(labels[row] for row in rows).values()) == {50}


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/florilege-evil",)


def test_a_pickle_that_would_run_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(os, "system", ran.append)
    folder = _archive(tmp_path)
    (folder / "train").write_bytes(pickle.dumps({b"fine_labels": _Evil()}, protocol=2))
    with pytest.raises(DataError, match="allowed"):
        open_dataset(str(folder))
    assert ran == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__fine_labels": [0, 1]}, "2 labels for 2,000 pictures"),
        ({"train__fine_labels": [100] * 2000}, r"whole numbers in \[0, 99\]"),
        ({"test__data": np.zeros((200, 3071), dtype=np.uint8)}, r"shape \(rows, 3072\)"),
        ({"test__data": np.zeros((200, 3072), dtype=np.float32)}, "must be bytes"),
        ({"meta__fine_label_names": 3}, "not a list of strings"),
        ({"train__coarse_labels": [0] * 2000}, "it has no 'coarse_label_names'"),
        (
            {"train__coarse_labels": [2] * 2000, "meta__coarse_label_names": [b"a", b"b"]},
            r"whole numbers in \[0, 1\]",
        ),
        (
            {"train__coarse_labels": [0] * 9, "meta__coarse_label_names": [b"a", b"b"]},
            "9 labels for 2,000 pictures",
        ),
    ],
)
def test_every_fault_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_dataset(str(_archive(tmp_path, **changes)))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = _archive(tmp_path)
    (folder / "test").write_bytes((folder / "test").read_bytes()[:1000])
    with pytest.raises(DataError, match="test is damaged or not a CIFAR-100 file"):
        open_dataset(str(folder))
    (folder / "meta").write_bytes(pickle.dumps({b"other": 1}))
    with pytest.raises(DataError, match="fine_label_names"):
        open_dataset(str(folder))
    (folder / "meta").write_bytes(pickle.dumps([1]))
    with pytest.raises(DataError, match="holds"):
        open_dataset(str(folder))


def test_the_coarse_labels_are_groups_of_classes(tmp_path: Path) -> None:
    assert not list_source(str(_archive(tmp_path))).groups
    coarse = [row % 100 % 20 for row in range(2000)]
    names = [f"kind_{index}".encode() for index in range(20)]
    source = str(_archive(tmp_path, train__coarse_labels=coarse, meta__coarse_label_names=names))
    assert list_source(source).groups["thing_41"] == ["kind_1"]
    clean, noisy = (open_dataset(source + options) for options in ("", ":noise=0.5,noise_seed=1"))
    before, after = clean.split("train").labels, noisy.split("train").labels
    assert (before % 20 == after % 20).all()
    assert (before != after).any()
