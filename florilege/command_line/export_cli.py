"""``florilege export``: a bundle from a run, or a folder for devices from a bundle."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import Field

from florilege.errors import UsageError, suggestion
from florilege.hooks import MARKER, export_targets
from florilege.models.bundle import CALIBRATION, MANIFEST
from florilege.settings import Flag, FlagSettings, flags_of
from florilege.terminal import say, show

app = typer.Typer(add_completion=False, help="Export a run or a bundle.")
_TARGETS: Final = export_targets()
_NAMES: Final = ("bundle", *_TARGETS)


class _ExportSettings(FlagSettings):
    """What ``florilege export`` reads, writes and shows."""

    source: Annotated[Path, Flag(argument=True, metavar="RUN|BUNDLE")]
    """Run folder; for other targets a bundle."""
    out: Annotated[Path, Flag(metavar="FOLDER")]
    """Bundle or folder to write."""
    target: Annotated[str, Flag(metavar="|".join(_NAMES))] = Field(
        default="bundle",
        description=f"{'; '.join(['bundle', *(f'{k}: {v.about}' for k, v in _TARGETS.items())])}.",
    )
    runtime: Annotated[Path | None, Flag(metavar="FILE")] = None
    """For web: the npm package onnxruntime-web, as .tgz."""
    data: Annotated[str | None, Flag(metavar="DATA")] = None
    """For web and mobile: photos to calibrate 16-bit weights on; without them, weights keep 32 bits
    and the network is twice as large."""
    split: str = "val"
    """Split of these photos."""
    as_json: Annotated[bool, Flag(name="--json")] = False
    """One JSON object."""


@app.command("export")
@flags_of(_ExportSettings)
def _export_command(settings: _ExportSettings) -> None:
    """Export a run folder to a bundle, or a bundle to a folder for devices without a server.

    After a bundle, the next step is `florilege calibrate`.
    """
    out, target, as_json = settings.out, settings.target, settings.as_json
    if target == "bundle":
        _export_run(settings.source, out, as_json=as_json)
        return
    if target not in _TARGETS:
        near = suggestion(target, _NAMES)
        raise UsageError(f"--target: choose one of {', '.join(_NAMES)}, got {target!r}{near}")
    contents, sizes = _TARGETS[target].export(
        settings.source, settings.runtime, settings.data, settings.split
    )
    _write_folder(out, contents)
    megabytes = ", ".join(f"{name[:-6]} {size / 1e6:.1f} MB" for name, size in sizes.items())
    line = f"{out}: {len(contents)} files; a device fetches {megabytes}"
    show({"folder": str(out), "target": target, **sizes}, [line], as_json=as_json)


def _write_folder(out: Path, contents: Mapping[str, bytes]) -> None:
    """Write files, by relative path, to a new folder or in place of an earlier export: all or none.

    Raises:
        UsageError: ``out`` holds something else.
    """
    if out.exists() and not (out / MARKER).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is no earlier export: choose another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as name:
        new, old = Path(name) / "new", Path(name) / "old"
        for path, content in contents.items():
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            (new / path).write_bytes(content)
        if out.exists():
            out.rename(old)
        new.rename(out)


def _export_run(run: Path, out: Path, *, as_json: bool) -> None:
    if (run / MANIFEST).exists():
        raise UsageError(f"{run} is a bundle: choose what to make from it, --target web or mobile")
    # Here, because they need torch, and other targets do without.
    from florilege.training.configuration import RunFolder
    from florilege.training.run_export import export_run

    calibrated = (out / CALIBRATION).is_file()
    say(f"{run}: exporting its network and comparing it with the trained one")
    bundle = export_run(run, out)
    if calibrated:
        say(f"{out}: its calibration was removed: calibrate again")
    provenance = bundle.read_object("provenance.json")
    parity = provenance["parity"]
    line = (
        f"{out}: {len(bundle.classes)} classes; the exported network gives the scores of the "
        f"trained one, within {parity['max_difference']:.2g} (allowed {parity['tolerance']:.2g})"
    )
    skip = ["--skip-damaged"] if RunFolder(run).read_config().skip_damaged else []
    show(
        {"bundle": str(out), "bundle_sha256": bundle.sha256, "parity": parity},
        [line],
        as_json=as_json,
        then=[("calibrate", out, "--data", provenance["data"], *skip)],
    )
