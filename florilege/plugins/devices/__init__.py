"""``export --target web|mobile``: a page that works offline, and files for an app."""

from collections.abc import Mapping
from pathlib import Path

from florilege.hooks import ExportedFiles, ExportTarget, hookimpl


@hookimpl
def export_targets() -> Mapping[str, ExportTarget]:
    """A page that works offline, and files for an app."""
    return {
        "web": ExportTarget(about="a page that works offline", export=_export_page),
        "mobile": ExportTarget(about="files for an app", export=_export_files),
    }


def _export_page(bundle: Path, runtime: Path | None, data: str | None, split: str) -> ExportedFiles:
    from florilege.models.bundle import MODEL
    from florilege.plugins.devices.device_bundle import device_bundle
    from florilege.plugins.devices.web_folder import read_runtime, transfer_bytes, web_files

    runtime_files = read_runtime(runtime)
    with device_bundle(bundle, data, split) as pipeline:
        contents = web_files(pipeline, runtime_files)
        network = len(pipeline.bundle.read(MODEL))
    sizes = {"network_bytes": network, "other_bytes": transfer_bytes(contents)}
    return ExportedFiles(contents, sizes)


def _export_files(bundle: Path, _: Path | None, data: str | None, split: str) -> ExportedFiles:
    from florilege.models.bundle import MODEL
    from florilege.plugins.devices.device_bundle import device_bundle
    from florilege.plugins.devices.mobile_folder import mobile_files

    with device_bundle(bundle, data, split) as pipeline:
        network = len(pipeline.bundle.read(MODEL))
        return ExportedFiles(mobile_files(pipeline), {"network_bytes": network})
