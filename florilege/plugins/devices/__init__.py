"""``export --target web|mobile``: a page that works offline, and files for an app."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from florilege.hooks import ExportedFiles, ExportTarget, hookimpl


@hookimpl
def export_targets() -> Mapping[str, ExportTarget]:
    """A page that works offline, and files for an app."""
    abouts = {"web": "a page that works offline", "mobile": "files for an app"}
    return {
        target: ExportTarget(about=about, export=partial(_export, target))
        for target, about in abouts.items()
    }


def _export(target: str, *arguments: Any) -> ExportedFiles:
    from florilege.plugins.devices.device_folders import export_files, export_page

    return {"web": export_page, "mobile": export_files}[target](*arguments)
