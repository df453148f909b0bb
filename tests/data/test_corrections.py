"""Corrected labels: ``DATA:labels=FILE`` in every split, from a plain table or from reviews."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from florilege.data.checks import check
from florilege.data.cli import app
from florilege.data.sources import open_dataset
from florilege.errors import DataError
from tests.data.pictures import write_folder

FOLDER = {
    "train": {"Rosa canina": 9, "Rosa rugosa": 9},
    "val": {"Rosa canina": 2, "Rosa rugosa": 2},
    "test": {"Rosa canina": 1, "Rosa rugosa": 1},
}
TRAIN, VAL, TEST = (f"{split}/Rosa canina/000.png" for split in ("train", "val", "test"))
HEAD = "photo,label,answer,corrected,by,split"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos", FOLDER)


def labels(source: str) -> dict[str, str]:
    """The class of every photo."""
    data = open_dataset(source)
    return {
        name: data.classes.ids[label]
        for split in data.splits.values()
        for name, label in zip(split.names, split.labels.tolist(), strict=True)
    }


def changes(folder: Path, file: Path) -> dict[str, str]:
    """The labels that the file changes."""
    after = labels(f"{folder}:labels={file}")
    return dict(after.items() - labels(str(folder)).items())


def corrections(folder: Path, *lines: str) -> Path:
    """A file of corrections in a folder of its own."""
    path = folder.parent / "Ann, Bob 10:30" / "my review, 2.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.mark.parametrize("photo", [TRAIN, VAL, TEST])
def test_a_label_is_corrected_in_whichever_split_it_is(folder: Path, photo: str) -> None:
    file = corrections(folder, "path,class_id", f"./{photo},Rosa  rugosa ")
    assert changes(folder, file) == {photo: "Rosa rugosa"}
    assert changes(folder, corrections(folder, "path;class_id", f"{photo};Rosa canina")) == {}


def test_of_a_review_only_corrections_change_a_label(folder: Path) -> None:
    lines = [
        f"{TRAIN},Rosa canina,confirmed,,ann,train",
        f"{VAL},Rosa canina,Corrected,Rosa rugosa,ann,val",
        f"{VAL},Rosa canina,undecided,,bob,val",
        f"{VAL},Rosa canina,corrected,Rosa rugosa,cy,val",
        f"{TEST},Rosa canina,undecided,,ann,test",
    ]
    file = corrections(folder, HEAD, *lines)
    assert changes(folder, file) == {VAL: "Rosa rugosa"}
    answers = open_dataset(f"{folder}:labels={file}").answers([TRAIN, VAL, TEST, "other.jpg"])
    assert answers.tolist() == [1, -1, 0, 0]


def test_an_answer_that_names_the_label_of_now_changes_nothing(folder: Path) -> None:
    lines = [f"{VAL},Rosa rugosa,corrected,Rosa canina,ann,", f"{VAL},Rosa canina,confirmed,,bob,"]
    assert changes(folder, corrections(folder, HEAD, *lines)) == {}


def test_a_photo_is_known_however_its_accents_are_stored(folder: Path) -> None:
    name = folder / "val/Rosa canina/cafe\u0301.png"
    (folder / "val/Rosa canina/000.png").rename(name)
    file = corrections(folder, "path,class_id", "val/Rosa canina/caf\u00e9.png,Rosa rugosa")
    assert changes(folder, file) == {str(name.relative_to(folder)): "Rosa rugosa"}


def test_a_file_may_be_named_beside_other_options_and_comes_before_them(folder: Path) -> None:
    photo = "train/Rosa canina/003.png"
    file = corrections(folder, "path,class_id", f"{photo},Rosa rugosa")
    data = open_dataset(f"{folder}:per_class=9,labels={file},sample_seed=1")
    counts = data.classes.counts
    assert counts is not None
    assert counts.tolist() == [8, 9]  # nine, had the correction come after the choice
    noisy, clean = (open_dataset(f"{folder}:{more}noise=1") for more in (f"labels={file},", ""))
    row = clean.split("train").names.index(photo)
    others = [index for index in range(18) if index != row]
    assert (noisy.split("train").labels == clean.split("train").labels)[others].all()


def test_a_photo_that_is_held_out_takes_its_correction_along(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", {"train": FOLDER["train"], "val": FOLDER["val"]})
    file = corrections(folder, "path,class_id", f"{VAL},Rosa rugosa")
    assert labels(f"{folder}:hold_out=1,labels={file}")[VAL] == "Rosa rugosa"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), r"review, 2.csv is empty; its first line must name the columns"),
        (("path,class_id",), r"review, 2.csv holds no answers: only a header line"),
        ((HEAD,), r"review, 2.csv holds no answers"),
        (("path,label", f"{VAL},x"), "has the columns path, label; corrections have path and "),
        (("path,class_id", "", "", "val/nobody.png,Rosa rugosa"),
         "2.csv: 1 photo that .*photos.* lacks: 'line 4: val/nobody.png'; paths are relative"),
        (("path,class_id", f"{TEST},Rosa rugosa", f"{VAL},Rosa alba"),
         rf"1 row with class ids that .* lacks \('Rosa alba'\): 'line 3: {VAL}'"),
        (("path,class_id", f"{VAL},"), "line 2: the right class id is missing"),
        (("path,class_id", f"{VAL},Rosa rugosa", f"./{VAL},Rosa canina"),
         rf"1 photo with answers that contradict each other: 'line 2: {VAL}', 'line 3: {VAL}'"),
        ((HEAD, f"{VAL},Rosa canina,confirmed,,a,", f"{VAL},Rosa canina,corrected,Rosa rugosa,b,"),
         "contradict each other.*--merge"),
        ((HEAD, f"{VAL},Rosa rugosa,confirmed,,ann,val"),
         rf"1 photo with another label now than was reviewed: 'line 2: {VAL}'; .*--merge"),
        ((HEAD, f"{VAL},Rosa canina,perhaps,,ann,val"),
         "line 2: answer must be confirmed, corrected or undecided, got 'perhaps'"),
        ((HEAD, f"{VAL},Rosa canina,confirmed,Rosa rugosa,ann,val"), "corrected must be empty"),
        ((f"{HEAD},order", f"{VAL},Rosa canina,confirmed,,ann,val,best"), "order must be random"),
        ((HEAD, ",Rosa canina,confirmed,,ann,val"), "line 2: the photo is missing"),
        (("path,class_id", "a,b,c"), "these lines do not have the header's 2 cells.*: '2'"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_with_its_line(
    folder: Path, lines: tuple[str, ...], message: str
) -> None:
    file = corrections(folder, *lines)
    with pytest.raises(DataError, match=message) as refused:
        open_dataset(f"{folder}:labels={file}")
    assert str(file) in str(refused.value)


def test_a_missing_file_or_name_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere/x\.csv cannot be read: No such file"):
        open_dataset(f"{folder}:labels=nowhere/x.csv")
    with pytest.raises(DataError, match="labels must be"):
        open_dataset(f"{folder}:labels=")


def test_a_check_counts_the_labels_that_are_corrected(folder: Path) -> None:
    file = corrections(
        folder, "path,class_id", f"{VAL},Rosa rugosa", "val/Rosa rugosa/000.png,Rosa rugosa"
    )
    source = f"{folder}:labels={file}"
    report = check(source)
    assert report.corrected == {"train": 0, "val": 1, "test": 0}
    assert report.counts["Rosa rugosa"] == {"train": 9, "val": 3, "test": 1}
    assert check(str(folder)).corrected is None
    text = CliRunner().invoke(app, ["check", source]).stdout
    assert "labels corrected: train 0, val 1, test 0" in text
