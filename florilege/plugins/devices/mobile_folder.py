"""Files for an app with ``onnxruntime-android`` or ``onnxruntime-objc``."""

import json
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilege.models.bundle.bundle import MODEL
from florilege.models.session import Session
from florilege.plugins.devices.device_pack import PACK, device_pack
from florilege.server.answers.answer import judge
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import IdentifyQuery


def mobile_files(pipeline: Pipeline) -> dict[str, bytes]:
    """The files of the folder by relative path."""
    snippets = files("florilege.plugins.devices") / "mobile"
    return {
        MODEL: pipeline.bundle.read(MODEL),
        PACK: json.dumps(device_pack(pipeline), ensure_ascii=False).encode(),
        "check.json": json.dumps(_check(pipeline)).encode(),
        **{file.name: file.read_bytes() for file in snippets.iterdir()},
    }


def _check_picture(side: int) -> NDArray[np.uint8]:
    """The picture of ``check.json``, ``(side, side, 3)``: a formula that works in any language."""
    rows, columns, channels = np.indices((side, side, 3))
    picture: NDArray[np.uint8] = ((7 * columns + 13 * rows + 59 * channels) % 256).astype(np.uint8)
    return picture


def _check(pipeline: Pipeline) -> dict[str, Any]:
    """The logits of a picture, the sets of one and two such photos, and whether it is unfamiliar.

    By its logits alone, since the files for an app hold no features to compare with.
    """
    picture = _check_picture(pipeline.bundle.preprocess.image_size)
    outputs = Session(pipeline.bundle, device="cpu").outputs(picture[np.newaxis])

    def class_ids(photos: int, list_name: str | None) -> list[str]:
        plan = pipeline.plan(IdentifyQuery(list=list_name))
        answer = pipeline.decide([outputs] * photos, plan, "check").answer
        return [result.class_id for result in answer.results]

    names = (None, *(listed.name for listed in pipeline.record.lists))
    sets = [
        {"photos": photos, "list": name, "set": class_ids(photos, name)}
        for name in names
        for photos in (1, 2)
    ]
    old = {f"set_of_{one['photos']}": one["set"] for one in sets if one["list"] is None}
    verdict = judge(outputs.logits, IdentifyQuery(), pipeline.record).verdict
    unfamiliar = None if verdict == "not_judged" else verdict == "suspect"
    logits = outputs.logits[pipeline.record.head][0].tolist()
    return {"logits": logits, "sets": sets, **old, "unfamiliar": unfamiliar}
