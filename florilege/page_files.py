"""The files of the web pages, as a server sends them and as the offline page holds them."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Final

SERVICE_WORKER: Final = "sw.js"
HEAD: Final = "head.html"
_PARTS: Final = (HEAD, "screen.html", "mark.html")
"""What several pages hold, in place of a comment with its name; one part may hold a later one."""


def page_files() -> dict[str, bytes]:
    """The files of the pages by name, each page with the parts that it shares with others.

    The service worker is not among them: it names the files of its version.
    """
    folder = files("florilege.server") / "web"
    contents = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    for name in (SERVICE_WORKER, *_PARTS):
        contents.pop(name)
    return {
        name: with_parts(content.decode()).encode() if name.endswith(".html") else content
        for name, content in contents.items()
    }


def with_parts(page: str) -> str:
    """A page with the parts that it shares with others."""
    folder = files("florilege.server") / "web"
    for name in _PARTS:
        comment = f"<!-- {name.removesuffix('.html')} -->"
        page = page.replace(comment, (folder / name).read_text("utf-8").rstrip())
    return page


def service_worker(contents: Mapping[str, bytes], large: Iterable[str] = ()) -> bytes:
    """The service worker that keeps ``contents`` in the browser, each under its hash.

    ``large`` are the paths of files that the page stores itself.
    """
    hashes = {path: hashlib.sha256(body).hexdigest()[:12] for path, body in contents.items()}
    lines = (f"const FILES = {json.dumps(hashes)};", f"const LARGE = {json.dumps([*large])};")
    source = (files("florilege.server") / "web" / SERVICE_WORKER).read_bytes()
    return "\n".join((*lines, "")).encode() + source
