"""Feedback of an earlier version is moved into the database."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from florilege.calibration.monitoring.audit import audit_file
from florilege.data.cli import app
from florilege.data.feedback_import import import_feedback
from florilege.errors import DataError
from florilege.feedback_store import FILE
from tests.data.pictures import png

RUNNER = CliRunner()


def row(request_id: str, said: str, *photos: str, **more: Any) -> dict[str, Any]:
    answered = {"rule": "average_k", "k": 3.0, "set": ["a", "b"], "calibration_id": "c"}
    options = {"said": said, "class_id": None if said == "not_an_organism" else said}
    fields = {"time": "2026-11-22T10:00:00+00:00", "in_set": said in "ab", "consent": bool(photos)}
    return {"request_id": request_id, **answered, **options, **fields, "photos": photos, **more}


def write_old(store: Path, *rows: dict[str, Any]) -> Path:
    (store / "photos").mkdir(parents=True)
    lines = [json.dumps(each).encode() for each in rows]
    content = b"\n".join([*lines, b'{"torn": ', b"[]", b""])
    (store / "feedback-000001.jsonl").write_bytes(content)
    return store


def photo(number: int) -> str:
    return f"photos/{number:032x}-1.jpg"


def convert(store: Path) -> Any:
    return RUNNER.invoke(app, ["convert-feedback", str(store)])


def test_rows_and_photos_move_into_the_database(tmp_path: Path) -> None:
    store = write_old(
        tmp_path / "kept",
        row("r1", "a", photo(1)),
        row("r2", "b", photo(2)),
        row("r1", "b", photo(1)),  # a second row for the first answer
        row("r3", "not_an_organism"),
        row("r2", "c", k=5.0),  # another client's answer with the same name
    )
    for number in (1, 2):
        (store / photo(number)).write_bytes(png(number))
    out = tmp_path / "m.csv"
    with pytest.raises(DataError, match="florilege data convert-feedback"):
        import_feedback(store, out)
    with pytest.raises(DataError, match="florilege data convert-feedback"):
        audit_file(store)
    result = convert(store)
    assert (result.exit_code, result.stdout) == (0, f"{store}: 5 rows moved\n")
    assert sorted(path.name for path in store.rglob("*")) == [FILE, "photos"]
    audits = audit_file(store, calibration_id="c").audits
    assert {name: (each.rows, each.hits) for name, each in audits.items()} == {
        "average_k k=3": (2, 2),
        "average_k k=5": (1, 0),
    }
    outcome = import_feedback(store, out)
    assert outcome.table["class_id"] == ["b", "b"]
    assert [(tmp_path / path).read_bytes() for path in outcome.table["path"]] == [png(2), png(1)]
    assert outcome.table["licence"] == ["", ""]
    assert isinstance(convert(store).exception, DataError)


def test_no_photo_but_those_that_a_server_wrote_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(png(1))
    names = ["../secret.jpg", str(secret), photo(5), "photos/../../secret.jpg", "photos/x.jpg"]
    rows = [row(f"r{number}", "a", name) for number, name in enumerate(names)]
    store = write_old(tmp_path / "kept", *rows)
    (store / photo(5)).symlink_to(secret)
    (store / "photos/x.jpg").write_bytes(png(2))
    assert convert(store).exit_code == 0
    with pytest.raises(DataError, match="5 without photos"):
        import_feedback(store, tmp_path / "m.csv")
    assert secret.exists()


def test_where_it_fails_all_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_old(tmp_path / "kept", row("r1", "a", photo(1)), row("r2", "b", set=None, time=1))
    (store / photo(1)).write_bytes(png(1))
    before = sorted(store.rglob("*"))
    with monkeypatch.context() as patched:
        patched.setattr("florilege.data.feedback_conversion.FeedbackStore.add", None)
        assert convert(store).exit_code == 1
    assert sorted(store.rglob("*")) == before
