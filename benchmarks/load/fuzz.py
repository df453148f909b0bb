"""A hundred thousand damaged requests to the application: none may be answered with a 500.

    python -m benchmarks.load.fuzz BUNDLE [--inputs 100000] [--seed 0]

Photos of all accepted types, forms and queries are changed at random: bytes overwritten, cut out,
doubled, cut off. The application is called in this process, without a socket, so a crash of a
decoder ends it. Prints the answers by status and code; the exit code is 1 if one was 500 or no
problem document. The same seed gives the same requests.
"""

import argparse
import io
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pillow_heif
from PIL import Image
from starlette.testclient import TestClient

from florilege.server.app import create_app
from florilege.server.problems import MEDIA_TYPE
from florilege.server.settings import Settings

SIDE: Final = 48
WORDS: Final = (
    *("rule", "k", "coverage", "guarantee", "lang", "max_results", "include", "reject", "list"),
    *("only", "average_k", "top_k", "3", "-1", "1e999", "nan", "0.9", "scores", "é", "%", "\0"),
)
FORM: Final = {"Content-Type": "multipart/form-data; boundary=b"}


def main() -> None:
    """Ask, count, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    generator, photos = random.Random(arguments.seed), _photos()
    answers, wrong = Counter[tuple[int, str]](), 0
    app = create_app(Settings(bundle=arguments.bundle, max_pixels=10**6, watch=False))
    with TestClient(app, raise_server_exceptions=False) as client:
        for number in range(arguments.inputs):
            path, body, headers = _request(generator, photos)
            response = client.post(path, content=body, headers=headers)
            refused = response.headers["content-type"] == MEDIA_TYPE
            code = response.json()["code"] if refused else ""
            answers[response.status_code, code] += 1
            if response.status_code == 500 or refused is (response.status_code == 200):
                wrong += 1
                print(f"WRONG input {number}: {path[:200]}: {response.text[:200]}")
    for (status, code), count in sorted(answers.items()):
        print(f"{status} {code or 'answered':30}{count:9}")
    sys.exit(1 if wrong else 0)


def _photos() -> list[bytes]:
    """One small photo of each accepted type, and of the odder kinds of some."""
    pillow_heif.register_heif_opener()
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    image, results = Image.fromarray(pixels), []
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("JPEG", {"quality": 80}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("AVIF", {}),
        ("HEIF", {}),
    ]
    for kind, options in kinds:
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        results.append(buffer.getvalue())
    buffer = io.BytesIO()
    image.quantize(16).save(buffer, "PNG", transparency=3)
    return [*results, buffer.getvalue()]


def _request(generator: random.Random, photos: list[bytes]) -> tuple[str, bytes, dict[str, str]]:
    """Path, body and headers: a damaged photo, a damaged form, or a made-up query."""
    kind = generator.choices(("photo", "form", "query"), weights=(8, 1, 1))[0]
    photo = generator.choice(photos)
    if kind == "photo":
        return "/v1/identify", damaged(photo, generator), {}
    if kind == "form":
        part = b'--b\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
        form = (part + photo + b"\r\n") * generator.randint(0, 6) + b"--b--\r\n"
        return "/v1/identify", damaged(form, generator), FORM
    words = ["".join(generator.choices(WORDS, k=generator.randint(1, 2))) for _ in range(6)]
    pairs = (f"{quote(generator.choice(WORDS))}={quote(word)}" for word in words)
    return f"/v1/identify?{'&'.join([*pairs][: generator.randint(1, 3)])}", photo, {}


def damaged(content: bytes, generator: random.Random) -> bytes:
    """The same with a few places changed; now and then with none."""
    changed = bytearray(content)
    for _ in range(generator.randint(0, 5)):
        at, length = generator.randrange(len(changed) + 1), generator.randint(1, 8)
        match generator.randrange(4):
            case 0:
                changed[at : at + length] = generator.randbytes(length)
            case 1:
                del changed[at : at + length]
            case 2:
                changed[at:at] = changed[at : at + length]
            case _ if generator.random() < 0.2:
                del changed[at:]
    return bytes(changed)


if __name__ == "__main__":
    main()
