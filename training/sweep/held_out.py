"""Measure the best weights of a run on test, with the pipeline of every bundle."""

from pathlib import Path
from typing import Any

from florilege.calibration.calibrate.calibrate import calibrate_bundle
from florilege.calibration.calibrate.calibration_settings import DEFAULT_KS
from florilege.calibration.calibrate.evaluate import evaluate_bundle
from florilege.errors import install_hint
from florilege.models.runtime import CUDA, import_runtime
from florilege.training.config import TrainConfig
from florilege.training.device import choose
from florilege.training.run_export import export_run
from florilege.training.run_folder import RunFolder
from florilege.training.sweep.sweep_record import FIGURES

RULES = ("average_k", "top_k")


def _measuring_device(trained_on: str) -> str:
    """Where bundles are calibrated and evaluated: on a GPU only if ONNX Runtime can use it too."""
    return "cpu" if trained_on == "cpu" else "auto"


def check_runtime(device: str) -> list[str]:
    """Notes for the user before hours of training; ``device`` is where the runs train.

    Raises:
        UsageError: ONNX Runtime, which measures the runs in the end, cannot be imported.
    """
    providers = import_runtime().get_available_providers()
    if CUDA in providers or not choose(device, "fp32").on_gpu:
        return []
    return [
        "runs train on the GPU, but the installed onnxruntime is the CPU wheel: val and test are "
        "measured on the CPU in the end, which takes longer. For the GPU: `pip uninstall "
        f"onnxruntime`, then {install_hint('gpu')}"
    ]


def tested(run: Path, bundle: Path, *, head: str, score_kind: str) -> list[dict[str, Any]]:
    """Export a run, calibrate it on val and measure it on test.

    As in [A] eq. 17 sets may be empty (``min_size`` 0). Head and score kind are those that were
    best on val when the checkpoint was chosen.

    Returns:
        For the rules ``average_k`` and ``top_k`` and each K a row with ``rule``, ``k`` and
        :data:`florilege.training.sweep.sweep_record.FIGURES`.

    Raises:
        BundleError, DataError: As `calibrate` and `evaluate`.
    """
    folder = RunFolder(run)
    config = folder.read_config()
    device = _measuring_device(config.device)
    export_run(run, bundle)
    calibrate_bundle(
        bundle,
        config.data,
        device=device,
        ks=sizes(config, classes=len(folder.read_classes())),
        head=head,
        score_kind=score_kind,
        min_size=0,
        rejection_method="none",
    )
    evaluation = evaluate_bundle(bundle, config.data, device=device)
    rows = []
    for result in evaluation.rules:
        name, k = result.point.requested_value
        if result.point.rule in RULES and name == "k":
            figures = {key: result.row.figures("evaluate")[key] for key in FIGURES}
            rows.append({"rule": result.point.rule, "k": k, **figures})
    return rows


def sizes(config: TrainConfig, *, classes: int) -> list[float]:
    """The default K of a calibration and that of the run, below the number of classes, sorted."""
    ks = {*DEFAULT_KS, float(config.validation.k)}
    return sorted(min(k, classes - 1.0) for k in ks if k < classes or k == config.validation.k)
