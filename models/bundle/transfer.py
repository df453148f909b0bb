"""Pack a bundle as bytes, to send it to another machine."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from florilege.models.bundle.bundle import Bundle
from florilege.models.bundle.bundle_manifest import MANIFEST

Packed = Mapping[str, bytes]  # content by file name, with ``bundle.json``


def pack_bundle(bundle: Bundle) -> Packed:
    """Exactly the files that were verified, without any later changes to the folder."""
    files = {name: bundle.read(name) for name in bundle.manifest.files}
    return files | {MANIFEST: bundle.manifest.to_json()}


@contextmanager
def unpacked_bundle(files: Packed) -> Iterator[Path]:
    """A temporary folder with the files of a bundle, deleted at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="florilege-") as name:
        folder = Path(name)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        yield folder
