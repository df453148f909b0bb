"""Feedback as training data: the photos, their classes, and the other rows of the manifest."""

import csv
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from florilege.data.cli import app
from florilege.data.manifests import import_feedback
from florilege.data.sources import open_dataset
from florilege.errors import DataError, UsageError
from florilege.feedback_store import FILE, NOT_AN_ORGANISM, NOT_LISTED, FeedbackStore
from tests.data.pictures import png, write_folder

RUNNER = CliRunner()
R1, R2, R3, R4 = (character * 32 for character in "1234")


def write_store(store: Path, *words: tuple[Any, ...]) -> Path:
    """A feedback store with rows in the given order: answer, class, and numbers of its photos."""
    store.mkdir(parents=True, exist_ok=True)
    with closing(FeedbackStore(store, max_bytes=2**30)) as database:
        for answer_id, class_id, *numbers in words:
            pictures = [png(number) for number in numbers]
            row = {"answer_id": answer_id, "class_id": class_id, "key": "", "time": ""}
            licence = "CC-BY-4.0" if pictures else None
            row |= {"licence": licence, "consent": bool(pictures), "photos": len(pictures)}
            new = not database.count_photos(answer_id)
            answer = {"id": answer_id, "key": "", "members": "[]"}
            database.add(answer, row, pictures if new else [])
    return store


def read(path: Path) -> list[tuple[str, ...]]:
    with path.open(newline="") as file:
        return [tuple(cells) for cells in csv.reader(file)]


def test_each_photo_is_a_row_for_train_and_those_of_an_answer_one_observation(
    tmp_path: Path,
) -> None:
    numbers = sorted((1, 2), key=png, reverse=True)  # not in the order of their bytes
    store = write_store(tmp_path / "kept", (R1, "a", *numbers), (R2, "b", 3))
    out = tmp_path / "lists" / "m.csv"
    result = RUNNER.invoke(app, ["import-feedback", str(store), "--out", str(out)])
    assert (result.exit_code, result.stdout) == (0, f"{out}: 3 photos of 2 answers\n")
    assert read(out) == [
        ("path", "class_id", "split", "observation_id", "licence"),
        (f"m-feedback/{R1}-1.jpg", "a", "train", R1, "CC-BY-4.0"),
        (f"m-feedback/{R1}-2.jpg", "a", "train", R1, "CC-BY-4.0"),
        (f"m-feedback/{R2}-1.jpg", "b", "train", R2, "CC-BY-4.0"),
    ]
    train = open_dataset(str(out)).splits["train"]
    assert [train.read(row) for row in range(3)] == list(map(png, [*numbers, 3]))


def test_the_last_word_on_an_answer_counts(tmp_path: Path) -> None:
    store = write_store(
        tmp_path / "kept",
        (R1, "a", 1),
        (R2, "a", 2),
        (R3, "a", 3),
        (R1, "b", 1),
        (R2, NOT_LISTED, 2),
        (R3, "a"),  # consent withdrawn
        (R4, NOT_AN_ORGANISM, 4),
    )
    result = import_feedback(store, tmp_path / "m.csv")
    assert (result.table["observation_id"], result.table["class_id"]) == ([R1], ["b"])
    assert (result.photos, result.answers) == (1, 1)
    assert result.left_out == {"without a class": 2, "without photos": 1}


def test_what_was_left_out_is_counted_for_machines_too(tmp_path: Path) -> None:
    store = write_store(tmp_path / "kept", (R1, "a", 1), (R2, NOT_LISTED, 2))
    out = tmp_path / "m.csv"
    result = RUNNER.invoke(app, ["import-feedback", str(store), "--out", str(out), "--json"])
    assert json.loads(result.stdout) == {
        "manifest": str(out),
        "rows": {"train": 1, "val": 0, "test": 0},
        "photos": 1,
        "answers": 1,
        "left_out": {"without a class": 1},
    }


