"""The offline page in a real browser, beside the server's decoder and its answers."""

import base64
import io
import json
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from florilege.command_line.import_export import _write_folder
from florilege.errors import UsageError
from florilege.files import service_worker
from florilege.models.images import Preprocess, load
from florilege.models.images.colours import _profile_of_codes
from florilege.plugins.devices import device_bundle, device_folders
from florilege.plugins.devices.device_folders import _read_runtime, _transfer_bytes, _web_files
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import IdentifyQuery
from florilege.server.http.cached_responses import BundleInfo
from florilege.server.settings import Settings
from tests.chromium import desktop
from tests.models.pictures import chunk, difference, encode, exif_with_orientation, noise
from tests.server import garden
from tests.server.test_rejection_by_features import MINT

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if TYPE_CHECKING:
    from playwright.sync_api import FilePayload, Page

from benchmarks.sets.offline import Handler, StaticHost, ask, wait_until

browser = pytest.mark.browser
STATUS = "document.querySelector('#offline')?.textContent"
DISPLAY_P3, SRGB_CURVE = 12, 13  # codes of ITU-T H.273
READY = f"{STATUS}?.startsWith('Ready')"
BLURRED = garden.photo(5, blur=0.5, other=6)
LOAD = """async ([text, preprocess]) => {
    const { load } = await import("./offline/decoding.js");
    const photo = new Blob([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))]);
    const square = await load(photo, preprocess, 1e7);
    return btoa(Array.from(square, (value) => String.fromCharCode(value)).join(""));
}"""


@pytest.fixture(scope="module")
def contents(pipeline: Pipeline, runtime: Path) -> dict[str, bytes]:
    return _web_files(pipeline, _read_runtime(runtime))


@pytest.fixture(scope="module")
def folder(contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("web") / "out"
    _write_folder(out, contents)
    return out


Opened = Callable[[Path], "Page"]


@contextmanager
def opener(browser: Any) -> Iterator[Opened]:
    """Opens the page of a folder; the host is its ``host``."""
    closing = []

    def open_page(folder: Path) -> "Page":
        host, context = StaticHost(folder), browser.new_context(locale="en-GB")
        closing.extend([context.close, host.close])
        page: Page = context.new_page()
        page.goto(host.url)
        return page

    yield open_page
    for close in closing:
        close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Opened]:
    with opener(chromium) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def offline(chromium: Any, folder: Path) -> Iterator["Page"]:
    """The page after one visit, loaded again without host and network."""
    host, context = StaticHost(folder), chromium.new_context(locale="en-GB")
    page = context.new_page()
    page.goto(host.url)
    wait_until(page, READY)
    host.close()
    context.set_offline(True)
    page.reload()
    wait_until(page, READY)
    yield page
    context.close()


def pictures(kind: str) -> Iterator[bytes]:
    """Noise in many sizes; as JPEG also grey, turned, progressive and with coarser colours."""
    random = np.random.default_rng(3)
    for number in range(12):
        height, width = random.integers(20, 420, 2)
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        options: dict[str, Any] = {"lossless": True}
        if kind == "jpeg":
            exif = Image.Exif()
            exif[0x112] = int(random.integers(1, 9))
            options = {"quality": 40, "subsampling": number % 3, "progressive": number % 2}
            options |= {"exif": exif, "restart_marker_rows": number % 5}
        buffer = io.BytesIO()
        picture = Image.fromarray(pixels)
        picture.convert("L" if number == 7 else "RGB").save(buffer, kind, **options)
        yield buffer.getvalue()


@browser
@pytest.mark.parametrize("kind", ["png", "webp", "jpeg"])
@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess(image_size=224, crop_fraction=0.875, resample="bicubic"),
        Preprocess(image_size=60, reducing_gap=1.5),
        Preprocess(image_size=13, crop_fraction=0.9, resample="bicubic"),
    ],
    ids=lambda each: str(each.image_size),
)
def test_the_browser_sees_the_pixels_of_the_server(
    offline: "Page", kind: str, preprocess: Preprocess
) -> None:
    values = {name: getattr(preprocess, name) for name in PREPROCESS}
    for photo in pictures(kind):
        text = base64.b64encode(photo).decode()
        square = np.frombuffer(base64.b64decode(offline.evaluate(LOAD, [text, values])), np.uint8)
        expected = load(photo, preprocess)
        assert np.array_equal(square.reshape(expected.shape), expected)


