"""The folders that devices get: a web page for any static host, and files for an app.

The page answers without a server or a network. Its runtime is two files of the npm package
``onnxruntime-web``, with known hashes. It is not part of Florilege because it takes 14 MB. Users
pass the file that ``npm pack`` writes, or the folder of an installed package. An app has
``onnxruntime-android`` or ``onnxruntime-objc``.
"""

import gzip
import hashlib
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from florilege.errors import UsageError
from florilege.files import HEAD, SERVICE_WORKER, page_files, service_worker
from florilege.hooks import MARKER, ExportedFiles
from florilege.models.bundle import MODEL
from florilege.models.session import FEATURES, Outputs, Session
from florilege.plugins.devices.device_bundle import device_bundle, device_pack, named_file
from florilege.server.answers.answer import judge
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import IdentifyQuery
from florilege.server.http.model_card import ModelCard
from florilege.server.settings import Settings


def export_page(bundle: Path, runtime: Path | None, data: str | None, split: str) -> ExportedFiles:
    """The web page, as `florilege.hooks.ExportTarget` wants it."""
    runtime_files = _read_runtime(runtime)
    with device_bundle(bundle, data, split) as pipeline:
        contents = _web_files(pipeline, runtime_files)
        network = len(pipeline.bundle.read(MODEL))
    sizes = {"network_bytes": network, "other_bytes": _transfer_bytes(contents)}
    return ExportedFiles(contents, sizes)


def export_files(bundle: Path, _: Path | None, data: str | None, split: str) -> ExportedFiles:
    """The files for an app, as `florilege.hooks.ExportTarget` wants them."""
    with device_bundle(bundle, data, split) as pipeline:
        network = len(pipeline.bundle.read(MODEL))
        return ExportedFiles(_mobile_files(pipeline), {"network_bytes": network})


def _mobile_files(pipeline: Pipeline) -> dict[str, bytes]:
    """The files of the folder by relative path."""
    snippets = files("florilege.plugins.devices") / "mobile"
    contents = {file.name: file.read_bytes() for file in snippets.iterdir()}
    features = FEATURES if pipeline.reference else None
    pack = {**device_pack(pipeline, contents), "features": features}
    return {
        MODEL: pipeline.bundle.read(MODEL),
        MARKER: json.dumps(pack, ensure_ascii=False).encode(),
        "check.json": json.dumps(_check(pipeline)).encode(),
        **contents,
    }


def _check_picture(side: int) -> NDArray[np.uint8]:
    """The picture of ``check.json``, ``(side, side, 3)``: a formula that works in any language."""
    rows, columns, channels = np.indices((side, side, 3))
    picture: NDArray[np.uint8] = ((7 * columns + 13 * rows + 59 * channels) % 256).astype(np.uint8)
    return picture


def _check(pipeline: Pipeline) -> dict[str, Any]:
    """What the network says of a picture, the sets of one and two such photos, and its verdicts."""
    picture = _check_picture(pipeline.bundle.preprocess.image_size)
    outputs = Session(pipeline.bundle, device="cpu").outputs(
        picture[np.newaxis], features=pipeline.reference is not None
    )
    sets = list(_check_sets(pipeline, outputs))
    plan = pipeline.planner.plan(IdentifyQuery(none=True))
    whole = pipeline.decide([outputs], plan, "check").answer
    by_logits = judge(outputs.logits, IdentifyQuery(), pipeline.record).verdict
    return {
        "logits": outputs.logits[pipeline.record.head][0].tolist(),
        "features": None if outputs.features is None else outputs.features[0].tolist(),
        "sets": sets,
        "set_of_1": sets[0]["set"],
        "set_of_2": sets[1]["set"],
        "unfamiliar": _is_suspect(by_logits),
        "unfamiliar_by_features": _is_suspect(whole.rejection.verdict),
        "none_of_these": whole.set.none_of_these,
    }


def _check_sets(pipeline: Pipeline, outputs: Outputs) -> Iterator[dict[str, Any]]:
    """The sets of all classes and of each list, without a place, in a region, and in its June."""
    names = (None, *(listed.name for listed in pipeline.record.lists))
    for place, name, photos in product(_check_places(pipeline), names, (1, 2)):
        query = {"list": name, **place}
        plan = pipeline.planner.plan(IdentifyQuery.model_validate(query))
        results = pipeline.decide([outputs] * photos, plan, "check").answer.results
        yield {"photos": photos, **query, "set": [result.class_id for result in results]}


def _is_suspect(verdict: str) -> bool | None:
    return None if verdict == "not_judged" else verdict == "suspect"


def _check_places(pipeline: Pipeline) -> list[dict[str, Any]]:
    """No place; and where there is a table of them, the region with most entries, twice."""
    occurrences, nowhere = pipeline.planner.occurrences, {"region": None, "month": None}
    if occurrences is None:
        return [nowhere]
    region = occurrences.regions[int(np.bincount(occurrences.region).argmax())]
    return [nowhere, {"region": region, "month": None}, {"region": region, "month": 6}]


# The web page ------------------------------------------------------------------------------------

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


def _read_runtime(path: Path | None) -> dict[str, bytes]:
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
                files = _unpack(archive)
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise UsageError(f"--runtime {path} is not {PACKAGE}: {error}; {_ADVICE}") from error
    for name, content in files.items():
        if hashlib.sha256(content).hexdigest() != SHA256[name]:
            raise UsageError(
                f"--runtime {path}: {name} is not the file of {PACKAGE} {VERSION}, the version "
                f"that the sets were checked with: {_ADVICE}"
            )
    return files


