"""The benchmark of whole training steps prints a line for every loss it knows how to call."""

import pytest

from benchmarks.speed import training_step


def test_losses_of_every_kind_train_a_step_of_a_torchvision_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called_in_their_own_way = ("ldam", "role", "two_head_average_k")
    monkeypatch.setattr(training_step, "CLASSES", 10)
    training_step.print_table("squeezenet1_1", "cpu", 1, names=called_in_their_own_way)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("squeezenet1_1, cpu, batch 4 of 96 x 96, 10 classes")
    rows = [line.strip("| ").split(" | ") for line in lines[4:]]
    assert [row[0] for row in rows] == ["cross_entropy", *called_in_their_own_way]
    assert rows[0][2] == "+0.0%"
    assert rows[0][4] == "+0.00%"
    assert all(float(row[1]) > 0 and float(row[3]) > 0 for row in rows)
