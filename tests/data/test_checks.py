import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from florilege.data.checks import Finding, Report, check
from florilege.data.sources import open_dataset
from tests.data.pictures import png, write_folder, write_manifest


def _kinds(findings: object) -> dict[str, list[str]]:
    assert isinstance(findings, list)
    assert all(isinstance(finding, Finding) and finding.message for finding in findings)
    return {finding.kind: list(finding.items) for finding in findings}


GOOD = {"train": {"a": 3, "b": 2}, "val": {"a": 1, "b": 1}, "test": {"a": 1, "b": 1}}


def _check(root: Path) -> Report:
    return check(str(root), threads=2)


def test_a_sound_data_set_has_counts_and_no_finding(tmp_path: Path) -> None:
    report = _check(write_folder(tmp_path, GOOD))
    assert report.errors == []
    assert report.warnings == []
    assert report.rows == {"train": 5, "val": 2, "test": 2}
    assert report.counts == {
        "a": {"train": 3, "val": 1, "test": 1},
        "b": {"train": 2, "val": 1, "test": 1},
    }


def test_every_picture_that_cannot_be_used_is_listed(tmp_path: Path) -> None:
    root = write_folder(tmp_path, GOOD)
    (root / "train/a/cut.png").write_bytes(png(1, side=64)[:-2000])
    (root / "train/a/text.jpg").write_text("no picture")
    (root / "train/a/empty.webp").write_bytes(b"")
    gif = io.BytesIO()
    Image.new("L", (4, 4)).save(gif, "GIF")
    (root / "train/b/anim.gif").write_bytes(gif.getvalue())
    bomb = bytearray(png(2))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    (root / "train/b/bomb.png").write_bytes(bomb)
    (root / "val/a/gone.png").symlink_to(root / "nowhere.png")
    errors = _kinds(_check(root).errors)
    assert set(errors) == {
        "image_unreadable",
        "unsupported_image_type",
        "image_too_large",
        "unreadable_file",
    }
    assert [item.split(":")[0] for item in errors["image_too_large"]] == ["train/b/bomb.png"]
    assert errors["unreadable_file"] == ["val/a/gone.png: No such file or directory"]
    listed = errors["image_unreadable"] + errors["unsupported_image_type"]
    assert {item.split(":")[0] for item in listed} == {
        "train/a/cut.png",
        "train/a/text.jpg",
        "train/a/empty.webp",
        "train/b/anim.gif",
    }


def test_copies_across_splits_are_an_error_and_copies_and_stray_files_warnings(
    tmp_path: Path,
) -> None:
    root = write_folder(tmp_path, GOOD)
    (root / "notes.txt").write_text("x")
    (root / "val/a/copy.png").write_bytes((root / "train/a/000.png").read_bytes())
    (root / "train/b/copy.png").write_bytes((root / "train/b/000.png").read_bytes())
    (root / "train/b/other.png").write_bytes((root / "train/a/001.png").read_bytes())
    report = _check(root)
    assert _kinds(report.errors) == {
        "same_file_across_splits": ["train/a/000.png (train) = val/a/copy.png (val)"]
    }
    assert _kinds(report.warnings) == {
        "duplicates": ["train/a/001.png = train/b/other.png", "train/b/000.png = train/b/copy.png"],
        "duplicates_across_classes": ["train/a/001.png (a) = train/b/other.png (b)"],
        "ignored": ["notes.txt"],
    }


def test_observations_across_splits_are_an_error(tmp_path: Path) -> None:
    rows = ["0.png,a,train,x", "1.png,b,train,y", "2.png,a,val,x", "3.png,b,val,z", "4.png,b,val,z"]
    path = write_manifest(tmp_path, "\n".join(["path,class_id,split,observation_id", *rows]), 5)
    assert _kinds(_check(path).errors) == {"observation_across_splits": ["x: train, val"]}


