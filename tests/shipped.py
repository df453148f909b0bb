"""What Florilege must do wherever it was put: `make test-wheel`, `make test-image`."""

import json
import time
import tomllib
import urllib.request
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.server import garden

ROOT = Path(__file__).parents[1]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
FLOWER = 4  # the one that is asked about

Florilege = Callable[..., CompletedProcess[str]]  # runs `florilege` with the words given


def fill(folder: Path) -> Path:
    """A calibrated bundle and a photo that anybody may read, as ``bundle`` and ``photo.png``."""
    garden.grow(folder)
    (folder / "photo.png").write_bytes(garden.photo(FLOWER, side=300))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def check_commands(florilege: Florilege, files: str) -> None:
    """Ask the command for help and for its version, then about the bundle and the photo."""
    assert "calibrate" in ran(florilege("--help"))
    assert ran(florilege("--version")) == f"florilege {VERSION}\n"
    ran(florilege("bundle", "verify", f"{files}/bundle"))
    row = ran(florilege("predict", f"{files}/bundle", f"{files}/photo.png", "--format", "jsonl"))
    _check_answer(json.loads(row))


def check_server(url: str, photo: bytes) -> None:
    """Ask a server for its page, what the page loads, its description and a set."""
    page = fetched(f"{url}/").decode()
    for name in ("style.css", "app.js"):
        assert name in page
        assert fetched(f"{url}/{name}")
    assert json.loads(fetched(f"{url}/openapi.json"))["info"]["title"] == "Florilege"
    _check_answer(json.loads(fetched(f"{url}/v1/identify", photo)))


def _check_answer(answer: dict[str, Any]) -> None:
    assert garden.FLOWERS[FLOWER][0] in {each["class_id"] for each in answer["results"]}
    assert answer["set"]["calibrated"]


def ran(done: CompletedProcess[str]) -> str:
    """What a command wrote; it must have ended well."""
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fetched(url: str, body: bytes | None = None) -> bytes:
    """The content of an answer whose status is below 400."""
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=20) as answer:
        content: bytes = answer.read()
    return content


def wait_until_ready(url: str, *, seconds: float = 60.0) -> None:
    """Return as soon as the server says that it is ready."""
    end = time.monotonic() + seconds
    while True:
        try:
            fetched(f"{url}/readyz")
            return
        except OSError:
            assert time.monotonic() < end, f"{url} was not ready within {seconds:g} s"
            time.sleep(0.02)
