"""`predict --embeddings`: a row for each photo, whatever interrupts the run."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from florilege.errors import BundleError, UsageError
from florilege.server.answers.pipeline import open_pipeline
from tests.server import garden
from tests.server.predict.predict_command import full_disk, interrupted, run


def test_each_photo_has_its_row_and_its_line(bundle: Path, photos: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.npy"
    run(bundle, photos, "--embeddings", target)
    result = np.load(target, mmap_mode="r")
    assert (result.shape, result.dtype) == ((30, 3), np.dtype("<f4"))
    pipeline = open_pipeline(bundle, device="cpu")
    lines = list(csv.DictReader(Path(f"{target}.paths.csv").read_text().splitlines()))
    assert [int(line["row"]) for line in lines] == list(range(30))
    for row, line in zip(result, lines, strict=True):
        if line["path"].endswith("07.png"):  # no picture
            assert np.isnan(row).all()
        else:
            outputs = pipeline.outputs(Path(line["path"]).read_bytes(), features=True)
            assert outputs.features is not None
            np.testing.assert_array_equal(row, outputs.features[0])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npy", "a.npy.paths.csv"]


def test_embeddings_change_no_answer(bundle: Path, photos: Path, tmp_path: Path) -> None:
    words = (bundle, photos, "--format", "jsonl", "--group-by", "folder")
    plain = run(*words).stdout
    assert run(*words, "--embeddings", tmp_path / "a.npy").stdout == plain


def test_all_photos_of_a_plant_have_rows_also_those_left_out_of_its_answer(
    bundle: Path, tmp_path: Path
) -> None:
    folder, array = tmp_path / "photos", tmp_path / "x.npy"
    for plant, count in (("a", 7), ("b", 1)):
        (folder / plant).mkdir(parents=True)
        for number in range(count):
            (folder / plant / f"{plant}{number}.png").write_bytes(garden.photo(number))
    (folder / "a" / "a5.png").write_text("no picture")  # the 6th, which no answer uses
    output = tmp_path / "x.jsonl"
    words = (folder, "--group-by", "folder", "-o", output, "--embeddings", array)
    interrupted(bundle, *words, at="b0.png")
    result = run(bundle, *words, "--resume")
    assert str(result.exception).startswith("1 of 8 photos failed, each listed above or in the")
    first = json.loads(output.read_text().splitlines()[0])
    codes = {warning["code"] for warning in first["warnings"]}
    assert "photos_left_out" in codes
    assert "photo_failed" not in codes
    rows = np.load(array)
    assert rows.shape == (8, 3)
    assert np.isnan(rows[5]).all()
    assert len(np.unique(np.delete(rows[:7], 5, axis=0), axis=0)) == 6
    np.testing.assert_array_equal(rows[7], rows[0])
    lines = csv.DictReader((tmp_path / "x.npy.paths.csv").read_text().splitlines())
    names = [Path(line["observation"]).name for line in lines]
    assert names == ["a"] * 7 + ["b"]


def test_a_resumed_run_writes_the_same_array(bundle: Path, photos: Path, tmp_path: Path) -> None:
    whole, target = tmp_path / "whole.npy", tmp_path / "a.npy"
    run(bundle, photos, "--embeddings", whole)
    words = (photos, "-o", tmp_path / "a.csv", "--embeddings", target)
    interrupted(bundle, *words)
    assert not target.exists()
    with Path(f"{target}.part").open("ab") as file:
        file.write(b"half a row")
    run(bundle, *words, "--resume")
    assert target.read_bytes() == whole.read_bytes()
    assert "complete" in run(bundle, *words, "--resume", fails=None).stderr


def test_a_run_whose_features_are_gone_is_refused(
    bundle: Path, photos: Path, tmp_path: Path
) -> None:
    target = tmp_path / "a.npy"
    words = (photos, "-o", tmp_path / "a.csv", "--embeddings", target)
    interrupted(bundle, *words)
    part = Path(f"{target}.part")
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(UsageError, match="resumed"):
        run(bundle, *words, "--resume")


def test_a_run_without_an_output_leaves_no_half_array(
    bundle: Path, photos: Path, tmp_path: Path
) -> None:
    with full_disk(200), pytest.raises(OSError, match="File too large"):
        run(bundle, photos, "--embeddings", tmp_path / "a.npy")
    assert list(tmp_path.iterdir()) == []


def test_a_network_without_features_is_refused(
    bundle: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.models.session.FEATURES", "another output")
    with pytest.raises(BundleError, match="features") as raised:
        run(bundle, photos, "-o", tmp_path / "a.csv", "--embeddings", tmp_path / "a.npy")
    assert raised.value.exit_code == 4
    assert list(tmp_path.iterdir()) == []
