"""Sweeps beside print: means of their seeds, and figures of the same loss and noise alone."""

import json
from pathlib import Path

import pytest

from benchmarks.papers import sweep_table as rows
from florilege.plugins.papers.sweep_record import Record
from florilege.training.configuration import resolve


def _record(recipe: str, data: str, hits: list[float]) -> Record:
    config = resolve({"recipe": recipe, "data": data, "epochs": 1})
    record = Record.of(config, [{}], range(len(hits)), 45_000)
    for run, hit in zip(record.runs, hits, strict=True):
        run.status, run.accuracy = "finished", hit
        run.test = [
            {"rule": rule, "k": 5.0, "hit_rate": hit, "macro_hit_rate": 0, "mean_set_size": 5}
            for rule in ("average_k", "top_k")
        ]
    return record


def test_a_line_has_means_beside_what_was_printed_for_the_same_noise() -> None:
    clean = rows.line(_record("cifar100-ce-k5", "cifar-100-python", [0.5, 0.5]), 5)
    beside = "50.00 ± 0.00 | 96.83 ([A]) | 50.00 ± 0.00 | 94.34 ([B]), 94.24 ([N])"
    assert clean == f"| CE | 0 | 2 | {beside} |"
    noisy = rows.line(_record("cifar100-top-k5", "cifar-100-python:noise=0.2", [0.25]), 5)
    assert noisy == "| TOP-5 | 0.2 | 1 | 25.00 |  | 25.00 | 90.68 ([N]) |"


def test_the_table_is_by_noise_and_has_sweeps_that_are_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []
    for name, noise in (("an", ":noise=0.4"), ("ce", ""), ("avg", ":noise=0.2")):
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        record = _record(f"cifar100-{name}-k5", f"cifar-100-python{noise}", [0.5])
        record.runs[0].test = None if name == "an" else record.runs[0].test
        record.write(folders[-1])
    assert json.loads((tmp_path / "ce" / "results.json").read_text())["recipe"] == "cifar100-ce-k5"
    monkeypatch.setattr("sys.argv", ["rows", *map(str, folders), str(tmp_path / "none")])
    rows.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    order = [line.split(" | ")[:2] for line in lines]
    assert order == [["| CE", "0"], ["| AVG-5", "0.2"], ["| AN", "0.4"]]
    assert lines[2] == "| AN | 0.4 | 1 |  |  |  |  |"
