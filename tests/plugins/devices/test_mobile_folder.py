"""The arithmetic of the snippets, transcribed line by line, on outputs of the network."""

import hashlib
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.models.session import Outputs
from florilege.plugins.devices.device_folders import _check_picture, _mobile_files
from florilege.server.answers.answer import judge
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import IdentifyQuery
from tests.server import garden

Rows = NDArray[np.float32]


class Snippet:
    """As Florilege.kt and Florilege.swift."""

    def __init__(self, pack: bytes) -> None:
        self.pack = json.loads(pack)
        self.calibration = self.pack["calibration"]

    def predict(
        self, photos: Rows, k: float, list_name: str | None = None
    ) -> tuple[list[str], bool, float | None]:
        listed = self.outputs_of(list_name)
        table, point = self.nearest(len(photos), list_name, k)
        scaled = [
            row.astype(np.float64)[listed] / self.calibration["temperature"] for row in photos
        ]
        rows = [self.scores(row, self.calibration["score_kind"]) for row in scaled]
        scores = np.sort(np.stack(rows), axis=0).mean(axis=0)
        order = sorted(range(len(scores)), key=lambda place: -scores[place])
        size = max(table["min_size"], sum(score >= point["lambda"] for score in scores))
        calibrated = table["images"] == len(photos) and table["list"] == list_name
        rate = point["hit_rate"]["value"] if calibrated else None
        ids = [self.pack["classes"][listed[place]]["id"] for place in order[:size]]
        return ids, calibrated, rate

    def outputs_of(self, list_name: str | None) -> list[int]:
        if list_name is None:
            return list(range(len(self.pack["classes"])))
        lists = {each["name"]: each["classes"] for each in self.calibration["lists"]}
        indices: list[int] = lists[list_name]
        return indices

    def nearest(self, images: int, list_name: str | None, k: float) -> tuple[Any, Any]:
        for name in dict.fromkeys((list_name, None)):
            for count in dict.fromkeys((images, 1)):
                if pair := self.calibrated(count, name, k):
                    return pair
        raise KeyError(k)

    def calibrated(self, images: int, list_name: str | None, k: float) -> tuple[Any, Any] | None:
        wanted = {
            **{"rule": "average_k", "usual": True, "images": images},
            **{"list": list_name, "place": None},
        }
        tables = [t for t in self.calibration["tables"] if wanted.items() <= t.items()]
        points = [(t, p) for t in tables[:1] for p in t["points"] if p["k"] == k]
        return points[0] if points else None

    def is_unfamiliar(self, photos: Rows) -> bool | None:
        whole = self.calibration["rejection"]
        rule = whole and (whole["by_logits"] if whole["method"] == "combined" else whole)
        if rule is None:
            return None
        rows = [self.scores(row.astype(np.float64), rule["score_kind"]) for row in photos]
        return all(self.familiarity(row) < rule["threshold"] for row in rows)

    @staticmethod
    def familiarity(scores: NDArray[np.float64]) -> float:
        best = -np.sort(-scores)[:100]
        return -float(((best * (1 - best)) ** 0.1).sum())

    @staticmethod
    def scores(logits: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
        if kind == "sigmoid":
            return np.asarray(1 / (1 + np.exp(-logits)))
        powers = np.exp(logits - logits.max())
        scores: NDArray[np.float64] = powers / powers.sum()
        return scores


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_the_snippets_give_the_sets_of_the_server(
    pipeline: Pipeline, photos: Path, count: int
) -> None:
    snippet = Snippet(_mobile_files(pipeline)["pack.json"])
    paths = sorted(photos.glob("train/*/*.png"))[::13]
    for start in range(0, len(paths) - count):
        outputs = [pipeline.outputs(path.read_bytes()) for path in paths[start:][:count]]
        logits = np.concatenate([each.logits[pipeline.record.head] for each in outputs])
        for k, name in ((1.0, None), (3.0, None), (3.0, "heath")):
            plan = pipeline.planner.plan(IdentifyQuery(k=k, list=name))
            answer = pipeline.decide(outputs, plan, "test").answer
            ids = [each.class_id for each in answer.results]
            hits = answer.set.hit_rate
            rate = None if hits is None else hits.value
            assert snippet.predict(logits, k, name) == (ids, answer.set.calibrated, rate)


@pytest.mark.parametrize("count", [1, 2])
def test_the_snippets_tell_unfamiliar_photos_as_the_server_does_by_logits(
    pipeline: Pipeline, count: int
) -> None:
    snippet, verdicts = Snippet(_mobile_files(pipeline)["pack.json"]), set[str]()
    for photo in (garden.photo(1), garden.DULL, garden.photo(5, blur=0.5, other=6)):
        outputs = [pipeline.outputs(each) for each in [garden.DULL, photo][-count:]]
        logits = {
            head: np.concatenate([each.logits[head] for each in outputs])
            for head in outputs[0].logits
        }
        verdict = judge(logits, IdentifyQuery(), pipeline.record).verdict
        assert snippet.is_unfamiliar(logits[pipeline.record.head]) == (verdict == "suspect")
        verdicts.add(verdict)
    assert verdicts == {"accepted", "suspect"}


def test_both_snippets_refuse_no_photos_and_read_the_rule_for_unfamiliar_ones(
    pipeline: Pipeline,
) -> None:
    files = _mobile_files(pipeline)
    kotlin, swift = files["Florilege.kt"].decode(), files["Florilege.swift"].decode()
    assert "require(photos.isNotEmpty())" in kotlin
    assert "guard !photos.isEmpty else { throw" in swift
    for key in ("rejection", "by_logits", "threshold", "score_kind", "method"):
        assert f'"{key}"' in kotlin
        assert re.sub("_(.)", lambda letter: letter[1].upper(), key) in swift


def test_the_usual_table_of_a_rule_is_marked(pipeline: Pipeline) -> None:
    pack = json.loads(_mobile_files(pipeline)["pack.json"])
    tables = [each for each in pack["calibration"]["tables"] if each["images"] == 1]
    plain = [each for each in tables if each["list"] is None and each["place"] is None]
    marked = {(each["rule"], each["guarantee"]): each["usual"] for each in plain}
    assert marked["average_k", None]
    assert marked["coverage", "mean"]
    assert sum(marked.values()) == len({rule for rule, _ in marked}) < len(marked)


def test_a_picture_from_a_formula_checks_an_app(pipeline: Pipeline) -> None:
    files = _mobile_files(pipeline)
    check, snippet = json.loads(files["check.json"]), Snippet(files["pack.json"])
    side = pipeline.bundle.preprocess.image_size
    assert _check_picture(side)[2, 3].tolist() == [(21 + 26 + 59 * c) % 256 for c in range(3)]
    logits = np.array([check["logits"]], dtype=np.float32)
    asked = [(one["region"], one["month"], one["list"], one["photos"]) for one in check["sets"]]
    places = ((None, None), ("south", None), ("south", 6))
    assert asked == [
        (*place, name, photos) for place, name, photos in product(places, (None, "heath"), (1, 2))
    ]
    sets = {tuple(one["set"]) for one in check["sets"] if one["list"] is None}
    assert len(sets) > 1  # so a place matters
    for one in check["sets"][:4]:
        photos = np.repeat(logits, one["photos"], axis=0)
        assert snippet.predict(photos, pipeline.record.default_k, one["list"])[0] == one["set"]
    assert [check["set_of_1"], check["set_of_2"]] == [one["set"] for one in check["sets"][:2]]
    assert snippet.is_unfamiliar(logits) is check["unfamiliar"]
    query, features = IdentifyQuery(none=True), np.array([check["features"]], dtype=np.float32)
    outputs = Outputs(logits={pipeline.record.head: logits}, features=features)
    answer = pipeline.decide([outputs], pipeline.planner.plan(query), "check").answer
    assert check["unfamiliar_by_features"] is (answer.rejection.verdict == "suspect")
    assert check["none_of_these"] is answer.set.none_of_these
    pack = json.loads(files["pack.json"])
    assert pack["features"] == "features"
    for kind in ("reference", "occurrences"):
        content = files[pack[kind]["path"]]
        assert pack[kind]["bytes"] == len(content)
        assert pack[kind]["sha256"] == hashlib.sha256(content).hexdigest()
    assert files["model.onnx"] == pipeline.bundle.read("model.onnx")
    assert {"Florilege.kt", "Florilege.swift", "README.md"} <= files.keys()