def _unpack(archive: tarfile.TarFile) -> dict[str, bytes]:
    """In one pass: by its name, a member is looked for in all of the archive from its beginning."""
    names, files = {f"package/dist/{name}": name for name in SHA256}, dict[str, bytes]()
    for member in archive:
        if member.name in names and (file := archive.extractfile(member)) is not None:
            files[names.pop(member.name)] = file.read()
            if not names:
                return files
    raise KeyError(f"filename {min(names)!r} not found")


LARGEST_MODEL: Final = 1_000_000_000
"""Bytes of a network; a browser has 4 GB for it, its copies and activations, a phone less."""
MOST_KEPT: Final = 10_000_000
"""Bytes to fetch at the first visit besides the network; thumbnails beyond it are left out."""
_MOST_PHOTO_BYTES: Final = 500 * 2**20
"""For the photos of one plant; they stay on the device."""
_DOWNLOAD_DEADLINE_S: Final = 600.0
"""For the first photo, which waits until the network is downloaded."""
THUMBNAILS: Final = "thumbnails/"
PICTURES: Final = "pictures/"  # to compare with: fetched when somebody does
LARGE: Final = ("network", "runtime", "reference", "occurrences")  # the page stores these itself
_NOT_FETCHED: Final = (".onnx", ".wasm", "HOSTING.md")  # the .wasm.gz is fetched instead
_SERVER_LINK: Final = re.compile(rb' ?<a href="(v1/|openapi)[^>]*></a>')


def _web_files(pipeline: Pipeline, runtime: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of the folder by relative path, with those of `_read_runtime`.

    Raises:
        UsageError: A browser cannot run the network.
    """
    model = pipeline.bundle.read(MODEL)
    if len(model) > LARGEST_MODEL:
        raise UsageError(
            f"{MODEL} has {len(model) / 1e9:.1f} GB, more than a browser can run "
            f"({LARGEST_MODEL / 1e9:g} GB): train a smaller network, see docs/training.md"
        )
    contents = _page_files()
    pack = device_pack(pipeline, contents)
    pictures = pipeline.bundle.read_thumbnails()
    for place, item in enumerate(pack["classes"]):
        if item["thumbnail"] is not None:
            item["thumbnail"]["url"] = f"{THUMBNAILS}{place}.jpg"
            contents[item["thumbnail"]["url"]] = pictures[item["id"]]
    _add_pictures(pipeline, pack["classes"], contents)
    binary = runtime[BINARY]
    contents["ort.mjs"] = runtime[SCRIPT]
    pack["network"] = named_file(contents, model, "onnx")
    pack["runtime"] = named_file(contents, binary, "wasm")
    zipped = gzip.compress(binary, 9, mtime=0)
    contents[f"{pack['runtime']['path']}.gz"] = zipped
    pack["runtime"]["gzip_bytes"] = len(zipped)
    contents[MARKER] = _json(pack)
    contents["card.json"] = _json(_card(pipeline))
    hosting = contents["HOSTING.md"].decode()
    contents["HOSTING.md"] = hosting.format(version=VERSION).encode()
    large = [each["path"] for name in LARGE if (each := pack[name]) is not None]
    # By their beginnings: the compressed runtime too, which is named after the other.
    small = {p: body for p, body in _fetched(contents).items() if not p.startswith(tuple(large))}
    contents[SERVICE_WORKER] = service_worker(small, large)
    return contents


def _add_pictures(
    pipeline: Pipeline, classes: Sequence[dict[str, Any]], contents: dict[str, bytes]
) -> None:
    """Add the reference pictures, and to each class their addresses and the classes like it."""
    pictures, others = pipeline.bundle.open_pictures(), pipeline.bundle.read_look_alikes()
    for place, item in enumerate(classes):
        item["look_alikes"], item["pictures"] = others.get(place, []), []
        for number, credit in enumerate(pictures.credits(item["id"])):
            url = f"{PICTURES}{place}-{number}.jpg"
            contents[url] = pictures.read(item["id"], number)
            item["pictures"].append({"url": url, **asdict(credit)})


def _card(pipeline: Pipeline) -> dict[str, Any]:
    settings = Settings(
        bundle=pipeline.bundle.path,
        max_pixels=pipeline.max_pixels,
        max_body_bytes=_MOST_PHOTO_BYTES,
        upload_deadline_s=_DOWNLOAD_DEADLINE_S,
    )
    card = ModelCard.of_pipeline(pipeline, settings).model_dump(mode="json", by_alias=True)
    return {**card, "provider": "onnxruntime-web"}


def _page_files() -> dict[str, bytes]:
    """The pages of the server, with another module in place of its client, and our own files."""
    own, web = files("florilege.plugins.devices") / "web", files("florilege.server") / "web"
    contents = page_files() | {file.name: file.read_bytes() for file in own.iterdir()}
    head = contents.pop(HEAD)
    for file in (web / "offline").iterdir():
        contents[f"offline/{file.name}"] = file.read_bytes()
    contents["service.js"] = b'export * from "./offline/service.js";\n'
    for name, content in contents.items():
        if name.endswith(".html"):
            contents[name] = _SERVER_LINK.sub(b"", content).replace(b"</head>", head + b"</head>")
    return contents


def _transfer_bytes(contents: Mapping[str, bytes]) -> int:
    """Bytes that a browser fetches besides the network, from a host that compresses nothing."""
    return sum(map(len, _fetched(contents).values()))


def _fetched(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Files to fetch at the first visit besides the network; thumbnails only if all is small."""
    files = {
        path: content
        for path, content in contents.items()
        if not path.endswith(_NOT_FETCHED) and not path.startswith(PICTURES)
    }
    if sum(map(len, files.values())) <= MOST_KEPT:
        return files
    return {path: content for path, content in files.items() if not path.startswith(THUMBNAILS)}


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