@browser
@pytest.mark.parametrize("kind", ["png", "codes", "webp", "avif", "jpeg", "progressive"])
def test_the_browser_converts_colours_as_the_server_does(offline: "Page", kind: str) -> None:
    preprocess = Preprocess(image_size=60, crop_fraction=0.9, resample="bicubic")
    values = {name: getattr(preprocess, name) for name in PREPROCESS}
    for number, (width, height) in enumerate([(300, 200), (90, 140)]):
        pixels = np.asarray(noise(6, 4, number).resize((width, height), Image.Resampling.BICUBIC))
        options: dict[str, Any] = {"lossless": True} if kind == "webp" else {}
        if kind in ("jpeg", "progressive"):
            options = {"quality": 90, "exif": exif_with_orientation(6)}
            options["progressive"] = kind == "progressive"
        profile = _profile_of_codes(DISPLAY_P3, SRGB_CURVE)
        form = {"progressive": "jpeg", "codes": "png"}.get(kind, kind)
        photo = encode(Image.fromarray(pixels), form, icc_profile=profile, **options)
        if kind == "codes":
            codes = bytes((DISPLAY_P3, SRGB_CURVE, 0, 1))
            photo = after_header(encode(Image.fromarray(pixels), form), b"cICP", codes)
        text = base64.b64encode(photo).decode()
        square = np.frombuffer(base64.b64decode(offline.evaluate(LOAD, [text, values])), np.uint8)
        expected = load(photo, preprocess)
        # AVIF is converted before it is shrunk: colours that no screen shows differ where they end.
        most = 20 if kind == "avif" else 2
        assert difference(square.reshape(expected.shape), expected) <= most
        stored = load(encode(Image.fromarray(pixels), form, **options), preprocess)
        assert difference(stored, expected) > 20  # of the same pixels without a profile


def after_header(png: bytes, name: bytes, content: bytes) -> bytes:
    """A PNG with one more chunk."""
    return png[:33] + chunk(name, content) + png[33:]


SQUARE = noise(80, 80)
TURNED = exif_with_orientation(6)
READ_ALIKE = {
    "gamma": after_header(encode(SQUARE, "png"), b"gAMA", struct.pack(">I", 80_000)),
    "no end": encode(SQUARE, "jpeg")[:-2],
    "turned WebP": encode(SQUARE, "webp", lossless=True, exif=TURNED),
    "turned PNG": encode(SQUARE, "png", exif=TURNED),
    "no orientation": encode(SQUARE, "jpeg", exif=exif_with_orientation(6, kind=4)),
    "codes of sRGB": after_header(
        encode(SQUARE, "png", icc_profile=_profile_of_codes(DISPLAY_P3, SRGB_CURVE)),
        *(b"cICP", bytes((1, SRGB_CURVE, 0, 1))),
    ),
}


@browser
@pytest.mark.parametrize("photo", READ_ALIKE.values(), ids=READ_ALIKE)
def test_the_browser_reads_what_the_server_reads(offline: "Page", photo: bytes) -> None:
    preprocess = Preprocess(image_size=60)
    values = {name: getattr(preprocess, name) for name in PREPROCESS}
    text = base64.b64encode(photo).decode()
    square = np.frombuffer(base64.b64decode(offline.evaluate(LOAD, [text, values])), np.uint8)
    expected = load(photo, preprocess)
    assert np.array_equal(square.reshape(expected.shape), expected)


PREPROCESS = ("image_size", "crop_fraction", "resample", "reducing_gap")
QUERIES: tuple[dict[str, Any], ...] = (
    {},
    {"k": 5.0, "include": ["scores", "rollup"], "lang": "fr-CH"},
    {"rule": "top_k", "k": 2.0, "max_results": 1},
    {"rule": "coverage", "coverage": 0.8, "none": True},
    {"rule": "coverage", "guarantee": "probability"},
    {"rule": "average_k", "guarantee": "mean", "k": 2.0},
    {"rule": "balanced_average_k", "include": ["scores"]},
    {"rule": "class_coverage", "coverage": 0.9, "include": ["scores", "rollup"]},
    {"list": "heath", "include": ["scores"]},
    {"list": "heath", "rule": "class_coverage", "region": "north"},
    {"list": "heath", "rule": "balanced_coverage"},
    {"region": "north", "include": ["scores"]},
    {"region": "south", "month": 5, "include": ["scores"]},
    {"region": "nowhere", "month": 12},
    {"region": "north", "month": 1, "rule": "balanced_average_k", "k": 2.0},
    {"reject": True},
    {"reject": True, "rule": "coverage"},
    {"min_score": 0.1, "include": ["scores"]},
    {"include": ["dial"]},
    {"include": ["dial", "rollup"], "k": 1.0, "list": "heath", "reject": True},
    {"include": ["dial"], "rule": "coverage", "region": "north", "month": 5},
    {"include": ["dial"], "rule": "balanced_average_k", "list": "heath"},
    {"include": ["dial"], "rule": "top_k", "k": 2.0},
    {"include": ["dial"], "rule": "class_coverage"},
)


