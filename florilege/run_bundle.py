"""Accept a run folder in place of a bundle by exporting and calibrating it first."""

from pathlib import Path
from typing import Any

import yaml

from florilege.errors import UsageError, install_hint


def accept_runs(command: Any) -> None:
    """Let a verb take a run folder, which is first exported to ``RUN/bundle`` and calibrated."""
    original = command.callback

    def callback(**arguments: Any) -> Any:
        return original(**arguments | {"bundle": _bundle_of(Path(arguments["bundle"]))})

    command.callback = callback


def _bundle_of(path: Path) -> Path:
    """The bundle to open: ``path`` itself, or the bundle made from a run folder.

    Raises:
        UsageError: ``path`` is a run folder and the `train` extra is not installed.
    """
    if (path / "bundle.json").exists() or not (path / "config.yaml").exists():
        return path
    try:
        from florilege.training.run_export import export_run
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{path} is a run folder; export it on another machine: florilege export {path} --out "
            f"BUNDLE, or install the extra `train`: {install_hint('train')}"
        ) from error
    from florilege.calibration.calibrate.calibrate import calibrate_bundle

    bundle = path / "bundle"
    sources = (path / "best.safetensors", path / "config.yaml")
    newest = max(file.stat().st_mtime for file in sources if file.exists())
    if not (bundle / "bundle.json").exists() or (bundle / "bundle.json").stat().st_mtime < newest:
        export_run(path, bundle)
        data = yaml.safe_load((path / "config.yaml").read_text("utf-8"))["data"]
        calibrate_bundle(bundle, data, "val")
    return bundle