def test_beside_other_data_one_manifest_holds_all_and_no_class_they_lack(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", {"train": {"a": 2, "b": 1}, "val": {"a": 1}})
    store = write_store(tmp_path / "kept", (R1, "b", 1), (R2, "c", 2))
    out = tmp_path / "m.csv"
    arguments = ["import-feedback", str(store), "--with", str(photos), "--out", str(out)]
    result = RUNNER.invoke(app, arguments)
    assert result.stdout.splitlines() == [
        f"{out}: 1 photo of 1 answer, plus 4",
        "left out: 1 of classes that the data set lacks",
    ]
    assert result.stderr.startswith(f"next: florilege train --data {out} ")
    dataset = open_dataset(str(out))
    assert {name: len(split.names) for name, split in dataset.splits.items()} == {
        "train": 4,
        "val": 1,
    }
    assert list(dataset.classes.ids) == ["a", "b"]
    assert read(out)[-1] == (f"m-feedback/{R1}-1.jpg", "b", "train", R1, "CC-BY-4.0")
    assert read(out)[1] == ("photos/train/a/000.png", "a", "train", "", "")


def test_importing_again_replaces_what_was_imported_and_deletes_what_was_taken_back(
    tmp_path: Path,
) -> None:
    write_folder(tmp_path / "photos", {"train": {"a": 2, "b": 1}, "val": {"a": 1}})
    out, other = tmp_path / "m.csv", tmp_path / "other.csv"
    store = write_store(tmp_path / "kept", (R1, "b", 1), (R2, "a", 2))
    arguments = ["import-feedback", str(store), "--out", str(out), "--with"]
    assert RUNNER.invoke(app, [*arguments, str(tmp_path / "photos")]).exit_code == 0
    once = read(out)
    assert RUNNER.invoke(app, [*arguments, str(out)]).exit_code == 0
    assert read(out) == once
    (tmp_path / "m-feedback/mine.jpg").write_bytes(png(9))
    write_store(store, (R1, "a", 1), (R2, "a"))
    arguments[3] = str(other)  # another manifest holds no photo twice either
    for into in (out, other):
        arguments[3] = str(into)
        assert RUNNER.invoke(app, [*arguments, str(out)]).exit_code == 0
        path = f"{into.stem}-feedback/{R1}-1.jpg"
        assert read(into) == [*once[:-2], (path, "a", "train", R1, "CC-BY-4.0")]
    left = sorted(path.name for path in (tmp_path / "m-feedback").iterdir())
    assert left == [f"{R1}-1.jpg", "mine.jpg"]


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE answers SET id = '../../x'; UPDATE feedback SET answer_id = '../../x'; "
        "UPDATE photos SET answer_id = '../../x'",
        "UPDATE answers SET id = '/tmp/x'; UPDATE feedback SET answer_id = '/tmp/x'",
        "UPDATE feedback SET class_id = x'00'",
        "UPDATE answers SET members = 'no json'",
        "DROP TABLE answers",
        "DROP TABLE photos",
    ],
)
def test_a_store_that_no_server_wrote_is_refused_and_nothing_is_written(
    tmp_path: Path, spoil: str
) -> None:
    store = write_store(tmp_path / "deep" / "kept", (R1, "a", 1))
    with closing(sqlite3.connect(store / FILE)) as database:
        database.executescript(spoil)
    before = sorted(tmp_path.rglob("*"))
    out = tmp_path / "deep" / "m.csv"
    with pytest.raises(DataError, match="cannot be read"):
        import_feedback(store, out)
    output = set(tmp_path.rglob("*")) - {*before, tmp_path / "deep" / "m-feedback"}
    assert output == set()


def test_a_database_of_something_else_or_behind_a_link_is_refused(tmp_path: Path) -> None:
    store = write_store(tmp_path / "kept", (R1, "a", 1))
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / FILE).symlink_to(store / FILE)
    with pytest.raises(DataError, match="holds no feedback"):
        import_feedback(linked, tmp_path / "m.csv")
    (store / FILE).write_bytes(b"no database" * 100)
    with pytest.raises(DataError, match="not a database"):
        import_feedback(store, tmp_path / "m.csv")


def test_what_a_killed_server_left_is_undone_when_it_is_read(tmp_path: Path) -> None:
    store = write_store(tmp_path / "kept", (R1, "a", 1))
    code = f"""if True:
        import os, sqlite3
        db = sqlite3.connect({str(store / FILE)!r})
        db.execute("PRAGMA cache_size = 1")  # writes pages before the commit
        db.execute("UPDATE feedback SET class_id = 'b'")
        db.executemany("INSERT INTO photos VALUES ('{R1}', ?, zeroblob(9999))", zip(range(2, 99)))
        os._exit(1)"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert (store / f"{FILE}-journal").stat().st_size > 0
    result = import_feedback(store, tmp_path / "m.csv")
    assert (result.photos, result.table["class_id"]) == (1, ["a"])


def test_columns_of_the_other_data_stay_and_are_empty_for_feedback(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png(1))
    (tmp_path / "old.csv").write_text("path,class_id,split,genus\nx.png,a,training,Rosa\n")
    store = write_store(tmp_path / "kept", (R1, "a", 1))
    result = import_feedback(store, tmp_path / "m.csv", str(tmp_path / "old.csv"))
    assert result.table == {
        "path": ["x.png", f"m-feedback/{R1}-1.jpg"],
        "class_id": ["a", "a"],
        "split": ["training", "train"],
        "genus": ["Rosa", ""],
        "observation_id": ["", R1],
        "licence": ["", "CC-BY-4.0"],
    }


def test_a_store_without_anything_to_train_on_is_refused_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    out = tmp_path / "m.csv"
    with pytest.raises(DataError, match="serve --feedback-store"):
        import_feedback(tmp_path, out)
    store = write_store(tmp_path / "kept", (R1, "a"), (R2, NOT_LISTED))
    with pytest.raises(DataError, match=r"1 without photos, 1 without a class|1 without a class"):
        import_feedback(store, out)
    bare = tmp_path / "bare.csv"
    bare.write_text("path,class_id,split\nx.png,a,train\ny.png,a,\n")
    good = write_store(tmp_path / "good", (R1, "a", 1))
    with pytest.raises(DataError, match=r"1 picture without a split: 'y\.png'; run"):
        import_feedback(good, out, str(bare))
    bare.write_text("path,class_id\nx.png,a\ny.png,a\n")
    with pytest.raises(DataError, match="2 pictures without a split"):
        import_feedback(good, out, str(bare))
    assert not out.exists()
    wrong = RUNNER.invoke(app, ["import-feedback", str(good), "--out", "m.txt"])
    assert isinstance(wrong.exception, UsageError)
