"""The bundle of a run folder, made when the run is first opened like a bundle."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from florilege.errors import BundleError, DataError, FlorilegeError, UsageError, install_hint
from florilege.models.bundle.bundle import CALIBRATION
from florilege.models.bundle.hub import local_bundle
from florilege.models.bundle.staging import MANIFEST
from florilege.models.runtime import RuntimeName
from florilege.terminal import command, say, warn

if TYPE_CHECKING:
    from florilege.server.predictor import Predictor

_ROOT: Final = Path(__file__).parents[1]


def load(
    bundle: str | os.PathLike[str], *, device: str = "auto", runtime: RuntimeName | None = None
) -> "Predictor":
    """Open a calibrated bundle, or the run folder of a training.

    A run folder is exported and calibrated on its ``val`` photos when it is first opened; the
    result stays in ``RUN/bundle``.

    Args:
        bundle: A folder calibrated by ``florilege calibrate``, a run folder, or a bundle on the
            Hugging Face Hub: ``hf://ORG/NAME``, ``hf://ORG/NAME@REVISION``.
        device: ``cpu``, ``cuda`` or ``auto``.
        runtime: ``onnxruntime`` or ``openvino``; by default the one it is calibrated for.

    Raises:
        BundleError: It is damaged, or not calibrated.
        UsageError: It is a run folder, and torch is not installed.
        DataError: It is a run folder, and its photos cannot be read.
    """
    from florilege.server import predictor

    return predictor.load(bundle_folder(os.fspath(bundle)), device=device, runtime=runtime)


def bundle_folder(name: str) -> Path:
    """The bundle to open: itself, one downloaded, or ``RUN/bundle`` made from a run folder.

    The bundle of a run is made again if the run was trained further. Raises as :func:`load`.
    """
    path = local_bundle(name)
    if (path / MANIFEST).exists() or not (path / "config.yaml").exists():
        return path
    bundle = path / "bundle"
    if not _is_current(bundle / MANIFEST, path):
        say(f"{path} is a run folder: exporting its network to {bundle}")
        _export(path, bundle)
    if not (bundle / CALIBRATION).exists():
        _calibrate(path, bundle)
    return bundle


def _is_current(file: Path, run: Path) -> bool:
    sources = (run / "best.safetensors", run / "config.yaml")
    newest = max(source.stat().st_mtime for source in sources if source.exists())
    return file.exists() and file.stat().st_mtime >= newest


def _export(run: Path, bundle: Path) -> None:
    """Export in a process of its own: torch would stay in the memory of a server."""
    if find_spec("torch") is None:
        raise UsageError(
            f"{run} is a run folder; export it on another machine: "
            f"{command('export', run, '--out')} BUNDLE, or install the extra `train`: "
            f"{install_hint('train')}"
        )
    words = [sys.executable, "-m", "florilege", "export", str(run), "--out", str(bundle), "--json"]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("FLORILEGE")}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.getenv("PYTHONPATH"))))
    process = subprocess.run(words, capture_output=True, text=True, check=False, env=variables)
    if process.returncode:
        kinds = {kind.exit_code: kind for kind in (UsageError, DataError, BundleError)}
        message = process.stderr.strip().removeprefix("error: ")
        raise kinds.get(process.returncode, FlorilegeError)(message)


def _calibrate(run: Path, bundle: Path) -> None:
    """Calibrate on ``val``; the warnings are those of ``florilege calibrate``."""
    from florilege.calibration.calibrate.calibrate import calibrate_bundle, cautions

    data = yaml.safe_load((run / "config.yaml").read_text("utf-8"))["data"]
    say(f"{bundle}: choosing its thresholds on the val photos of {data}")
    for caution in cautions(calibrate_bundle(bundle, data, "val", say=warn)):
        warn(caution)
    say(f"{bundle} is kept; {command('calibrate', bundle, '--data', data)} shows its thresholds")
