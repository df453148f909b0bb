import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from florilege.data.cli import app
from florilege.errors import DataError, UsageError
from florilege.terminal import STEP
from tests.data.pictures import write_folder

RUNNER = CliRunner()
GOOD = {"train": {"a": 3, "b[b]": 2}, "val": {"a": 1, "b[b]": 1}, "test": {"a": 1, "b[b]": 1}}


def test_check_prints_counts_and_ends_well(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["check", str(write_folder(tmp_path, GOOD))])
    assert result.exit_code == 0, result.output
    assert "train" in result.stdout
    assert "b[b]" in result.stdout
    assert "nothing to repair" in result.stdout


def test_check_lists_everything_before_it_fails(tmp_path: Path) -> None:
    root = write_folder(tmp_path, GOOD)
    for index in range(30):
        (root / f"train/a/bad{index}.jpg").write_text("x")
    result = RUNNER.invoke(app, ["check", str(root)])
    assert isinstance(result.exception, DataError)
    assert result.exception.exit_code == 3
    assert all(f"train/a/bad{index}.jpg" in result.stdout for index in range(30))


def test_a_name_of_two_lines_is_one_item(tmp_path: Path) -> None:
    root = write_folder(tmp_path, GOOD)
    (root / "train/a/bad\nname.jpg").write_text("x")
    result = RUNNER.invoke(app, ["check", str(root)])
    assert "\n  train/a/bad\\nname.jpg: " in result.stdout


def test_long_warnings_are_cut_and_many_classes_are_summed_up(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["check", "flora:train=60,val=3,test=3"])
    assert result.exit_code == 0, result.output
    assert "the 40 rarest of 85 classes" in result.stdout
    assert "more; --json lists all" in result.stdout
    step = RUNNER.invoke(app, ["check", "flora:train=60,val=3,test=3"], env={STEP: "1"})
    assert "the 10 rarest of 85 classes" in step.stdout


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_what_is_left_out_of_a_long_list_is_counted(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.data.cli._MOST_CLASSES", most)
    monkeypatch.setattr("florilege.data.cli._MOST_ITEMS", most)
    one_each = {"a": 1, "b": 1, "c": 1}
    root = write_folder(tmp_path, {"train": one_each, "val": one_each, "test": one_each})
    text = RUNNER.invoke(app, ["check", str(root)]).stdout
    assert "one picture (3)" in text
    listed = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    assert [name for name in listed if name in one_each] == list(one_each)[:most]
    words = " ".join(text.split())
    assert (f"and {3 - most} more; --json lists all" in words) == (most < 3)
    assert (f"the {most} rarest of 3 classes; --json lists all" in words) == (most < 3)


def test_a_long_class_name_goes_on_below_and_nothing_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.data.cli._LONGEST_CLASS", 10)
    names = {"abcdefghij": 2, "klmnopqrstuv": 2}
    root = write_folder(tmp_path, dict.fromkeys(("train", "val", "test"), names))
    lines = RUNNER.invoke(app, ["check", str(root)]).stdout.splitlines()
    assert [line.split()[0] for line in lines if line and line[0] in "aku"] == [
        "abcdefghij", "klmnopqrst", "uv"
    ]  # fmt: skip
    assert max(map(len, lines[1:10])) < 80


def test_a_warning_on_a_terminal_is_broken_between_words(tmp_path: Path) -> None:
    names = {"rosa alba": 2, "Rosa alba": 2}
    root = write_folder(tmp_path, dict.fromkeys(("train", "val", "test"), names))
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "60"}
    lines = RUNNER.invoke(app, ["check", str(root)], env=terminal).stdout.splitlines()
    start = next(row for row, line in enumerate(lines) if "alike" in line)
    assert lines[start + 1].split()[-1] == "one"
    assert "Rosa alba" in lines[start + 2]


def test_data_that_can_be_trained_on_end_with_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pretrained = "--backbone timm:tf_efficientnet_lite0 --freeze backbone --skip-doubtful"
    write_folder(tmp_path / "my photos", GOOD)
    checked = RUNNER.invoke(app, ["check", "my photos"])
    assert checked.stderr == (
        f"next: florilege train --data 'my photos' {pretrained} --out runs/first\n"
    )
    (tmp_path / "runs/first").mkdir(parents=True)
    cut = RUNNER.invoke(app, ["split", "my photos", "--out", "m.csv", "--val", "0.3"])
    warning, step = cut.stderr.splitlines()
    assert warning.startswith("warning: ")
    assert step == f"next: florilege train --data m.csv {pretrained} --out runs/2"
    for source in ("flora:train=20,val=5,test=5", "flora:train=20,val=0,test=5"):
        text = RUNNER.invoke(app, ["check", source]).stderr
        assert text == (
            f"next: florilege train --data {source} --recipe demo --out runs/2\n"
            if "val=5" in source
            else ""
        )