@browser
@pytest.mark.parametrize("query", QUERIES, ids=json.dumps)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_answers_without_a_network_are_those_of_the_server(
    offline: "Page", pipeline: Pipeline, query: dict[str, Any], count: int
) -> None:
    for others in (garden.photo(1), garden.DULL, MINT):
        photos = [others, *[BLURRED] * 6][:count]
        result = ask(offline, photos, **query)
        theirs = pipeline(photos, IdentifyQuery(**{"lang": "en-GB", **query}), "test").answer
        # Scores less the threshold of their species, so that nearly nothing may be left of them.
        rest = 1e-6 if query.get("rule") == "class_coverage" else 1e-9
        check_equal(result["answer"], theirs.model_dump(mode="json", by_alias=True), rest=rest)


def check_equal(ours: Any, theirs: Any, path: str = "", *, rest: float = 1e-9) -> None:
    """An answer is that of the server, but for what the device leaves out and last digits."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), path
        for key in theirs.keys() - {"id", "statement", "url", "detail"}:
            check_equal(ours[key], theirs[key], f"{path}/{key}", rest=rest)
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), path
        for place, pair in enumerate(zip(ours, theirs, strict=True)):
            check_equal(*pair, f"{path}/{place}", rest=rest)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=rest), path
    else:
        assert ours == theirs, path


@browser
def test_one_photo_of_an_unknown_class_makes_the_set_hold_none_of_these(offline: "Page") -> None:
    script = """async () => {
        const { predict } = await import("./offline/prediction.js");
        const pack = await (await fetch("pack.json")).json();
        pack.reference = { axes: [[1, 0], [0, 1]], directions: [[1, 0]] };
        pack.calibration.rejection.unseen = [{ coverage: 0.9, threshold: 0.5 }];
        const logits = new Array(pack.classes.length).fill(0);
        return [[[1, 0]], [[0, 1]], [[1, 0], [0, 1]]].map((photos) => predict(
            photos.map((features) => ({ logits, features })),
            { none: true, languages: ["en"] },
            pack,
        ).set.none_of_these);
    }"""
    assert offline.evaluate(script) == [False, True, True]


@browser
@pytest.mark.parametrize(
    ("rule", "inside"),
    [
        ({"lambda": 0.25}, [False, True, True, True]),  # at least, not above
        ({"lambda": 0.4, "min_size": 1}, [False, True, False, False]),  # the first of equal ones
        ({"lambda": 0.1, "max_size": 2}, [False, True, True, False]),
        ({"top_k": 1}, [False, True, False, False]),
        ({"lambda": 0.25, "thresholds": [0, 0, 0.1, 0]}, [False, True, False, True]),
        ({"lambda": 0.5, "weights": [3, 1, 1, 2]}, [True, False, False, True]),
    ],
)
def test_a_set_holds_what_reaches_the_threshold(
    offline: "Page", rule: dict[str, Any], inside: list[bool]
) -> None:
    script = """async (rule) => {
        const { drawSet } = await import("./offline/scores.js");
        return drawSet([0.2, 0.25, 0.25, 0.25], rule).inside;
    }"""
    assert offline.evaluate(script, rule) == inside


@browser
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"k": 99.0}, "not_calibrated"),
        ({"k": 3.0, "rule": "coverage"}, "invalid_parameter"),
        ({"only": ["1001"]}, "not_offered_offline"),
        ({"always": ["1001"]}, "not_offered_offline"),
        ({"include": ["marginals"]}, "not_offered_offline"),
        ({"list": "berge"}, "unknown_list"),
        ({"latitude": 3, "longitude": 4}, "invalid_parameter"),
    ],
)
def test_a_query_that_the_device_cannot_answer_says_why(
    offline: "Page", query: dict[str, Any], code: str
) -> None:
    assert ask(offline, [BLURRED], **query)["problem"]["code"] == code


HUGE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (20_000).to_bytes(4) * 2 + b"\x08\x02\0\0\0"


@browser
@pytest.mark.parametrize(
    ("photo", "code"),
    [
        (HUGE, "image_too_large"),
        (BLURRED[:60], "image_unreadable"),
        (b"\xff\xd8\xff\xe0\0\x10", "image_unreadable"),
        (garden.encoded(garden.pixels(garden.COLOURS[0]), "JPEG")[:-40], "image_unreadable"),
        (b"GIF89a", "unsupported_image_type"),
        (b"\0\0\0\x18ftypheic" + bytes(50), "unreadable_here"),
        (b"", "unsupported_image_type"),
    ],
)
def test_a_photo_that_cannot_be_used_says_why(offline: "Page", photo: bytes, code: str) -> None:
    assert ask(offline, [photo])["problem"]["code"] == code


@browser
def test_the_page_shows_the_set_of_a_photo_without_a_network(
    offline: "Page", pipeline: Pipeline
) -> None:
    file: FilePayload = {"name": "flower.png", "mimeType": "image/png", "buffer": BLURRED}
    offline.set_input_files("#file", [file, file])
    offline.wait_for_selector("#result:not([hidden])")
    ids = offline.eval_on_selector_all("#members .card", "all => all.map((e) => e.dataset.classId)")
    answer = pipeline([BLURRED] * 2, IdentifyQuery(lang="en-GB"), "test").answer
    assert ids == [each.class_id for each in answer.results]
    pictures = "[...document.images].every((each) => each.complete && each.naturalWidth > 0)"
    wait_until(offline, pictures)
    offline.goto(offline.url + "species.html")
    offline.fill("#q", "viola")
    wait_until(offline, "document.querySelectorAll('.card').length === 2")
    offline.go_back()
    wait_until(offline, READY)


@browser
def test_a_class_is_compared_as_on_the_server(offline: "Page", pipeline: Pipeline) -> None:
    script = """async (id) => (await import("./service.js")).classInfo(id)"""
    about = BundleInfo(pipeline, Settings(bundle=pipeline.bundle.path))
    for class_id in ("1006", "1012"):
        theirs = json.loads(about.details(class_id, ["en"]))
        check_equal(offline.evaluate(script, class_id), theirs)


def changed_by(line: str, folder: Path, out: Path) -> Path:
    """A copy of the page with this line of JavaScript before all others."""
    shutil.copytree(folder, out)
    script = out / "offline" / "downloads.js"
    script.write_text(f"{line}\n{script.read_text()}")
    return out


@browser
def test_a_browser_without_simd_is_refused(opened: Opened, folder: Path, tmp_path: Path) -> None:
    page = opened(changed_by("WebAssembly.validate = () => false;", folder, tmp_path / "out"))
    wait_until(page, f"{STATUS}?.includes('SIMD')")
    assert ask(page, [BLURRED])["problem"]["code"] == "no_simd"


@browser
def test_half_a_model_is_fetched_again(opened: Opened, folder: Path) -> None:
    torn = folder.parent / "torn"
    shutil.copytree(folder, torn)
    (network,) = torn.glob("*.onnx")
    whole = network.read_bytes()
    for damage in (whole[: len(whole) // 2], whole[:-1] + b"?"):
        network.write_bytes(damage)
        page = opened(torn)
        wait_until(page, f"{STATUS}?.includes('not completely here')")
        assert ask(page, [BLURRED])["problem"]["code"] == "download_incomplete"
        network.write_bytes(whole)
        assert ask(page, [BLURRED])["answer"]["set"]["size"] > 0
        wait_until(page, READY)


@browser
def test_an_interrupted_download_continues_where_it_stopped(
    opened: Opened, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (network,) = folder.glob("*.onnx")
    content, ranges, usual = network.read_bytes(), list[str | None](), Handler.do_GET

    def interrupted(self: Handler) -> None:
        if self.path != f"/{network.name}":
            return usual(self)
        ranges.append(self.headers["Range"])
        start = 100 if ranges[-1] else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : None if start else 100])
        time.sleep(0.0 if start else 0.5)  # the browser has read it when the connection ends
        self.close_connection = True
        return None

    monkeypatch.setattr(Handler, "do_GET", interrupted)
    page = opened(folder)
    wait_until(page, f"{STATUS}?.includes('not completely here')")
    page.click("#offline button")
    wait_until(page, READY)
    assert ranges == [None, "bytes=100-"]


@browser
def test_a_browser_that_keeps_no_files_says_so_and_answers(
    opened: Opened, folder: Path, tmp_path: Path
) -> None:
    denial = "caches.open = () => Promise.reject(new DOMException('', 'SecurityError'));"
    page = opened(changed_by(denial, folder, tmp_path / "out"))
    wait_until(page, f"{STATUS}?.includes('keeps no files')")
    assert ask(page, [BLURRED])["answer"]["set"]["size"] > 0


@browser
def test_a_network_that_the_browser_cannot_run_says_so(
    opened: Opened, contents: dict[str, bytes], tmp_path: Path
) -> None:
    pack = json.loads(contents["pack.json"])
    changed = dict(contents)
    pack["network"] = device_bundle.named_file(changed, b"no network", "onnx")
    _write_folder(tmp_path / "out", {**changed, "pack.json": json.dumps(pack).encode()})
    page = opened(tmp_path / "out")
    wait_until(page, f"{STATUS}?.includes('cannot run the model')")
    assert "cannot run the model" in page.evaluate(STATUS)


@browser
def test_an_update_is_used_when_the_page_is_opened_again_and_fetches_only_what_changed(
    opened: Opened, contents: dict[str, bytes], tmp_path: Path
) -> None:
    out, pack = tmp_path / "out", json.loads(contents["pack.json"])
    _write_folder(out, contents)
    page = opened(out)
    wait_until(page, READY)
    changed, times = dict(contents), (out / "card.json").stat()
    changed["card.json"] = contents["card.json"].replace(b"2026.11", b"2026.12")
    large = [pack[name]["path"] for name in device_folders.LARGE]
    fetched = device_folders._fetched({path: changed[path] for path in changed.keys() - {"sw.js"}})
    small = {path: fetched[path] for path in fetched if not path.startswith(tuple(large))}
    changed["sw.js"] = service_worker(small, large)
    _write_folder(out, changed)
    os.utime(out / "card.json", ns=(times.st_atime_ns, times.st_mtime_ns))  # hosts count in seconds
    page.reload()
    page.evaluate(WAITING)
    assert "2026.11" in page.inner_text("#model")
    (network,) = out.glob("*.onnx")
    network.unlink()
    page.click("#news button:has-text('Load it')")
    page.wait_for_selector("text=2026.12")
    wait_until(page, READY)
    kept = page.evaluate(KEPT)
    assert len(kept) == len({url.partition("?")[0] for url in kept})
    assert {url.rpartition(".")[2] for url in kept} >= {"onnx", "wasm", "reference"}


KEPT = """async () => {
    const store = await caches.open((await caches.keys())[0]);
    return (await store.keys()).map((request) => request.url);
}"""
WAITING = """async () => {
    const registration = await navigator.serviceWorker.ready;
    while (!registration.waiting) await new Promise((next) => setTimeout(next, 50));
}"""


@browser
def test_the_page_can_be_installed(chromium: Any, folder: Path) -> None:
    with desktop(chromium) as whole, opener(whole) as open_page:
        page = open_page(folder)
        wait_until(page, READY)
        session = page.context.new_cdp_session(page)
        errors = session.send("Page.getInstallabilityErrors")["installabilityErrors"]
    assert [each["errorId"] for each in errors] == ["in-incognito"]  # as all windows of tests


def test_a_browser_fetches_little_besides_the_network(
    pipeline: Pipeline, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, runtime: Path
) -> None:
    assert _transfer_bytes(contents) < 5_000_000
    assert b'"thumbnails/0.jpg"' in contents["sw.js"]
    monkeypatch.setattr(device_folders, "MOST_KEPT", 1000)
    less = _web_files(pipeline, _read_runtime(runtime))
    assert b'"thumbnails/0.jpg"' not in less["sw.js"]
    assert "thumbnails/0.jpg" in less
    monkeypatch.setattr(device_folders, "LARGEST_MODEL", 10)
    with pytest.raises(UsageError, match="smaller network"):
        _web_files(pipeline, _read_runtime(runtime))
