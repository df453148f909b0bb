"""What ``--against`` of the loss benchmark takes, and what it refuses."""

import contextlib
import io
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed import losses as benchmark
from benchmarks.speed.other_losses import parse

HERE = __name__
LOGITS = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 1.0]])
LABELS = torch.tensor([2, 1])


class Talkative(nn.Module):
    """A loss that says its settings, as the smooth top-k code of its authors does."""

    def __init__(self, classes: int, *, k: int, counts: list[int], tau: float = 1.0) -> None:
        super().__init__()
        sys.stdout.write("setting tau")
        self.made_with = (classes, k, counts, tau)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        del labels
        return logits.sum() * 0 + sum(self.made_with[:2])


def one_per_row(logits: Tensor, targets: Tensor, *, power: float = 1.0) -> Tensor:
    return power * (logits * targets).sum(1)


def unreduced(classes: int, k: int) -> Any:
    del classes, k
    return nn.CrossEntropyLoss(reduction="none")


def broken_above_two(classes: int, k: int) -> Any:
    if k > 2:
        raise AssertionError("k must be small")
    return F.cross_entropy


def _loss(text: str) -> Any:
    return parse(text).loss(classes=3, k=2, class_counts=[7, 1, 4], device="cpu")


def test_a_call_makes_the_loss_from_literals_and_the_names_of_the_sizes() -> None:
    buffer = io.StringIO()
    text = f"{HERE}:Talkative(classes, k=k, counts=class_counts, tau=-0.5)"
    with contextlib.redirect_stdout(buffer):
        other = parse(text)
        loss = other.loss(classes=3, k=2, class_counts=[7, 1, 4], device="cpu")
    assert loss(LOGITS, LABELS) == 5
    assert other.names("k")
    assert not other.names("logits")
    assert other.name == text.partition(":")[2]
    assert buffer.getvalue() == "", "the table is on stdout"


def test_a_call_that_names_the_logits_is_the_loss_and_rows_are_averaged() -> None:
    assert _loss("torch.nn.functional:cross_entropy(logits, labels)")(LOGITS, LABELS) == (
        F.cross_entropy(LOGITS, LABELS)
    )
    assert _loss(f"{HERE}:one_per_row(logits, one_hot, power=3.0)")(LOGITS, LABELS) == 6.0


def test_without_a_call_the_callable_takes_the_classes_and_k() -> None:
    other = parse(f"{HERE}:broken_above_two")
    assert other.names("k")
    assert _loss(f"{HERE}:broken_above_two")(LOGITS, LABELS) == F.cross_entropy(LOGITS, LABELS)
    assert _loss(f"{HERE}:unreduced")(LOGITS, LABELS) == F.cross_entropy(LOGITS, LABELS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torch.nn", "must be MODULE:CALLABLE"),
        ("torch.nn:Linear(", "must be MODULE:CALLABLE"),
        (":Linear", "must be MODULE:CALLABLE"),
        ("torch.nn:Linear(**{'a': 1})", "must be MODULE:CALLABLE"),
        ("torch.nn:Linear(rows, 1)", "one of classes, k, .*, got 'rows'"),
        ("torch.nn:Linear(__import__('os'))", "must be a literal"),
        ("nowhere_to_be_found:Loss", "No module named 'nowhere_to_be_found'; install it"),
        ("torch.nn:Liniar", "no attribute 'Liniar'; install it"),
    ],
)
def test_what_cannot_be_read_or_found_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_a_loss_that_fails_at_a_size_is_named_and_the_others_are_timed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = "torch.nn.functional:cross_entropy(logits, labels)"
    others = [parse(f"{HERE}:broken_above_two"), parse(plain)]
    cases = list(benchmark.cases_against(20, [2, 3], "cpu", others))
    assert [(case.name, case.k) for case in cases] == [
        ("broken_above_two", 2),
        ("cross_entropy(logits, labels)", None),
    ]
    text = capsys.readouterr().err
    assert text == "broken_above_two at 20 classes, k = 3: AssertionError: k must be small\n"