@pytest.mark.parametrize("damaged", [False, True])
def test_json_is_one_object_with_everything(tmp_path: Path, damaged: bool) -> None:
    root = write_folder(tmp_path, GOOD)
    if damaged:
        (root / "train/a/bad.jpg").write_text("x")
    result = RUNNER.invoke(app, ["check", str(root), "--json"])
    answer = json.loads(result.stdout)
    assert answer["ok"] is not damaged
    assert answer["rows"]["train"] == 5 + damaged
    assert answer["counts"]["b[b]"] == {"train": 2, "val": 1, "test": 1}
    assert [error["kind"] for error in answer["errors"]] == ["unsupported_image_type"] * damaged
    assert isinstance(result.exception, DataError) is damaged


def test_split_writes_a_manifest_and_says_how_many(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "photos", {"": {"a": 20, "b": 20}})
    out = tmp_path / "new" / "m.csv"
    result = RUNNER.invoke(app, ["split", str(source), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["rows"] == {"train": 32, "val": 4, "test": 4}
    assert len(out.read_text().splitlines()) == 41
    again = RUNNER.invoke(app, ["split", str(source), "--out", str(out)])
    assert again.stdout.strip().endswith("m.csv: train 32, val 4, test 4")


@pytest.mark.parametrize(
    ("header", "plants", "warns"),
    [
        ("path,class_id", ("", ""), True),
        ("path,class_id,observation_id", (",", ", "), True),
        ("path,class_id,observation_id", (",", ",x"), False),
    ],
)
def test_split_warns_once_if_nothing_tells_plants_apart(
    tmp_path: Path, header: str, plants: tuple[str, str], warns: bool
) -> None:
    rows = [f"{row},{'ab'[row % 2]}{plants[row % 2]}" for row in range(80)]
    (tmp_path / "in.csv").write_text("\n".join((header, *rows)))
    words = ["split", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv")]
    for flags in ([], ["--json"]):
        result = RUNNER.invoke(app, [*words, *flags])
        assert result.exit_code == 0, result.output
        assert (
            result.stderr.count("warning: nothing says which photos show the same plant") == warns
        )
        assert ("observation_id" in result.stderr) == warns


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["m.csv", "--val", "0.6", "--test", "0.4"], UsageError, "leave something for train"),
        (["m.json"], UsageError, "must end in .csv or .parquet"),
        (["file/m.csv"], DataError, "cannot be written"),
    ],
)
def test_split_refuses_shares_and_names_that_cannot_be(
    tmp_path: Path, words: list[str], kind: type[Exception], message: str
) -> None:
    source = write_folder(tmp_path / "photos", {"": {"a": 20, "b": 20}})
    (tmp_path / "file").write_text("x")
    out, *flags = words
    result = RUNNER.invoke(app, ["split", str(source), "--out", str(tmp_path / out), *flags])
    assert isinstance(result.exception, kind)
    assert message in str(result.exception)
    assert not (tmp_path / "m.csv").exists()


def test_check_says_what_options_do_to_the_training_split() -> None:
    source = "flora:train=60,val=3,test=3,fraction=0.5,noise=0.9"
    text = RUNNER.invoke(app, ["check", source]).stdout
    assert "of 60 pictures kept" in text
    assert "labels changed" in text
    assert "within 16 groups of 85 classes" in " ".join(text.split())
    result = json.loads(RUNNER.invoke(app, ["check", source, "--json"]).stdout)
    assert result["thinned"]["pictures"] == 60
    assert 0 < result["noise"]["changed"] < result["noise"]["labels"] == result["thinned"]["kept"]


def test_split_takes_no_options_of_the_training_split(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos", GOOD)
    arguments = ["split", f"{root}:noise=0.2", "--out", str(tmp_path / "m.csv")]
    result = RUNNER.invoke(app, arguments)
    assert isinstance(result.exception, DataError)
    assert "manifest cannot store options" in str(result.exception)
    assert not (tmp_path / "m.csv").exists()


def test_keeping_splits_moves_the_plants_in_several_alone(tmp_path: Path) -> None:
    rows = ["0,a,train,x", "1,b,train,y", "2,a,val,x", "3,b,val,z", "4,a,test,u"]
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("path,class_id,split,observation_id\n" + "\n".join(rows))
    checked = RUNNER.invoke(app, ["check", str(source)])
    assert "--keep" in checked.stdout
    result = RUNNER.invoke(app, ["split", str(source), "--out", str(out), "--keep"])
    assert result.stdout.strip().endswith("out.csv: train 3, val 1, test 1")
    assert "observation_across_splits" not in RUNNER.invoke(app, ["check", str(out)]).stdout
    wrong = ["split", str(source), "--out", str(out), "--keep", "--seed", "0", "--val", "0.1"]
    refused = RUNNER.invoke(app, wrong).exception
    assert isinstance(refused, UsageError)
    assert str(refused) == "--keep draws no splits: leave out --val and --seed"
