"""``export --target web|mobile``: a page that works offline, and files for an app."""

from collections.abc import Mapping
from typing import Any

from florilege.hooks import ExportedFiles, ExportTarget, hookimpl


@hookimpl
def export_targets() -> Mapping[str, ExportTarget]:
    """A page that works offline, and files for an app."""
    return {
        "web": ExportTarget(about="a page that works offline", export=_export_page),
        "mobile": ExportTarget(about="files for an app", export=_export_files),
    }


def _export_page(*arguments: Any) -> ExportedFiles:
    from florilege.plugins.devices.device_folders import export_page

    return export_page(*arguments)


def _export_files(*arguments: Any) -> ExportedFiles:
    from florilege.plugins.devices.device_folders import export_files

    return export_files(*arguments)
