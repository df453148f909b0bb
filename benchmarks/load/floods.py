"""How long a photo waits while other clients flood the server with cheap requests.

    python -m benchmarks.load.floods [BUNDLE] [--clients 32] [--seconds 5] [--floods species misses]

Without a bundle it makes one of 10,000 classes whose network takes no time, so that what is left of
a photo's wait is the server's own. One client sends a form of 300 KB again and again; meanwhile
others, in a process of their own, send one kind of request as fast as it is answered. A line for
each kind gives the wait of the photo (median, longest), how many were refused, and the requests of
the flood: answered a second, and how many were refused. The first line is without a flood.
"""

import argparse
import http.client
import itertools
import multiprocessing
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from benchmarks.load.server import jpeg, port_of, serve
from florilege.calibration.calibrate import calibrate_bundle
from florilege.models.bundle import write_bundle
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.images import Preprocess

CLASSES: Final = 10_000
SIDE: Final = 32
SPECIES_A_GENUS: Final = 5
LANGUAGES: Final = ("en", "fr", "de", "es", "it", "nl", "pt", "pl", "cs", "sv", "da", "fi")
BOUNDARY: Final = "between"
MULTIPART: Final = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
TINY: Final = b"\xff\xd8\xff"  # no photo: refused once it is decoded
REQUESTS: Final = 100  # different ones of a client, repeated
STARTING_S: Final = 1.0  # for the flood to begin, before the photo's waits count
Request = tuple[str, str, bytes | None, dict[str, str]]  # method, path, body, headers


def _get(path: str, **headers: str) -> Request:
    return "GET", path, None, headers


def _identify(query: str, body: bytes = TINY) -> Request:
    return "POST", f"/v1/identify?{query}", body, {}


def _word() -> str:
    return "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=9))


def _form(*parts: bytes) -> bytes:
    """A form of ``images``."""
    head = b'Content-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
    boundary = b"--" + BOUNDARY.encode()
    return b"".join(boundary + b"\r\n" + head + part + b"\r\n" for part in parts) + boundary + b"--"


FLOODS: Final[dict[str, Callable[[], Request]]] = {
    "species": lambda: _get("/v2/species"),
    "species, any language": lambda: _get(f"/v2/species?lang={random.choice(LANGUAGES)}"),
    "species, any prefix": lambda: _get(f"/v2/species?prefix={_word()[0]}"),
    "classes": lambda: _get("/v1/classes"),
    "classes, any language": lambda: _get(f"/v1/classes?lang={random.choice(LANGUAGES)}"),
    "classes, any search": lambda: _get(f"/v1/classes?q={_word()[:2]}"),
    "misses": lambda: _identify(f"only={_word()},{_word()},{_word()}"),
    "long misses": lambda: _identify(f"only={','.join(_word() * 9 for _ in range(5))}"),
    "1,000 misses": lambda: _identify(f"only={','.join(_word() for _ in range(1000))}"),
    "5,000 ids": lambda: _identify(f"only={','.join(map(str, range(10_000, 15_000)))}"),
    "family 3,000 times": lambda: _identify(f"only={','.join(['Familia'] * 3000)}"),
    "always, misses": lambda: _identify(f"always={_word()},{_word()}"),
    "model": lambda: _get("/v1/model"),
    "one class": lambda: _get("/v1/classes/10007"),
    "openapi": lambda: _get("/openapi.json"),
    "metrics": lambda: _get("/metrics"),
    "page": lambda: _get("/"),
    "thumbnail": lambda: _get("/v1/thumbnails?class_id=10007"),
    "projects": lambda: _get("/v2/projects"),
    "languages": lambda: _get("/v2/languages"),
    "nowhere": lambda: _get("/nowhere"),
    "livez": lambda: _get("/livez"),
    "30 unknown parameters": lambda: _get("/v1/model?" + "=1&".join(_word() for _ in "x" * 30)),
    "many languages": lambda: _get("/v1/classes/10007", **{"Accept-Language": "aa-" * 20_000}),
    "long address": lambda: _get("/" + quote("é") * 10_000),
    "100 parts": lambda: ("POST", "/v1/identify", _form(*[b"x"] * 100), MULTIPART),
    "feedback": lambda: ("POST", "/v1/feedback", b'{"request_id": "x", "class_id": "y"}',
                         {"Content-Type": "application/json"}),
}  # fmt: skip


