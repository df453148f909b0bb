"""Sets of the offline page beside those of the server, on the same photos.

    florilege export BUNDLE --target web --runtime onnxruntime-web-VERSION.tgz --out FOLDER
    python -m benchmarks.sets.offline BUNDLE FOLDER --data DATA [--split test] [--photos 500]
                                      [--enlarge 3000]

Opens the folder in Chromium, ends its host once the page says that it is ready, and answers photos
without a network. Prints the share of photos with the set of the server, both mean sizes and hit
rates, the largest difference of a score, what the browser fetched, and seconds. ``--enlarge`` makes
large JPEGs of the photos first, with this longer side, which decoders shrink on the way.
"""

import argparse
import base64
import functools
import http.server
import io
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Error, Page, sync_playwright

from florilege.calibration.calibrate.photo_outputs import photos_for
from florilege.server.answers.pipeline import open_pipeline
from florilege.server.answers.query import IdentifyQuery

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
ASK = """async ([photos, query]) => {
    const { identify } = await import("./service.js");
    const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const files = photos.map((text) => new Blob([bytes(text)]));
    const started = performance.now();
    try {
        const answer = await identify(files, query);
        return { answer, seconds: (performance.now() - started) / 1000 };
    } catch (problem) {
        return { problem };
    }
}"""
READY = "document.querySelector('#offline')?.textContent.startsWith('Ready')"


class StaticHost(http.server.ThreadingHTTPServer):
    """Serves a folder on 127.0.0.1, counting the bytes of files, until it is closed."""

    def __init__(self, folder: Path) -> None:
        self.sent: dict[str, int] = {}
        handler = functools.partial(Handler, directory=str(folder))
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}/"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: Any) -> None:
        """A browser that leaves is no error."""

    def close(self) -> None:
        """Stop answering."""
        self.shutdown()
        self.server_close()


class Handler(http.server.SimpleHTTPRequestHandler):
    """Counts the bytes of each file."""

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        assert isinstance(self.server, StaticHost)
        self.server.sent[self.path] = self.server.sent.get(self.path, 0) + len(content)
        outputfile.write(content)


@contextmanager
def offline_page(folder: Path) -> Iterator[tuple[Page, StaticHost, float]]:
    """The page of a folder in Chromium, ready, without its host; and the seconds until then."""
    host = StaticHost(folder)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        context = browser.new_context(locale="en-GB")
        page, started = context.new_page(), time.perf_counter()
        page.goto(host.url)
        wait_until(page, READY)
        seconds = time.perf_counter() - started
        host.close()
        context.set_offline(True)
        page.reload()
        wait_until(page, READY)
        yield page, host, seconds
        browser.close()


def wait_until(page: Page, so: str, seconds: float = 60) -> None:
    """Poll the page: the browser's own waiting evaluates text, which the page forbids."""
    until = time.monotonic() + seconds
    while not _holds(page, so):
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds:g} s for {so}")
        time.sleep(0.01)


def _holds(page: Page, so: str) -> bool:
    try:
        return bool(page.evaluate(so))
    except Error:  # the page is being loaded again
        return False


def ask(page: Page, photos: Sequence[bytes], **query: Any) -> dict[str, Any]:
    """The answer of the page with its seconds, or its problem."""
    texts = [base64.b64encode(photo).decode() for photo in photos]
    result: dict[str, Any] = page.evaluate(ASK, [texts, query])
    return result


@dataclass
class Comparison:
    """Sets of both for some photos."""

    equal: int = 0
    sizes: tuple[int, int] = (0, 0)
    hits: tuple[int, int] = (0, 0)
    score: float = 0.0  # largest difference
    seconds: tuple[float, float] = (0.0, 0.0)

    def add(
        self, ours: dict[str, Any], theirs: Any, truth: str, seconds: tuple[float, float]
    ) -> None:
        """Add the answers of the page and of the server for a photo of the class ``truth``."""
        mine = [each["class_id"] for each in ours["results"] if each["in_set"]]
        server = [each.class_id for each in theirs.results if each.in_set]
        scores = {each.class_id: each.score for each in theirs.results}
        self.equal += set(mine) == set(server)
        self.sizes = (self.sizes[0] + len(mine), self.sizes[1] + len(server))
        self.hits = (self.hits[0] + (truth in mine), self.hits[1] + (truth in server))
        differences = (abs(each["score"] - scores[each["class_id"]]) for each in ours["results"])
        self.score = max(self.score, *differences)
        self.seconds = (self.seconds[0] + seconds[0], self.seconds[1] + seconds[1])


def enlarged(photo: bytes, side: int, random: np.random.Generator) -> bytes:
    """A JPEG with this longer side and the noise of a camera."""
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    factor = side / max(image.size)
    size = (round(image.width * factor), round(image.height * factor))
    pixels = np.asarray(image.resize(size, Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = pixels + random.normal(0, 4, pixels.shape).astype(np.int16)
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=88)
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--photos", type=int, default=500)
    parser.add_argument("--enlarge", type=int)
    arguments = parser.parse_args()
    pipeline = open_pipeline(arguments.bundle, device="cpu", runtime="onnxruntime")
    split = photos_for(pipeline.bundle, arguments.data, arguments.split)
    random, query = np.random.default_rng(0), IdentifyQuery(include=["scores"])
    rows = random.permutation(len(split))[: arguments.photos]
    comparison = Comparison()
    with offline_page(arguments.folder) as (page, host, opened):
        for row in rows.tolist():
            photo = split.read(row)
            if arguments.enlarge:
                photo = enlarged(photo, arguments.enlarge, random)
            started = time.perf_counter()
            theirs = pipeline([photo], query, "benchmark").answer
            seconds = time.perf_counter() - started
            ours = ask(page, [photo], include=["scores"])
            truth = pipeline.bundle.classes.ids[int(split.labels[row])]
            comparison.add(ours["answer"], theirs, truth, (ours["seconds"], seconds))
    count, fetched = len(rows), sum(host.sent.values())
    network = sum(size for path, size in host.sent.items() if path.endswith(".onnx"))
    columns = {
        "photos": str(count),
        "equal sets": f"{100 * comparison.equal / count:.1f} %",
        "mean size, page / server": _both(comparison.sizes, count, 3),
        "hit rate, page / server": _both(comparison.hits, count, 4),
        "largest score difference": f"{comparison.score:.1e}",
        "s a photo, page / server": _both(comparison.seconds, count, 3),
        "s to ready": f"{opened:.1f}",
        "MB network": f"{network / 1e6:.1f}",
        "MB besides": f"{(fetched - network) / 1e6:.1f}",
    }
    for cells in (columns, ["--:"] * len(columns), columns.values()):
        print(f"| {' | '.join(cells)} |")


def _both(sums: tuple[float, float], count: int, digits: int) -> str:
    return " / ".join(f"{each / count:.{digits}f}" for each in sums)


if __name__ == "__main__":
    main()
