"""Report what this installation has and what it lacks, without heavy imports."""

import platform
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Final

import numpy as np
from rich.table import Table

from florilege.cores import cores
from florilege.errors import UsageError
from florilege.models.bundle import open_bundle
from florilege.models.images import ACCEPTED
from florilege.models.runtime import (
    CPU,
    CUDA,
    OPENVINO,
    Runtime,
    import_runtime,
    installed_wheels,
)
from florilege.models.session import Session
from florilege.terminal import Console
from florilege.version import installed

PACKAGES = ("florilege", "numpy", "pillow", "pillow-heif", "fastapi", "uvicorn", "pydantic")
_EXTRAS = {
    "train": ("torch", "torchvision", "onnx", "onnxscript", "safetensors", "tensorboard"),
    "report": ("matplotlib", "pyarrow"),
    "openvino": ("openvino",),
    "ray": ("ray",),
}
RUNTIMES: Final = (Runtime(), Runtime(OPENVINO, "float32"), Runtime(OPENVINO, "bf16"))
_REPETITIONS: Final = 30  # per runtime


def examine() -> dict[str, Any]:
    """Return all that `doctor` prints, ready for JSON; `ok` tells whether serving is possible."""
    providers, problems = [], list[str]()
    try:
        providers = import_runtime().get_available_providers()
    except UsageError as error:
        problems.append(str(error))
    extras = dict[str, dict[str, Any]]()
    for extra, modules in _EXTRAS.items():
        missing = [name for name in modules if find_spec(name) is None]
        extras[extra] = {"installed": not missing, "missing": missing}
    return {
        "ok": not problems,
        "problems": problems,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "executable": sys.executable,
        "cores": cores(),
        "free_disk_bytes": shutil.disk_usage(".").free,
        "packages": {name: installed(name) for name in PACKAGES},
        "onnxruntime": {"wheels": installed_wheels(), "providers": providers},
        "image_types": list(ACCEPTED),
        "codecs": _codecs(),
        "extras": extras,
        "torch": installed("torch") if find_spec("torch") else None,
    }


def time_runtimes(bundle: Path) -> list[dict[str, Any]]:
    """Measure the CPU time per photo of a network in each runtime; they take turns."""
    opened = open_bundle(bundle)
    side = opened.preprocess.image_size
    image = np.random.default_rng(0).integers(0, 256, (1, side, side, 3), dtype=np.uint8)
    runs, results = [], []
    for runtime in RUNTIMES:
        result: dict[str, Any] = {**runtime._asdict(), "cpu_ms": None, "problem": None}
        results.append(result)
        try:
            session = Session(opened, device="cpu", runtime=runtime)
            runs.append((partial(session.logits, image), list[float](), result))
        except UsageError as error:
            result["problem"] = str(error)
    for _ in range(_REPETITIONS):
        for run, seconds, result in runs:
            started = process_time()
            run()
            seconds.append(process_time() - started)
            result["cpu_ms"] = round(1000 * median(seconds), 2)
    return results


def _codecs() -> dict[str, str | None]:
    """The version of each image decoding library; None if Pillow was built without it."""
    import pillow_heif
    from PIL import features

    names = ("jpg", "libjpeg_turbo", "zlib", "webp", "avif")
    versions = {name: features.version(name) for name in names}
    return versions | {"heif": pillow_heif.libheif_version()}


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print the report as a table."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in _report_rows(report):
        table.add_row(name, text)
    console.print(table)
    for problem in report["problems"]:
        console.print(f"problem: {problem}", style="red", markup=False)
    if report["ok"]:
        console.print("ready to serve", style="green")


def _report_rows(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("python", "platform", "executable", "cores"):
        yield key, str(report[key])
    yield "free disk", f"{report['free_disk_bytes'] / 1e9:.1f} GB"
    for name, version in report["packages"].items():
        yield name, version or "not installed"
    yield "onnxruntime", _name_versions(report["onnxruntime"]["wheels"]) or "missing"
    # Its wheel also names services that no setting of ours uses.
    used = [name for name in (CUDA, CPU) if name in report["onnxruntime"]["providers"]]
    yield "runs on", ", ".join(name.removesuffix("ExecutionProvider") for name in used)
    yield "image types", ", ".join(report["image_types"])
    yield "decoders", _name_versions(report["codecs"])
    yield "torch", report["torch"] or "not installed (only training needs it)"
    for name, extra in report["extras"].items():
        state = "installed" if extra["installed"] else f"lacks {', '.join(extra['missing'])}"
        yield f"extra {name}", state
    for result in report.get("network", ()):
        cost = result["problem"] or f"{result['cpu_ms']} ms of CPU time per photo"
        yield f"{result['name']} {result['precision']}", cost


def _name_versions(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
