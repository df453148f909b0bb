"""A stand-in for the host of Oxford Flowers 102, with a few photos in files of its layout."""

import hashlib
import io
import struct
import tarfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from florilege.command_line import demo
from florilege.command_line.demo import _RemoteFile

LABELS = [1 + row % 3 for row in range(45)]  # of three classes
_COLOURS = ((40, 60, 220), (50, 200, 60), (220, 50, 40))


@dataclass
class FlowerHost:
    """What the host serves, how, and the requests it saw: names, and the first byte asked for."""

    files: dict[str, bytes]
    ranges: bool = True  # whether it continues downloads
    cut: int | None = None  # bytes of the archive after which it closes the connection
    requests: list[tuple[str, int]] = field(default_factory=list)


def _archive() -> bytes:
    random, content = np.random.default_rng(0), io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for number, label in enumerate(LABELS, 1):
            noise = random.normal(_COLOURS[label - 1], 40, (40, 48, 3))
            photo = io.BytesIO()
            Image.fromarray(np.clip(noise, 0, 255).astype(np.uint8)).save(photo, "JPEG")
            member = tarfile.TarInfo(f"jpg/image_{number:05}.jpg")
            member.size = photo.tell()
            tar.addfile(member, io.BytesIO(photo.getvalue()))
    return content.getvalue()


def _element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + b"\0" * (-len(content) % 8)


def labels_file() -> bytes:
    """``imagelabels.mat``: MATLAB's version 5, an array of bytes, compressed."""
    flags, shape = struct.pack("<II", 6, 0), struct.pack("<ii", 1, len(LABELS))
    parts = ((6, flags), (5, shape), (1, b"labels"), (2, bytes(LABELS)))
    matrix = zlib.compress(_element(14, b"".join(_element(*part) for part in parts)))
    header = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM"
    return header + struct.pack("<II", 15, len(matrix)) + matrix


@contextmanager
def flower_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlowerHost]:
    """Serve the files in place of the real ones while the block runs."""
    host = FlowerHost({"102flowers.tgz": _archive(), "imagelabels.mat": labels_file()})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            content, start = host.files[name], 0
            if host.ranges:
                start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            host.requests.append((name, start))
            self.send_response(206 if host.ranges else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = host.cut if name == "102flowers.tgz" else None
            self.wfile.write(content[start:end])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(demo, "HOST", f"http://127.0.0.1:{server.server_port}")
    for name, file in zip(("ARCHIVE", "LABELS"), host.files, strict=True):
        digest = hashlib.md5(host.files[file]).hexdigest()
        monkeypatch.setattr(demo, name, _RemoteFile(file, len(host.files[file]), digest))
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()
