"""Losses of other people, and ours in the training loops of other people."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from florilege.errors import BundleError, UsageError
from florilege.losses import LOSSES, TwoHeadAverageK, build, loss_class
from florilege.models.backbones import build as build_backbone
from florilege.models.bundle import open_bundle
from florilege.models.export import export_onnx
from florilege.models.images import Preprocess
from florilege.models.session import Session
from florilege.testing import check_loss
from florilege.training.run_export import export_run
from florilege.training.train import train_run
from tests.training.small import rows_of, small_config, write_photos


class Of(nn.Module):
    """The loss that is a function."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.forward = function


class PerExample(nn.Module):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="none")


def overflows(logits: Tensor, labels: Tensor) -> Tensor:
    exponentials = logits.double().exp().float() ** 8
    return -(exponentials[range(len(labels)), labels] / exponentials.sum(1)).log().mean()


def in_place(logits: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        logits.sub_(logits.max())
    return F.cross_entropy(logits, labels)


def positional(logits: Tensor, labels: Tensor) -> Tensor:
    weights = torch.arange(len(labels), dtype=logits.dtype)
    return (weights * F.cross_entropy(logits, labels, reduction="none")).mean()


class Learnt(nn.CrossEntropyLoss):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


class OneHead(nn.CrossEntropyLoss):
    head = "two_head"

    def forward(self, first: Tensor, second: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(first, labels)


class Detached(nn.CrossEntropyLoss):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().forward(logits, labels).detach()


class Mistakes(nn.Module):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits.argmax(1) != labels).sum()


class Overwritten(nn.CrossEntropyLoss):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits -= logits.max()
        return super().forward(logits, labels)


class Clamped(nn.CrossEntropyLoss):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().forward(logits.clamp_(-1, 1), labels)


class Scaled(nn.Module):
    def __init__(self, weight: float = 0.5) -> None:
        super().__init__()
        self.weight = weight  # of the loss, not of classes

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.weight * F.cross_entropy(logits, labels)


class Unmade(nn.Module):
    def __init__(self) -> None:
        self.loss = nn.CrossEntropyLoss()


class Quits(nn.Module):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        raise SystemExit(3)


class Full(nn.Module):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


class Drifts(nn.CrossEntropyLoss):
    calls = 0

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(logits, labels) + self.calls


@pytest.mark.parametrize("name", LOSSES)
def test_our_losses_pass_the_check(name: str) -> None:
    facts = {"k": 3, "average_k": 3, "class_counts": [5, 4, 3, 2, 2, 1, 1], "rows": 12}
    signature = inspect.signature(LOSSES[name]).parameters
    check_loss(build(name, **{key: fact for key, fact in facts.items() if key in signature}))


@pytest.mark.parametrize(
    ("loss", "word"),
    [
        (Of(partial(F.cross_entropy, reduction="sum")), "mean"),
        (PerExample(), "one number"),
        (Of(overflows), "finite"),
        (Of(lambda logits, labels: F.cross_entropy(logits.detach(), labels)), "gradient"),
        (Of(in_place), "copy"),
        (Of(positional), "order"),
        (Learnt(), "parameters"),
        (Of(lambda logits: logits.mean()), "fails"),
        (OneHead(), "every head"),
        (Drifts(), "two calls"),
        (PerExample, r"a class: .* as PerExample\(\)"),
        (F.cross_entropy, "cross_entropy:\nit is no torch module"),
    ],
)
def test_the_check_says_what_to_change(loss: Any, word: str) -> None:
    with pytest.raises(AssertionError, match=word):
        check_loss(loss)


def test_a_module_of_torch_is_a_loss_with_its_parameters() -> None:
    loss = build("torch.nn:CrossEntropyLoss", label_smoothing=0.1, weight=[1.0, 2.0, 3.0])
    logits, labels = (
        torch.randn(6, 3, generator=torch.Generator().manual_seed(2)),
        torch.arange(6) % 3,
    )
    expected = F.cross_entropy(logits, labels, torch.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1)
    assert torch.equal(loss(logits, labels), expected)
    assert (loss.head, loss.reduction, loss.ignore_index) == ("linear", "mean", -100)
    assert loss_class("florilege.losses:Focal") is LOSSES["focal"]
    two = loss_class(f"{__name__}:OneHead")
    assert two.head == "two_head"
    with pytest.raises(UsageError, match="one number"):
        build(f"{__name__}:PerExample")(logits, labels)
    message = "loss OneHead fails for 1 logits and labels: TypeError: .*florilege.testing.check_l"
    with pytest.raises(UsageError, match=message):
        build(f"{__name__}:OneHead")(logits, labels)


@pytest.mark.parametrize("name", ["Detached", "Mistakes", "Overwritten"])
def test_a_loss_without_a_gradient_is_refused_with_what_helps(name: str) -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)
    message = f"loss {name} fails for 1 logits and labels: RuntimeError: .*testing.check_loss says"
    with pytest.raises(UsageError, match=message):
        build(f"{__name__}:{name}")(2 * logits, torch.tensor([0, 1, 2, 0]))


def test_a_loss_of_ones_own_has_the_gradient_of_torch() -> None:
    labels = torch.tensor([0, 1, 2, 0])
    slopes = []
    for loss in (build(f"{__name__}:Clamped"), Clamped()):
        logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)
        (3 * loss(2 * logits, labels)).backward()
        slopes.append(logits.grad)
    torch.testing.assert_close(slopes[0], slopes[1])
    with torch.no_grad():
        assert not build(f"{__name__}:Clamped")(torch.ones(4, 3), labels).requires_grad