@pytest.mark.parametrize(
    ("counts", "errors", "warnings"),
    [
        pytest.param(
            {"train": {"a": 2, "b": 2}, "val": {"c": 2, "a": 1, "b": 1}, "test": {"a": 1, "b": 1}},
            {"missing_in_train": ["c"]},
            {"missing_in_test": ["c"]},
            id="classes of val that train lacks are an error",
        ),
        pytest.param(
            {"train": {"a": 2, "b": 2, "c": 1}, "val": {"a": 1}},
            {},
            {"one_picture": ["c"], "missing_in_val": ["b", "c"], "no_split": []},
            id="rare and absent classes and splits are warnings",
        ),
        pytest.param(
            {"train": {"a": 1, "b": 2}, "val": {"a": 3, "b": 1}, "test": GOOD["test"]},
            {},
            {"one_picture": ["a"]},
            id="one picture to learn from is a warning however many are elsewhere",
        ),
        pytest.param(
            {name: {"Rosa_alba": 2, "a": 2, "rosa-alba": 2} for name in GOOD},
            {},
            {"alike": ["Rosa_alba = rosa-alba"]},
            id="classes that may be one class are a warning",
        ),
        pytest.param(
            {"val": {"a": 1, "b": 2}}, {}, {"no_split": []}, id="one picture to measure on is none"
        ),
    ],
)
def test_classes_and_splits_without_pictures(
    tmp_path: Path,
    counts: dict[str, dict[str, int]],
    errors: dict[str, list[str]],
    warnings: dict[str, list[str]],
) -> None:
    report = _check(write_folder(tmp_path, counts))
    assert (_kinds(report.errors), _kinds(report.warnings)) == (errors, warnings)


@pytest.mark.parametrize("classes", [{}, {"only": 2}])
def test_fewer_than_two_classes_are_an_error(tmp_path: Path, classes: dict[str, int]) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "val").mkdir()
    write_folder(tmp_path, {"train": classes})
    errors = _kinds(_check(tmp_path).errors)
    assert errors["too_few_classes"] == list(classes)
    assert "empty_split" in errors


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_the_report_is_the_same_however_many_pictures_are_looked_at_together(
    tmp_path: Path, threads: int
) -> None:
    root = write_folder(tmp_path, {"train": {"a": 5, "b": 4}, "val": {"a": 1, "b": 1}})
    (root / "train/a/000.png").write_text("x")
    (root / "train/b/003.png").write_bytes((root / "train/a/003.png").read_bytes())
    whole = _check(root)
    assert check(str(root), threads=threads) == whole
    assert "image_unreadable" not in _kinds(whole.errors)
    assert _kinds(whole.errors)["unsupported_image_type"][0].startswith("train/a/000.png: ")
    assert _kinds(whole.warnings)["duplicates"] == ["train/a/003.png = train/b/003.png"]


def test_what_options_do_to_the_training_split_is_told(tmp_path: Path) -> None:
    counts = {"Rosa alba": 40, "Rosa gallica": 20, "Acer rubrum": 4}
    root = write_folder(tmp_path, dict.fromkeys(("train", "val", "test"), counts))
    plain = _check(root)
    assert (plain.thinned, plain.noise) == (None, None)
    report = check(f"{root}:fraction=0.5,noise=1,noise_seed=1", threads=2)
    assert report.thinned == {"pictures": 64, "kept": 32}
    labels = open_dataset(f"{root}:fraction=0.5,noise=1,noise_seed=1").split("train").labels
    clean = open_dataset(f"{root}:fraction=0.5").split("train").labels
    changed = int((labels != clean).sum())
    noise = {"labels": 32, "changed": changed, "groups": 2, "classes": 3}
    assert report.noise == noise
    assert changed > 0
    assert report.rows == {"train": 32, "val": 64, "test": 64}
    taught = [each["train"] for each in report.counts.values()]
    assert taught == np.bincount(labels, minlength=3).tolist()
    assert [each["val"] for each in report.counts.values()] == [4, 40, 20]


def test_noise_does_not_make_copies_of_one_class_look_like_two(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": {"Rosa alba": 20, "Rosa gallica": 20}})
    for index in range(20):
        copy = (root / f"train/Rosa alba/{index:03d}.png").read_bytes()
        (root / f"train/Rosa alba/copy{index}.png").write_bytes(copy)
    report = check(f"{root}:noise=1", threads=2)
    assert "duplicates" in _kinds(report.warnings)
    assert "duplicates_across_classes" not in _kinds(report.warnings)
