"""Write the folder of an export: all of it, or the old one stays."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from florilege.errors import UsageError

PACK: Final = "pack.json"
"""The file by which an earlier export is recognised."""


def write_folder(out: Path, contents: Mapping[str, bytes]) -> None:
    """Write files, by relative path, to a new folder or in place of an earlier export.

    Raises:
        UsageError: ``out`` holds something else, or cannot be written.
    """
    if out.exists() and not (out / PACK).is_file() and (not out.is_dir() or any(out.iterdir())):
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
