"""Feedback as training data: which photos, under which class, and beside which others."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from florilege.data.cli import app
from florilege.data.feedback_import import import_feedback
from florilege.data.sources import open_dataset
from florilege.errors import DataError, UsageError
from tests.data.pictures import png, write_folder

RUNNER = CliRunner()


def write_store(store: Path, *rows: dict[str, Any] | bytes) -> Path:
    """A feedback store, with the photos that its rows name."""
    (store / "photos").mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    half = len(lines) // 2
    for number, part in enumerate((lines[:half], lines[half:]), 1):
        (store / f"feedback-{number:06}.jsonl").write_bytes(b"\n".join([*part, b""]))
    for row in rows:
        for name in row.get("photos", ()) if isinstance(row, dict) else ():
            (store / name).write_bytes(png(int(Path(name).stem)))
    return store


def row(request_id: str, class_id: str | None, *photos: str) -> dict[str, Any]:
    names = [f"photos/{photo}.jpg" for photo in photos]
    return {"request_id": request_id, "class_id": class_id, "photos": names}


def read(path: Path) -> list[tuple[str, ...]]:
    with path.open(newline="") as file:
        return [tuple(cells) for cells in csv.reader(file)]


def test_each_photo_is_a_row_for_train_and_those_of_an_answer_one_observation(
    tmp_path: Path,
) -> None:
    store = write_store(tmp_path / "kept", row("r1", "a", "1", "2"), row("r2", "b", "3"))
    out = tmp_path / "lists" / "m.csv"
    result = RUNNER.invoke(app, ["import-feedback", str(store), "--out", str(out)])
    assert (result.exit_code, result.stdout) == (0, f"{out}: 3 photos of 2 answers\n")
    assert read(out) == [
        ("path", "class_id", "split", "observation_id"),
        ("../kept/photos/1.jpg", "a", "train", "r1"),
        ("../kept/photos/2.jpg", "a", "train", "r1"),
        ("../kept/photos/3.jpg", "b", "train", "r2"),
    ]
    train = open_dataset(str(out)).splits["train"]
    assert train.read(2) == (store / "photos/3.jpg").read_bytes()


def test_the_last_word_on_an_answer_counts_whatever_file_it_is_in(tmp_path: Path) -> None:
    store = write_store(
        tmp_path / "kept",
        row("r1", "a", "1"),
        row("r2", "a", "2"),
        row("r3", "a", "3"),
        row("r1", "b", "1"),
        row("r2", "not_listed", "2"),
        row("r3", "a"),  # taken back
    )
    found = import_feedback(store, tmp_path / "m.csv")
    assert (found.table["path"], found.table["class_id"]) == (["kept/photos/1.jpg"], ["b"])
    assert found.left_out == {"without a class": 1, "without photos": 1}


def test_what_cannot_be_used_is_left_out_and_counted(tmp_path: Path) -> None:
    old = {"request_id": "r5", "class_id": "a"}  # of a server that kept no photos
    rows = [row("r1", "a", "1"), row("r2", None, "2"), row("r3", "not_listed", "3"), row("r4", "a")]
    torn = [b'{"request_id": "r6", "cl', b"[]", b'{"request_id": 1, "class_id": "a"}']
    torn += [b'{"request_id": "r7"}', b'{"request_id": "r", "class_id": "a", "photos": 3}']
    torn += [b'{"request_id": "r", "class_id": "a", "photos": [3]}', b"\xff"]
    store = write_store(tmp_path / "kept", *rows, old, row("r8", "a", "8", "9"), *torn)
    (store / "photos/9.jpg").unlink()
    out = tmp_path / "m.csv"
    result = RUNNER.invoke(app, ["import-feedback", str(store), "--out", str(out), "--json"])
    assert json.loads(result.stdout) == {
        "manifest": str(out),
        "rows": {"train": 1, "val": 0, "test": 0},
        "photos": 1,
        "answers": 1,
        "left_out": {
            "damaged": 7,
            "without a class": 2,
            "without photos": 2,
            "with missing photos": 1,
        },
    }


def test_beside_other_data_one_manifest_holds_all_and_no_class_they_lack(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", {"train": {"a": 2, "b": 1}, "val": {"a": 1}})
    store = write_store(tmp_path / "kept", row("r1", "b", "1"), row("r2", "c", "2"))
    out = tmp_path / "m.csv"
    arguments = ["import-feedback", str(store), "--with", str(photos), "--out", str(out)]
    result = RUNNER.invoke(app, arguments)
    assert result.stdout.splitlines() == [
        f"{out}: 1 photo of 1 answer, beside 4",
        "left out: 1 of classes that the data lack",
    ]
    assert result.stderr.startswith(f"next: florilege train --data {out} ")
    dataset = open_dataset(str(out))
    assert {name: len(split.names) for name, split in dataset.splits.items()} == {
        "train": 4,
        "val": 1,
    }
    assert list(dataset.classes.ids) == ["a", "b"]
    assert read(out)[-1] == ("kept/photos/1.jpg", "b", "train", "r1")
    assert read(out)[1] == ("photos/train/a/000.png", "a", "train", "")


def test_importing_again_into_the_same_manifest_replaces_what_was_imported(
    tmp_path: Path,
) -> None:
    write_folder(tmp_path / "photos", {"train": {"a": 2, "b": 1}, "val": {"a": 1}})
    out = tmp_path / "m.csv"
    both: list[dict[str, Any] | bytes] = [row("r1", "b", "1"), row("r2", "a", "2")]
    store = write_store(tmp_path / "kept", *both)
    arguments = ["import-feedback", str(store), "--out", str(out), "--with"]
    assert RUNNER.invoke(app, [*arguments, str(tmp_path / "photos")]).exit_code == 0
    once = read(out)
    assert RUNNER.invoke(app, [*arguments, str(out)]).exit_code == 0
    assert read(out) == once
    write_store(store, *both, row("r1", "a", "1"), row("r2", "a"))
    (store / "photos/2.jpg").unlink()
    assert RUNNER.invoke(app, [*arguments, str(out)]).exit_code == 0
    assert read(out) == [*once[:-2], ("kept/photos/1.jpg", "a", "train", "r1")]


def test_columns_of_the_other_data_stay_and_are_empty_for_feedback(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png(1))
    (tmp_path / "old.csv").write_text("path,class_id,split,genus\nx.png,a,training,Rosa\n")
    store = write_store(tmp_path / "kept", row("r1", "a", "1"))
    found = import_feedback(store, tmp_path / "m.csv", str(tmp_path / "old.csv"))
    assert found.table == {
        "path": ["x.png", "kept/photos/1.jpg"],
        "class_id": ["a", "a"],
        "split": ["training", "train"],
        "genus": ["Rosa", ""],
        "observation_id": ["", "r1"],
    }


def test_a_store_without_anything_to_train_on_is_refused_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    out = tmp_path / "m.csv"
    with pytest.raises(DataError, match="serve --feedback-store"):
        import_feedback(tmp_path, out)
    store = write_store(tmp_path / "kept", row("r1", "a"), row("r2", None))
    with pytest.raises(DataError, match=r"1 without photos, 1 without a class|1 without a class"):
        import_feedback(store, out)
    bare = tmp_path / "bare.csv"
    bare.write_text("path,class_id,split\nx.png,a,train\ny.png,a,\n")
    good = write_store(tmp_path / "good", row("r1", "a", "1"))
    with pytest.raises(DataError, match="1 pictures without a split"):
        import_feedback(good, out, str(bare))
    bare.write_text("path,class_id\nx.png,a\ny.png,a\n")
    with pytest.raises(DataError, match="2 pictures without a split"):
        import_feedback(good, out, str(bare))
    assert not out.exists()
    wrong = RUNNER.invoke(app, ["import-feedback", str(good), "--out", "m.txt"])
    assert isinstance(wrong.exception, UsageError)