@pytest.mark.parametrize(("given", "weight"), [({}, 0.5), ({"weight": 0.25}, 0.25)])
def test_a_number_called_weight_belongs_to_the_loss_alone(given: Any, weight: float) -> None:
    loss = build(f"{__name__}:Scaled", **given)
    logits, labels = torch.eye(3), torch.tensor([0, 1, 1])
    torch.testing.assert_close(loss(logits, labels), weight * F.cross_entropy(logits, labels))
    assert loss.weight is None


def test_a_loss_that_cannot_be_made_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"AttributeError: .*Module.__init__\(\) call"):
        build(f"{__name__}:Unmade")


def test_a_loss_that_exits_does_not_end_a_run_without_a_word() -> None:
    with pytest.raises(UsageError, match=r"loss Quits fails for .*: SystemExit: 3"):
        build(f"{__name__}:Quits")(torch.zeros(2, 3), torch.tensor([0, 1]))


def test_a_loss_that_runs_out_of_memory_is_not_blamed() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        build(f"{__name__}:Full")(torch.zeros(2, 3), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("missing_module:Loss", "missing_module"),
        ("torch.nn:CrossEntropyLos", "CrossEntropyLoss"),
        ("torch.nn.functional:cross_entropy", "Module"),
        ("pathlib:Path", "Module"),
        ("broken_code:Loss", "on purpose"),
        ("script:Loss", "script cannot be imported: SystemExit: 2"),
    ],
)
def test_a_name_that_is_no_loss_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, word: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_code.py").write_text("raise RuntimeError('broken on purpose')")
    (tmp_path / "script.py").write_text("raise SystemExit(2)")  # as one that reads its own flags
    with pytest.raises(UsageError, match=word):
        loss_class(name)


OWN = """
from torch import nn


class Loss(nn.CrossEntropyLoss):
    pass


def backbone():
    shared = nn.Linear(4, 4)
    head = nn.Flatten(), shared, nn.ReLU(), shared
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), *head)


def pictures():
    return nn.Conv2d(3, 4, 3)


def misses():
    raise KeyError("no such layer")


def quits():
    raise SystemExit(1)


class Trains(nn.Flatten):
    def forward(self, image):
        if self.training:
            raise SystemExit("no GPU")
        return super().forward(image.mean((2, 3)))


class Branches(nn.Flatten):
    def forward(self, image):
        values = super().forward(image.mean((2, 3)))
        return values if float(values.sum()) > 0 else -values
"""


def test_a_run_takes_a_loss_and_a_backbone_of_others_and_its_bundle_does_not_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_code.py").write_text(OWN)
    photos = write_photos(tmp_path / "photos")
    own = {"backbone": "own_code:backbone", "loss": {"name": "own_code:Loss"}}
    config = small_config(photos, epochs=1, **own)
    train_run(config, tmp_path / "run", say=print)
    train_run(small_config(photos, **own), tmp_path / "run", resume=True, say=print)
    assert len(rows_of(tmp_path / "run")) == 2
    with pytest.raises(UsageError, match=r"backbone own_code:Trains ends the .* sys\.exit: no GPU"):
        train_run(small_config(photos, backbone="own_code:Trains"), tmp_path / "quits", say=print)
    export_run(tmp_path / "run", tmp_path / "bundle")
    monkeypatch.delitem(sys.modules, "own_code")
    (tmp_path / "own_code.py").unlink()
    session = Session(open_bundle(tmp_path / "bundle"), device="cpu")
    assert session.logits(np.zeros((2, 16, 16, 3), np.uint8))["linear"].shape[0] == 2
    with pytest.raises(UsageError, match="own_code"):
        export_run(tmp_path / "run", tmp_path / "again")


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("pictures", "features"),
        ("Loss", "function"),
        ("misses", "KeyError"),
        ("quits", "SystemExit"),
    ],
)
def test_a_backbone_without_features_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, word: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "other_code.py").write_text(OWN)
    with pytest.raises(UsageError, match=word):
        build_backbone(f"other_code:{name}", 3, "linear")


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_a_network_that_branches_on_its_pictures_is_not_exported_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "branching.py").write_text(OWN)
    network = build_backbone("branching:Branches", 3, "linear", image_size=16)
    with pytest.raises(BundleError, match=r"cannot be exported to ONNX: .*; its forward must not"):
        export_onnx(network, Preprocess(image_size=16))


def photos() -> tuple[Tensor, Tensor]:
    labels = torch.arange(60) % 5
    generator = torch.Generator().manual_seed(0)
    return F.one_hot(labels, 5) + 0.3 * torch.randn(60, 5, generator=generator), labels


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.multi_label, self.sccp = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.multi_label(features), self.sccp(features)

    def hits(self) -> float:
        features, labels = photos()
        return float((self(features)[1].argmax(1) == labels).float().mean())


@pytest.mark.filterwarnings("ignore")  # what Lightning makes torch say
def test_our_losses_work_in_lightning() -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network, self.loss_fn = TwoHeads(), TwoHeadAverageK(average_k=2)

        def training_step(self, batch: Any, _index: int) -> Tensor:
            features, labels = batch
            loss: Tensor = self.loss_fn(*self.network(features), labels)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1.0)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*photos()), batch_size=30)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=40, accelerator="cpu", enable_model_summary=False, **quiet
    )
    trainer.fit(module, loader)
    assert module.network.hits() > 0.9


@pytest.mark.filterwarnings("ignore")
def test_our_losses_work_in_the_trainer_of_transformers(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.loss_fn = TwoHeads(), TwoHeadAverageK(average_k=2)

        def forward(self, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
            first, second = self.network(features)
            return {"loss": self.loss_fn(first, second, labels), "logits": second}

    rows = [{"features": each, "labels": label} for each, label in zip(*photos(), strict=True)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=40, per_device_train_batch_size=30,
        learning_rate=0.05, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    model = Model()
    transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
    assert model.network.hits() > 0.9
