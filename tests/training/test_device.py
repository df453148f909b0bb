import pytest
import torch
from torch._dynamo.exc import Unsupported

from florilege.errors import FlorilegeError, UsageError
from florilege.training import machines
from florilege.training.machines import Compute, compiling
from florilege.training.train import _exhausted, _tuned


@pytest.mark.parametrize(
    ("gpu", "native", "asked", "wanted"),
    [
        (False, True, ("auto", "auto"), ("cpu", "fp32")),
        (True, True, ("auto", "auto"), ("cuda", "bf16")),
        (True, False, ("auto", "auto"), ("cuda", "fp32")),
        (True, True, ("cpu", "auto"), ("cpu", "fp32")),
        (False, True, ("auto", "fast"), ("cpu", "bf16")),
        (False, False, ("auto", "fast"), ("cpu", "fp32")),
        (True, True, ("cuda", "fast"), ("cuda", "bf16")),
        (True, False, ("cuda", "fast"), ("cuda", "fp32")),
        (True, False, ("cuda", "bf16"), ("cuda", "bf16")),
        (False, False, ("cpu", "bf16"), ("cpu", "bf16")),
        (True, True, ("cuda", "fp32"), ("cuda", "fp32")),
    ],
)
def test_device_and_precision_are_resolved(
    monkeypatch: pytest.MonkeyPatch,
    gpu: bool,
    native: bool,
    asked: tuple[str, str],
    wanted: tuple[str, str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(machines, "_cpu_has_bf16_units", lambda: native)

    def is_supported(*, including_emulation: bool) -> bool:  # torch emulates it on any GPU
        return native or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    compute = Compute.of(*asked)
    assert (compute.device.type, compute.precision) == wanted
    assert compute.on_gpu == (wanted[0] == "cuda")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, "fp32"),
        ({"amx_bf16": True}, "bf16"),
        ({}, "fp32"),
    ],
)
def test_fast_is_bf16_only_where_a_cpu_has_matrix_units_for_it(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, bool], wanted: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    assert Compute.of("cpu", "fast").precision == wanted


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)]
)
def test_products_are_computed_in_the_chosen_precision(precision: str, dtype: torch.dtype) -> None:
    with Compute.of("cpu", precision).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


@pytest.mark.parametrize(
    ("asked", "message"),
    [(("cpu", "fp16"), "fp16 needs a GPU; on a CPU use"), (("cuda", "auto"), "torch sees no GPU")],
)
def test_what_needs_a_gpu_is_refused_without_one(
    monkeypatch: pytest.MonkeyPatch, asked: tuple[str, str], message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=message):
        Compute.of(*asked)


def test_only_fp16_scales_the_loss() -> None:
    device = torch.device("cpu")
    assert Compute(device, "fp16").scaler().is_enabled()
    assert not Compute(device, "bf16").scaler().is_enabled()
    with Compute(device, "fp16").autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float16


def test_a_compile_error_says_what_to_do() -> None:
    message = r"cannot be compiled here \(no .*set compile=false"
    with pytest.raises(UsageError, match=message), compiling():
        raise Unsupported("no such thing\nand much more")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "there is not enough memory: lower"),
        (MemoryError(), "there is not enough memory: lower batch_size"),
        (RuntimeError("[enforce fail] can't allocate memory: you tried"), "not enough memory"),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."),
            "a process that prepares pictures was killed, .*--resume continues",
        ),
    ],
)
def test_a_run_out_of_memory_says_what_to_do(error: Exception, what: str) -> None:
    with pytest.raises(FlorilegeError, match=what), _exhausted():
        raise error


def test_other_errors_are_left_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), _exhausted():
        raise RuntimeError("shapes differ")


@pytest.mark.parametrize(
    ("kind", "deterministic", "timed"),
    [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)],
)
def test_cudnn_times_convolutions_on_a_gpu_unless_bits_are_to_repeat(
    kind: str, deterministic: bool, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", deterministic)
    with _tuned(Compute(torch.device(kind), "fp32")):
        assert torch.backends.cudnn.benchmark is timed
    assert torch.backends.cudnn.benchmark is False
