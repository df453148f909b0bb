"""No loss and no head mixes devices or waits for a GPU, seen without one.

Torch computes shapes and devices of tensors on a GPU that is not there. Reading a value of such a
tensor, which on a real GPU would wait for it, is an error, as is adding one on the CPU. What is
computed in another way where nothing may be read gives the same values.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn import functional as F

from florilege.models.backbones import build
from florilege.models.heads import by_head, exact_float32
from florilege.training.batches.augmentation import mixed
from florilege.training.losses import LOSSES, smooth_hinge, smooth_top_k
from florilege.training.machines import Compute
from tests.training.losses.examples import CLASSES, PARAMETERS, WEIGHT

ON_GPU = "cuda"


@pytest.fixture
def mode() -> Iterator[FakeTensorMode]:
    for tables in (smooth_hinge._kept_tilt, smooth_hinge._kept_circle):
        tables.cache_clear()  # of another pretended GPU
    with torch.random.fork_rng(devices=[]):
        yield FakeTensorMode()


def _moved(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """The module with its parameters and buffers on the pretended GPU."""
    for part in module.modules():
        named = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        for name, value in named:
            copy = mode.from_tensor(value.detach())
            with mode:
                moved = copy.to(ON_GPU)
            setattr(part, name, nn.Parameter(moved) if isinstance(value, nn.Parameter) else moved)
    return module


def _inputs(key: str, *, soft: bool, device: str) -> tuple[Tensor, ...]:
    """Logits of the heads, labels or mixtures of two, and positions."""
    logits = torch.randn(8, CLASSES, device=device).requires_grad_()
    labels, others = (torch.randint(CLASSES, (8,), device=device) for _ in range(2))
    targets = (F.one_hot(of, CLASSES) for of in (labels, others))
    mixture = sum((target * share for target, share in zip(targets, (0.7, 0.3), strict=True)), 0.0)
    heads = (logits, logits / 2) if key == "two_head_average_k" else (logits,)
    rows = (torch.arange(8, device=device),) if key == "role" else ()
    return (*heads, mixture if soft else labels, *rows)


def _loss(key: str, **parameters: Any) -> nn.Module:
    """The loss for soft targets of two classes; `role` learns its device from the logits."""
    parameters = {**PARAMETERS[key], **parameters}
    if key == "smooth_top_k":
        parameters["positives"] = 2
    parameters.pop("classes", None)
    return LOSSES[key](**parameters)


EVERY_KIND = [(key, soft) for key in sorted(LOSSES) for soft in (False, True)]


@pytest.mark.parametrize(("key", "soft"), EVERY_KIND)
def test_a_loss_stays_on_the_device_and_reads_nothing(
    key: str, soft: bool, mode: FakeTensorMode
) -> None:
    loss = _moved(_loss(key), mode)
    with mode:
        inputs = _inputs(key, soft=soft, device=ON_GPU)
        value = loss(*inputs)
        for update in (value._backward_hooks or {}).values():  # no backward pass without a GPU
            update(value)
    assert value.device.type == "cuda"
    assert value.requires_grad


@pytest.mark.parametrize(("key", "soft"), EVERY_KIND)
def test_a_loss_has_the_same_values_where_nothing_may_be_read(
    key: str, soft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for blind in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda blind=blind: blind)
        loss = _loss(key, weight=WEIGHT)
        torch.manual_seed(0)
        inputs = _inputs(key, soft=soft, device="cpu")
        for _ in range(2):  # the second sees what the first has left
            value = loss(*inputs)
            value.sum().backward(inputs=inputs[:1], retain_graph=True)
        results.append((value.detach(), inputs[0].grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-7)


def test_more_positive_targets_than_announced_are_refused_or_nan_where_nothing_may_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    targets = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.6, 0.4, 0.0, 0.0]])
    with pytest.raises(ValueError, match="positives is 2, but a row has 3 positive targets"):
        smooth_top_k(torch.zeros(2, 4), targets, k=2, positives=2)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    values = smooth_top_k(torch.zeros(2, 4), targets, k=2, positives=2)
    assert values.isnan().tolist() == [True, False]


@pytest.mark.parametrize("head", ["linear", "cosine", "two_head"])
def test_a_network_stays_on_the_device(head: str, mode: FakeTensorMode) -> None:
    network = _moved(build("tiny", CLASSES, head), mode)
    with mode:
        outputs = network(torch.rand(2, 3, 32, 32, device=ON_GPU))
    for logits in outputs if isinstance(outputs, tuple) else (outputs,):
        assert (logits.device.type, logits.dtype) == ("cuda", torch.float32)


@pytest.mark.parametrize("head", ["linear", "cosine", "two_head"])
@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_a_head_computes_in_float32_where_the_backbone_does_not(
    head: str, precision: str, dtype: torch.dtype, mode: FakeTensorMode, monkeypatch: Any
) -> None:
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    network, dtypes = build("tiny", CLASSES, head), list[torch.dtype]()
    network.head.register_forward_pre_hook(lambda _, given: dtypes.append(given[0].dtype))
    _moved(network, mode)
    with mode, Compute(torch.device(ON_GPU), precision).autocast():
        images = torch.rand(2, 3, 32, 32, device=ON_GPU)
        outputs = [*by_head(head, network(images)).values()]
        with exact_float32():  # as validation does
            network(images)
    assert {logits.dtype for logits in outputs} == {torch.float32}
    assert dtypes == [dtype, torch.float32]


def test_pictures_are_mixed_on_the_device(mode: FakeTensorMode) -> None:
    with mode:
        images = torch.zeros(4, 8, 8, 3, dtype=torch.uint8, device=ON_GPU)
        labels = torch.randint(CLASSES, (4,), device=ON_GPU)
        parts = mixed(images, labels, 0.4, classes=CLASSES, seed=(0, 1))
    assert {(part.device.type, part.dtype) for part in parts} == {("cuda", torch.float32)}


def test_a_pretended_gpu_notices_a_value_that_is_read(mode: FakeTensorMode) -> None:
    with mode, pytest.raises(DataDependentOutputException):
        torch.rand(3, device=ON_GPU).sum().item()
