"""`florilege predict` over many photos: files that grow, runs that go on, and what is refused."""

import csv
import json
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest

from florilege.errors import FlorilegeError, UsageError
from florilege.models.bundle import replace_files
from florilege.server.predict import prediction
from tests.server import garden
from tests.server.predict.predict_command import csv_rows, full_disk, interrupted, run

needs_parquet = pytest.mark.skipif(not find_spec("pyarrow"), reason="pyarrow is not installed")
FORMATS = ("jsonl", "csv", pytest.param("parquet", marks=needs_parquet))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of photos that were read."""
    read, names = prediction._read, list[str]()

    def noted(path: Path) -> bytes:
        names.append(path.name)
        return read(path)

    monkeypatch.setattr(prediction, "_read", noted)
    return names


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_stopped_by_ctrl_c_resumes_and_answers_no_photo_twice(
    bundle: Path, photos: Path, tmp_path: Path, form: str, answered: list[str]
) -> None:
    whole, output = tmp_path / f"whole.{form}", tmp_path / f"sets.{form}"
    run(bundle, photos, "-o", whole)
    answered.clear()
    result = interrupted(bundle, photos, "-o", output)
    assert f"20 of 30 answers are kept in {output}.part: repeat the command with" in result.stderr
    assert not output.exists()
    with pytest.raises(UsageError, match="holds 20 finished answers of an interrupted run"):
        run(bundle, photos, "-o", output)
    answered.clear()
    result = run(bundle, photos, "-o", output, "--resume")
    assert answered[0] == "20.png"
    assert "resuming after 20 of 30\n" in result.stderr
    assert f"29 of 30 photos answered, 1 suspect, 1 failed; written: {output}\n" in result.stderr
    assert str(result.exception) == "1 of 30 photos failed, each listed above or in the earlier run"
    assert output.read_bytes() == whole.read_bytes()
    assert not Path(f"{output}.part").exists()
    again = run(bundle, photos, "-o", output, "--resume", fails=None)
    assert again.stderr == f"{output} is complete; there is nothing to resume\n"
    assert len(answered) == 10


def test_a_killed_run_resumes_to_the_same_bytes(bundle: Path, photos: Path, tmp_path: Path) -> None:
    listed = "".join(f"{photos}/{number % 30:02}.png\n" for number in range(400))
    (tmp_path / "list").write_text(listed)
    whole, output, part = (tmp_path / name for name in ("whole.csv", "a.csv", "a.csv.part"))
    words = ["-", "--threads", "1", "-o"]
    with (tmp_path / "list").open() as stdin:
        process = subprocess.Popen(
            [sys.executable, "-m", "florilege", "predict", str(bundle), *words, str(output)],
            stdin=stdin,
            stderr=subprocess.DEVNULL,
        )
    while not (part.exists() and part.read_bytes().count(b"\n") > 20):
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert not output.exists()
    for target in (output, whole):
        result = run(bundle, *words, target, "--resume", stdin=listed)
        assert ("resuming after" in result.stderr) == (target == output)
    assert output.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk_loses_nothing(bundle: Path, photos: Path, tmp_path: Path, form: str) -> None:
    whole, output = tmp_path / f"whole.{form}", tmp_path / f"sets.{form}"
    run(bundle, photos, "-o", whole)
    with full_disk(8_000), pytest.raises(FlorilegeError) as raised:
        run(bundle, photos, "-o", output)
    assert raised.value.exit_code == 1
    assert "answers are kept in" in str(raised.value)
    assert "repeat the command with --resume to continue" in str(raised.value)
    part = tmp_path / f"sets.{form}.part"
    assert part.stat().st_size == 8_000  # the last row is half written
    assert not output.exists()
    run(bundle, photos, "-o", output, "--resume")
    assert output.read_bytes() == whole.read_bytes()


@needs_parquet
def test_a_disk_too_full_for_the_parquet_file_keeps_all_answers(
    bundle: Path, photos: Path, tmp_path: Path, answered: list[str]
) -> None:
    output, features = tmp_path / "sets.parquet", tmp_path / "a.npy"
    words = (photos, "-o", output, "--embeddings", features)
    with pytest.MonkeyPatch.context() as patched:
        full = Mock(side_effect=OSError(28, "No space left on device"))
        patched.setattr("florilege.server.predict.resumable_output.atomic_writer", full)
        with pytest.raises(FlorilegeError, match="No space left on device; 30 of 30 answers are"):
            run(bundle, *words)
    answered.clear()
    run(bundle, *words, "--resume")
    assert (answered, output.exists(), features.exists()) == ([], True, True)


@pytest.mark.parametrize(
    ("changed", "words", "said"),
    [
        ("copy", [], "photos was 30 and is 31; observations was 30 and is 31; sha256 of the list"),
        ("rename", [], r"resumed: sha256 of the list of photos was .* and is "),
        ("bundle", [], r'resumed: bundle_sha256 was ".*" and is ".*"\. Use the same options'),
        (None, ["--k", "2"], r"k was not given and is 2\.0\."),
        (
            None,
            ["--lang", "fr", "--include", "rollup"],
            r'lang .* "fr"; include was \[\] and is \["',
        ),
        (None, ["--format", "jsonl"], 'format was "csv" and is "jsonl"'),
        (None, ["--group-by", "folder"], 'group_by was not given and is "folder"; observations'),
        (None, ["--embeddings", "x.npy"], 'embeddings was not given and is "x.npy"'),
    ],
)
def test_resuming_with_other_options_is_refused(
    served: Path,
    photos: Path,
    tmp_path: Path,
    changed: str | None,
    words: list[str],
    said: str,
) -> None:
    folder, output = tmp_path / "photos", tmp_path / "sets.csv"
    shutil.copytree(photos, folder)
    interrupted(served, folder, "-o", output)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    if changed == "bundle":
        replace_files(served, {"MODEL_CARD.md": b"of another one"})
    elif changed is not None:
        change = shutil.copy if changed == "copy" else shutil.move
        change(folder / "03.png", folder / "03a.png")
    with pytest.raises(UsageError, match=said):
        run(served, folder, "-o", output, "--resume", *words)
    assert before == {f.name: f.read_bytes() for f in tmp_path.iterdir() if f.is_file()}


def test_the_format_is_told_by_the_ending(bundle: Path, photos: Path, tmp_path: Path) -> None:
    photo = photos / "00.png"
    for name in ("a.csv", "a.CSV"):
        run(bundle, photo, "-o", tmp_path / name)
        assert (tmp_path / name).read_text().startswith("path,observation,photos,rank,")
    for name in ("a.jsonl", "a.ndjson"):
        run(bundle, photo, "-o", tmp_path / name)
        assert json.loads((tmp_path / name).read_text())["path"] == str(photo)
    for words in (("-o", tmp_path / "a.txt"), ("-o", tmp_path / "b.csv", "--format", "table")):
        run(bundle, photo, *words)
        assert Path(words[1]).read_text().startswith("photo ")
        assert not Path(f"{words[1]}.run").exists()


def test_every_format_marks_suspect_photos_and_names_the_model(
    bundle: Path, photos: Path, tmp_path: Path
) -> None:
    words = (bundle, photos / "03.png", photos / "00.png")
    table = run(*words).stdout.splitlines()
    assert ["suspect:" in line for line in table[:3]] == [False, True, False]
    rejected = run(*words, "--reject").stdout.splitlines()
    assert "rejected:" in rejected[1]
    run(*words, "-o", tmp_path / "a.csv", "--lang", "fr")
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [row["verdict"] for row in rows if row["rank"] == "1"] == ["suspect", "accepted"]
    best = next(row for row in rows if row["path"].endswith("00.png"))
    assert (best["scientific_name"], best["common_name"]) == ("Rosa rubra", "rose rouge")
    assert (best["genus"], best["family"], best["gbif"]) == ("Rosa", "Rosaceae", "301001")
    assert best["model"] == "garden 2026.11"
    run(*words, "-o", tmp_path / "a.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["rejection"]["verdict"] for line in lines] == ["suspect", "accepted"]
    assert lines[0]["model"]["calibration_id"] == best["calibration_id"]


def test_a_name_of_two_lines_is_one_row(bundle: Path, tmp_path: Path) -> None:
    folder = f"{'a' * 200}/"  # longer than the lines of a terminal
    names = [f"{folder}two\nlines.png", "a\rb.png"]
    (tmp_path / folder).mkdir()
    (tmp_path / names[0]).write_bytes(garden.photo(3))
    (tmp_path / names[1]).write_text("no photo")
    result = run(bundle, *(tmp_path / name for name in names))
    rows = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("/")]
    assert rows == [f"{tmp_path}/{folder}two\\nlines.png", f"{tmp_path}/a\\rb.png"]
    assert f"failed: {tmp_path}/a\\rb.png: " in result.stderr
    cells = csv_rows(bundle, *(tmp_path / name for name in names))
    assert {row["path"] for row in cells} == {f"{tmp_path}/{name}" for name in names}


def test_the_totals_are_printed_to_stderr(bundle: Path, photos: Path, tmp_path: Path) -> None:
    assert run(bundle, photos).stderr.endswith(
        "\n29 of 30 photos answered, 1 suspect, 1 failed\n"
        "suspect: unlike the photos that set the thresholds, perhaps of something else\n"
    )
    words = ("--group-by", "folder", "-o", tmp_path / "a.csv", "--embeddings", tmp_path / "a.npy")
    assert run(bundle, photos, *words).stderr.endswith(
        "\n1 of 1 observations (30 photos) answered, 0 suspect, photos that failed: 1; "
        f"written: {tmp_path}/a.csv, {tmp_path}/a.npy\n"
    )