def main() -> None:
    """Make a bundle if none is given, serve it, flood it, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path, nargs="?")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each flood")
    parser.add_argument("--floods", nargs="+", choices=list(FLOODS), default=list(FLOODS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = arguments.bundle or _make_bundle(Path(folder))
        flags = ["--device", "cpu", "--threads", "2", "--plantnet"]
        flags += ["--feedback-store", f"{folder}/feedback", "--feedback-rate", "1000000/hour"]
        process = serve(bundle, *flags)
        try:
            port = port_of(process)
            print(f"{'flood':24}{'median s':>9}{'longest':>9}{'photos':>8}{'refused':>8}"
                  f"{'flood/s':>9}{'refused':>8}")  # fmt: skip
            _line("none", port, 0, arguments.seconds)
            for name in arguments.floods:
                _line(name, port, arguments.clients, arguments.seconds)
        finally:
            process.terminate()
            process.wait(60)


def _line(name: str, port: int, clients: int, seconds: float) -> None:
    """Flood the server for some seconds, and print what became of the photo."""
    context = multiprocessing.get_context("spawn")
    answers, refusals = context.Value("i", 0), context.Value("i", 0)
    stop = context.Event()
    flood = context.Process(target=_flood, args=(name, port, clients, answers, refusals, stop))
    flood.start()
    while clients and not answers.value and not refusals.value and flood.is_alive():
        time.sleep(0.05)
    time.sleep(STARTING_S)
    first, started = answers.value, time.monotonic()
    waits, refused = _photo_waits(port, started + seconds)
    rate = (answers.value - first) / (time.monotonic() - started)
    stop.set()
    flood.join(60)
    flood.kill()
    waits.sort()
    print(f"{name:24}{waits[len(waits) // 2]:9.3f}{waits[-1]:9.3f}{len(waits):8}{refused:8}"
          f"{rate:9.0f}{refusals.value:8}", flush=True)  # fmt: skip


def _photo_waits(port: int, until: float) -> tuple[list[float], int]:
    """Seconds that each form of a photo waited for its answer, and how many were refused."""
    body, waits, refused = _form(jpeg(1600, 1200, 300_000)), list[float](), 0
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        while time.monotonic() < until or not waits:
            started = time.perf_counter()
            connection.request("POST", "/v1/identify", body, MULTIPART)
            response = connection.getresponse()
            response.read()
            waits.append(time.perf_counter() - started)
            refused += response.status != 200
            time.sleep(0.05)
    return waits, refused


def _yield_to_the_server() -> None:
    """Take only what the server leaves of the cores: clients of a real one run elsewhere.

    In a session of equal weight they sometimes took the core of the photo's thread for .3 s.
    """
    os.nice(19)
    os.setsid()
    with suppress(OSError):  # Linux may share cores by threads, not by sessions
        Path("/proc/self/autogroup").write_text("19")


def _flood(name, port, clients, answers, refusals, stop) -> None:  # type: ignore[no-untyped-def]
    """Send one kind of request over many connections until told to stop; runs in a process."""
    _yield_to_the_server()

    def client(number: int) -> None:
        random.seed(number)
        # Made beforehand: these clients and the server share the machine's cores.
        requests = itertools.cycle([FLOODS[name]() for _ in range(REQUESTS)])
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            while not stop.is_set():
                method, path, body, headers = next(requests)
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                response.read()
                count = refusals if response.status == 503 else answers
                with count.get_lock():
                    count.value += 1
                if response.status == 503:
                    time.sleep(0.1)  # a polite client waits longer

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _make_bundle(folder: Path) -> Path:
    """A calibrated bundle of many classes whose network is one product with the mean colour."""
    generator = np.random.default_rng(0)
    weights = generator.normal(0, 0.05, (3, CLASSES)).astype(np.float32)
    constants = [
        numpy_helper.from_array(np.array([1, 2], np.int64), "axes"),
        numpy_helper.from_array(weights, "weights"),
    ]
    nodes = [
        helper.make_node("Cast", ["image"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["real", "axes"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "weights"], ["logits"]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", SIDE, SIDE, 3])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])
    graph = helper.make_graph(nodes, "colours", [image], [logits], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    write_bundle(
        folder / "bundle",
        name="floods",
        version="1",
        heads={"linear": "logits"},
        model=model.SerializeToString(),
        classes=ClassTable(tuple(map(_class, range(CLASSES)))),
        preprocess=Preprocess(image_size=SIDE),
        files={},
    )
    for number in range(50):
        target = folder / "photos" / "val" / str(10_000 + number)
        target.mkdir(parents=True)
        for photo in range(4):
            pixels = generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(target / f"{photo}.png")
    calibrate_bundle(folder / "bundle", str(folder / "photos"), "val", device="cpu")
    return folder / "bundle"


def _class(number: int) -> ClassInfo:
    genus = f"Genus{number // SPECIES_A_GENUS}"
    names = {lang: (f"name {number} in {lang}", f"other name {number}") for lang in LANGUAGES}
    return ClassInfo(
        id=str(10_000 + number),
        scientific_name=f"{genus} species{number} L.",
        genus=genus,
        family="Familia",
        gbif=str(5_000_000 + number),
        common_names=names,
        training_count=10,
        link=f"https://www.gbif.org/species/{5_000_000 + number}",
    )


if __name__ == "__main__":
    main()
