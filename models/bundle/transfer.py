"""A bundle on its way to another machine: all of its files as bytes."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from florilege.models.bundle.bundle import Bundle
from florilege.models.bundle.bundle_manifest import MANIFEST

Packed = Mapping[str, bytes]
"""Content by file name, ``bundle.json`` included."""


def pack_bundle(bundle: Bundle) -> Packed:
    """The very files that were verified, whatever has come into the folder since."""
    files = {name: bundle.read(name) for name in bundle.manifest.files}
    return files | {MANIFEST: bundle.manifest.to_json()}


@contextmanager
def unpacked_bundle(files: Packed) -> Iterator[Path]:
    """A folder with the files of a bundle, which lasts as long as the block."""
    with tempfile.TemporaryDirectory(prefix="florilege-") as name:
        folder = Path(name)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        yield folder
