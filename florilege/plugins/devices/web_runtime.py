"""The runtime of the web page: two files of the npm package ``onnxruntime-web``, with known hashes.

It is not part of Florilege because it takes 14 MB. Users pass the file that ``npm pack`` writes, or
the folder of an installed package.
"""

import hashlib
import tarfile
from pathlib import Path
from typing import Final

from florilege.errors import UsageError

PACKAGE: Final = "onnxruntime-web"
VERSION: Final = "1.30.0"
SCRIPT: Final = "ort.wasm.bundle.min.mjs"
BINARY: Final = "ort-wasm-simd-threaded.wasm"
SHA256: Final = {
    SCRIPT: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    BINARY: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
_ADVICE: Final = (
    f"run `npm pack {PACKAGE}@{VERSION}` and pass the file that it writes: "
    f"--runtime {PACKAGE}-{VERSION}.tgz"
)


def read_runtime(path: Path | None) -> dict[str, bytes]:
    """The files of the runtime by name, from the npm package ``path``: a .tgz or a folder.

    Raises:
        UsageError: ``path`` is missing, or not this version of the package.
    """
    if path is None:
        raise UsageError(f"--target web needs the runtime {PACKAGE} {VERSION}: {_ADVICE}")
    try:
        if path.is_dir():
            files = {name: (path / "dist" / name).read_bytes() for name in SHA256}
        else:
            with tarfile.open(path) as archive:
                files = {name: _member(archive, f"package/dist/{name}") for name in SHA256}
    except (OSError, KeyError, tarfile.TarError) as error:
        raise UsageError(f"--runtime {path} is not {PACKAGE}: {error}; {_ADVICE}") from error
    for name, content in files.items():
        if hashlib.sha256(content).hexdigest() != SHA256[name]:
            raise UsageError(
                f"--runtime {path}: {name} is not the file of {PACKAGE} {VERSION}, the version "
                f"that the sets were checked with: {_ADVICE}"
            )
    return files


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is not a file")
    return file.read()
