"""Runs on a GPU are measured with the installed ONNX Runtime."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from florilege.training.sweep import held_out
from florilege.training.sweep.held_out import check_runtime
from florilege.training.train import train_run
from tests.training.small import small_config


def test_a_run_of_a_gpu_is_measured_where_onnx_runtime_has_none(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    run = tmp_path / "run"
    data = "flora:train=64,val=16,test=16"
    result = train_run(small_config(data, epochs=1), run, say=lambda _: None)
    settings = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(settings.replace("device: cpu", "device: cuda"))
    assert result.head is not None
    assert result.score_kind is not None
    rows = held_out.tested(run, tmp_path / "bundle", head=result.head, score_kind=result.score_kind)
    assert {row["rule"] for row in rows} == {"average_k", "top_k"}


@pytest.mark.parametrize(
    ("gpu", "providers", "device", "notes"),
    [
        (True, ["CPUExecutionProvider"], "cuda", 1),
        (True, ["CPUExecutionProvider"], "auto", 1),
        (True, ["CPUExecutionProvider"], "cpu", 0),
        (True, ["CUDAExecutionProvider", "CPUExecutionProvider"], "cuda", 0),
        (False, ["CPUExecutionProvider"], "auto", 0),
    ],
)
def test_the_cpu_wheel_beside_a_gpu_gives_a_note(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, providers: list[str], device: str, notes: int
) -> None:
    runtime = SimpleNamespace(get_available_providers=lambda: providers)
    monkeypatch.setattr(held_out, "import_runtime", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    lines = check_runtime(device)
    assert len(lines) == notes
    assert all("measured on the CPU" in line for line in lines)


def test_a_cpu_measures_what_a_cpu_trained() -> None:
    assert held_out._measuring_device("cpu") == "cpu"
    assert held_out._measuring_device("cuda") == held_out._measuring_device("auto") == "auto"
