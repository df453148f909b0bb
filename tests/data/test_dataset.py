import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from florilege.data.records import Dataset, FileReader, Split, split_name
from florilege.errors import DataError
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.images import MAX_BYTES

FILES = Path("/proc/self/fd")  # that are open, on Linux
CLASSES = ClassTable(tuple(ClassInfo(id=name, scientific_name=name) for name in "ab"))


def _split(rows: int = 2, names: int = 2, observations: int | None = None) -> Split:
    return Split(
        name="val",
        labels=np.zeros(rows, dtype=np.int64),
        names=["x"] * names,
        observations=None if observations is None else ["o"] * observations,
        read=FileReader(Path(), []),
    )


def test_the_names_of_splits_are_normalised() -> None:
    names = {
        "train": " Train |training|TRN|train_set|Training Set|trainset",
        "val": "val|VALID|validation|validate|cal|Calibration|dev|val-set|validation split",
        "test": "test|Testing|tst|test set|TestSet",
        None: "holdout||set|extra|dataset|trained|tests2|latest",
    }
    for name, texts in names.items():
        assert {text: split_name(text) for text in texts.split("|")} == dict.fromkeys(
            texts.split("|"), name
        )


def test_a_split_refuses_columns_of_other_lengths() -> None:
    with pytest.raises(ValueError, match="names must have 2"):
        _split(names=3)
    with pytest.raises(ValueError, match="observations must have 2"):
        _split(observations=1)
    assert len(_split(observations=2)) == 2


def test_a_missing_split_is_named_beside_those_there_are() -> None:
    dataset = Dataset(source="here", classes=CLASSES, splits={"val": _split()})
    assert dataset.split("cal") is dataset.split("val")
    with pytest.raises(DataError, match="split"):
        dataset.split("test")


def test_a_reader_of_files_survives_pickling(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"bytes")
    reader = pickle.loads(pickle.dumps(FileReader(tmp_path, ["a", "b"])))
    assert reader(1) == b"bytes"
    with pytest.raises(FileNotFoundError):
        reader(0)


def test_a_photo_is_a_file_that_ends(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zeros.jpg").symlink_to("/dev/zero")
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    (tmp_path / "folder.jpg").mkdir()
    reasons = {
        "pipe": "not a regular",
        "zeros": "not a regular",
        "huge": "100,000,000",
        "missing": "No such file",
        "folder": "Is a directory",
    }
    reader = FileReader(tmp_path, [f"{name}.jpg" for name in reasons])
    opened = [*FILES.iterdir()] if FILES.is_dir() else []
    for row, reason in enumerate(reasons.values()):
        with pytest.raises(OSError, match=f"{reason}.*{reader.paths[row]}"):
            reader(row)
    assert not opened or opened == [*FILES.iterdir()]
