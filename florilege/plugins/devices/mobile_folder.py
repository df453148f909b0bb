"""Files for an app with ``onnxruntime-android`` or ``onnxruntime-objc``."""

import json
from collections.abc import Iterator
from importlib.resources import files
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilege.models.bundle import MODEL
from florilege.models.session import FEATURES, Outputs, Session
from florilege.plugins.devices.device_bundle import PACK, add_arrays, device_pack
from florilege.server.answers.answer import judge
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import IdentifyQuery


def mobile_files(pipeline: Pipeline) -> dict[str, bytes]:
    """The files of the folder by relative path."""
    snippets = files("florilege.plugins.devices") / "mobile"
    contents = {file.name: file.read_bytes() for file in snippets.iterdir()}
    pack = {**device_pack(pipeline), "features": FEATURES if pipeline.reference else None}
    add_arrays(pack, contents, pipeline)
    return {
        MODEL: pipeline.bundle.read(MODEL),
        PACK: json.dumps(pack, ensure_ascii=False).encode(),
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
    plan = pipeline.plan(IdentifyQuery(none=True))
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
        plan = pipeline.plan(IdentifyQuery.model_validate(query))
        results = pipeline.decide([outputs] * photos, plan, "check").answer.results
        yield {"photos": photos, **query, "set": [result.class_id for result in results]}


def _is_suspect(verdict: str) -> bool | None:
    return None if verdict == "not_judged" else verdict == "suspect"


def _check_places(pipeline: Pipeline) -> list[dict[str, Any]]:
    """No place; and where there is a table of them, the region with most entries, twice."""
    occurrences, nowhere = pipeline.places.occurrences, {"region": None, "month": None}
    if occurrences is None:
        return [nowhere]
    region = occurrences.regions[int(np.bincount(occurrences.region).argmax())]
    return [nowhere, {"region": region, "month": None}, {"region": region, "month": 6}]
