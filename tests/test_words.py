"""A wrong word on the command line is met with the near ones, in two lines at most."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from florilege import cli
from tests.calibration.small_bundle import make_bundle, make_data

CALIBRATE = ("calibrate", "B", "--data", "D")
TRAIN = ("train", "--out", "R", "--data")

WRONG: Sequence[tuple[Sequence[str], str, int]] = [
    (("calibrat",), "calibrate", 2),
    (("trian",), "train", 2),
    (("--versoin",), "--version", 2),
    (("bundle", "inspct"), "inspect", 2),
    (("data", "chekc"), "check", 2),
    (("data", "split", "D", "--sede", "1"), "--seed", 2),
    ((*CALIBRATE, "--scorekind", "softmax"), "--score-kind", 2),
    ((*CALIBRATE, "--score-kind", "sofmax"), "softmax", 2),
    ((*CALIBRATE, "--head", "linaer"), "linear", 2),
    ((*CALIBRATE, "--rejection-method", "nnoe"), "none", 2),
    ((*CALIBRATE, "--device", "cdua"), "cuda", 2),
    ((*CALIBRATE, "--split", "vla"), "val", 3),
    (("calibrate", "B", "--data", "d"), "D", 3),
    (("calibrate", "b", "--data", "D"), "B", 4),
    (("predict", "B", "x", "--rule", "averge_k"), "average_k", 2),
    (("predict", "B", "x", "--format", "jsn"), "jsonl", 2),
    (("predict", "B", "x", "--include", "scroes"), "scores", 2),
    (("predict", "B", "x", "--guarantee", "probabilty"), "probability", 2),
    (("serve", "B", "--prot", "1"), "--port", 2),
    (("train", "--lr", "0.1"), "--set optimiser.learning_rate=VALUE", 2),
    (("train", "--workers=2"), "--set workers=NUMBER", 2),
    (("train", "--model", "resnet18"), "--backbone", 2),
    (("train", "--pretrained"), "--weights pretrained", 2),
    ((*TRAIN, "flroa"), "flora", 3),
    ((*TRAIN, "flora:trian=3"), "train", 3),
    ((*TRAIN, "flora:nois=0.1"), "noise", 3),
    ((*TRAIN, "D:nois=0.1"), "noise", 3),
    ((*TRAIN, "flora", "--recipe", "dmeo"), "demo", 2),
    ((*TRAIN, "flora", "--loss", "fcal"), "focal", 2),
    ((*TRAIN, "flora", "--backbone", "resnt18"), "resnet18", 2),
    ((*TRAIN, "flora", "--set", "optimiser.lr=1"), "optimiser.learning_rate", 2),
    ((*TRAIN, "flora", "--set", "epoch=1"), "epochs", 2),
    ((*TRAIN, "flora", "--set", "optimiser.name=adm"), "adamw", 2),
    ((*TRAIN, "flora", "--set", "loss.label_smooting=1"), "label_smoothing", 2),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    make_bundle(folder / "B", heads={"linear": "logits"})
    make_data(folder / "D", rows=2)
    return folder


@pytest.mark.parametrize(
    ("words", "near", "code"), [pytest.param(*case, id=" ".join(case[0])) for case in WRONG]
)
def test_a_wrong_word_is_met_with_the_near_ones(
    words: Sequence[str], near: str, code: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == code
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    begins = re.compile("reading the photos of |[^:]+: (choosing|measuring) its ")
    answer, *rest = (line for line in lines if not begins.match(line))
    assert answer.startswith("error: ")
    assert answer.partition("; did you mean ")[2].split(" or ")[0].rstrip("?") == near
    assert all(line.startswith("help: florilege ") for line in rest)
    assert len(rest) <= 1


@pytest.mark.parametrize(("verb", "flag"), [("doctor", "--something"), ("serve", "--something")])
def test_a_strange_word_is_met_with_none(verb: str, flag: str) -> None:
    result = CliRunner().invoke(cli.app, [verb, flag, "2"])
    assert result.stderr == (
        f"error: florilege {verb} has no option {flag}\nhelp: florilege {verb} --help\n"
    )


def test_a_flag_that_was_removed_says_what_to_do_instead() -> None:
    result = CliRunner().invoke(cli.app, ["serve", "bundle", "--processes", "2"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --processes was removed: run several servers")


def test_other_trouble_with_words_keeps_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = CliRunner().invoke(cli.app, ["calibrate"])
    assert missing.stderr == "error: missing argument 'BUNDLE'\nhelp: florilege calibrate --help\n"
    no_value = CliRunner().invoke(cli.app, ["serve", "B", "--port"])
    assert no_value.stderr.startswith("error: option '--port' requires an argument\n")
    monkeypatch.setenv("FLORILEGE_SERVE_PORT", "eighty")
    set_wrong = CliRunner().invoke(cli.app, ["serve", "B"])
    assert "(env var: 'FLORILEGE_SERVE_PORT')" in set_wrong.stderr  # who would look there else
    flag = CliRunner().invoke(cli.app, ["serve", "B", "--port", "eighty"])
    assert "env var" not in flag.stderr
    assert "'eighty'" in flag.stderr  # what was typed
    assert "parse" not in flag.stderr
    general = CliRunner().invoke(cli.app, ["serve", "B"], env={"FLORILEGE_TRACEBACK": "x"})
    assert general.stderr.startswith("error: invalid value for '--traceback'")


def test_the_command_alone_prints_its_help() -> None:
    for words in ([], ["bundle"], ["data"]):
        output = CliRunner().invoke(cli.app, words).output
        assert "Usage" in output
        assert ("--install-completion" in output) == (words == [])
