"""The web page as a folder for any static host, which answers without a server or a network."""

import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from florilege.device_export import web_runtime
from florilege.device_export.device_pack import (
    PACK,
    device_pack,
    packed_occurrences,
    packed_reference,
)
from florilege.errors import UsageError
from florilege.models.bundle.bundle import MODEL
from florilege.server.answers.pipeline import Pipeline
from florilege.server.http.bundle_info import model_card
from florilege.server.settings import Settings

LARGEST_MODEL: Final = 1_000_000_000
"""Bytes of a network; browsers have 4 GB for it, its copies and its activations, phones less."""
MOST_KEPT: Final = 10_000_000
"""Bytes that a browser fetches at the first visit besides the network; thumbnails may be more."""
MOST_PHOTO_BYTES: Final = 500_000_000
"""Of one plant; they stay on the device."""
DOWNLOAD_DEADLINE_S: Final = 600.0
"""For the first photo, which waits until the network is there."""
THUMBNAILS: Final = "thumbnails/"
LARGE: Final = ("network", "runtime", "reference", "occurrences")  # the page keeps these itself
_NOT_FETCHED: Final = (".onnx", ".wasm", "HOSTING.md")  # of the runtime, the .wasm.gz is
_SERVER_LINK: Final = re.compile(rb' ?<a href="(v1/|openapi)[^>]*></a>')


def web_files(pipeline: Pipeline, runtime: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of the folder by relative path, with those of `web_runtime.read_runtime`.

    Raises:
        UsageError: A browser cannot run the network.
    """
    model = pipeline.bundle.read(MODEL)
    if len(model) > LARGEST_MODEL:
        raise UsageError(
            f"{MODEL} has {len(model) / 1e9:.1f} GB, more than a browser can run "
            f"({LARGEST_MODEL / 1e9:g} GB): train a smaller network, see docs/training.md"
        )
    pack, contents = device_pack(pipeline), _page_files()
    pictures = pipeline.bundle.read_thumbnails()
    for place, item in enumerate(pack["classes"]):
        if item["thumbnail"] is not None:
            item["thumbnail"]["url"] = f"{THUMBNAILS}{place}.jpg"
            contents[item["thumbnail"]["url"]] = pictures[item["id"]]
    pack |= _arrays(pipeline, contents)
    binary = runtime[web_runtime.BINARY]
    contents["ort.mjs"] = runtime[web_runtime.SCRIPT]
    pack["network"] = _named(contents, model, "onnx")
    pack["runtime"] = _named(contents, binary, "wasm")
    zipped = gzip.compress(binary, 9, mtime=0)
    contents[f"{pack['runtime']['path']}.gz"] = zipped
    pack["runtime"]["gzip_bytes"] = len(zipped)
    contents[PACK] = _json(pack)
    contents["card.json"] = _json(_card(pipeline))
    hosting = contents["HOSTING.md"].decode()
    contents["HOSTING.md"] = hosting.format(version=web_runtime.VERSION).encode()
    large = [each["path"] for name in LARGE if (each := pack[name]) is not None]
    contents["sw.js"] = _service_worker(contents, large)
    return contents


def _card(pipeline: Pipeline) -> dict[str, Any]:
    settings = Settings(
        bundle=pipeline.bundle.path,
        max_pixels=pipeline.max_pixels,
        max_body_bytes=MOST_PHOTO_BYTES,
        upload_deadline_s=DOWNLOAD_DEADLINE_S,
    )
    card = model_card(pipeline, settings).model_dump(mode="json", by_alias=True)
    return {**card, "provider": "onnxruntime-web"}


def _page_files() -> dict[str, bytes]:
    """The pages of the server, with the module that asks the server replaced, and our files."""
    web, own = files("florilege.server") / "web", files("florilege.device_export") / "web"
    contents = {
        file.name: file.read_bytes() for file in (*web.iterdir(), *own.iterdir()) if file.is_file()
    }
    head = contents.pop("head.html")
    for file in (web / "offline").iterdir():
        if file.name != "sw.js":  # a service worker rules the folder that it is in
            contents[f"offline/{file.name}"] = file.read_bytes()
    contents["service.js"] = b'export * from "./offline/service.js";\n'
    for name, content in contents.items():
        if name.endswith(".html"):
            contents[name] = _SERVER_LINK.sub(b"", content).replace(b"</head>", head + b"</head>")
    return contents


def _arrays(pipeline: Pipeline, contents: dict[str, bytes]) -> dict[str, Any]:
    """Add the files of arrays; their descriptions for the pack, null for those that are missing."""
    descriptions: dict[str, Any] = {"reference": None, "occurrences": None}
    if pipeline.reference is not None:
        shapes, content = packed_reference(pipeline.reference)
        descriptions["reference"] = {**shapes, **_named(contents, content, "reference")}
    if pipeline.places.occurrences is not None:
        shapes, content = packed_occurrences(pipeline.places.occurrences)
        descriptions["occurrences"] = {**shapes, **_named(contents, content, "occurrences")}
    return descriptions


def _named(contents: dict[str, bytes], content: bytes, kind: str) -> dict[str, Any]:
    """Add a file named after its hash; its path, size and hash."""
    digest = hashlib.sha256(content).hexdigest()
    path = f"{digest[:12]}.{kind}"
    contents[path] = content
    return {"path": path, "bytes": len(content), "sha256": digest}


def _service_worker(contents: Mapping[str, bytes], large: list[str]) -> bytes:
    """The service worker with what to keep: short hashes by path, and paths of large files."""
    hashes = {
        path: hashlib.sha256(content).hexdigest()[:12]
        for path, content in contents.items()
        if not path.startswith((*large, "HOSTING.md"))
    }
    if _keeps_no_pictures(contents):
        hashes = {path: each for path, each in hashes.items() if not path.startswith(THUMBNAILS)}
    lines = (f"const FILES = {json.dumps(hashes)};", f"const LARGE = {json.dumps(large)};")
    source = (files("florilege.server") / "web" / "offline" / "sw.js").read_bytes()
    return "\n".join((*lines, "")).encode() + source


def transfer_bytes(contents: Mapping[str, bytes]) -> int:
    """Bytes that a browser fetches besides the network, from a host that compresses nothing."""
    left_out = (*_NOT_FETCHED, ".jpg") if _keeps_no_pictures(contents) else _NOT_FETCHED
    return sum(len(each) for path, each in contents.items() if not path.endswith(left_out))


def _keeps_no_pictures(contents: Mapping[str, bytes]) -> bool:
    """Whether pictures are fetched only when they are shown, because they are too large."""
    sizes = (len(each) for path, each in contents.items() if not path.endswith(_NOT_FETCHED))
    return sum(sizes) > MOST_KEPT


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
