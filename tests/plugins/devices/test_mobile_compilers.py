"""The snippets for apps themselves, compiled and run, where their compilers are installed.

``swiftc`` comes with Xcode or swiftlang, ``kotlinc`` with Kotlin. Kotlin also needs a jar of
``org.json``, which Android brings; its path is in the variable ``ORG_JSON``.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilege.models.session import Outputs
from florilege.plugins.devices.device_folders import _mobile_files
from florilege.server.answers.answer import judge
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import IdentifyQuery
from florilege.server.schemas import Answer
from tests.server import garden

LISTS = (None, "heath")
NEAREST = (1.0, 0.99)
"""Largest cosines to a training photo at which the set holds "none of these": always, and never."""
CELLS = {"north": "cell0.5_-45.5_0", "south": "cell0.5_40_-0.5", "nowhere": "cell0.5_1_2"}
"""The regions of the table as cells of a grid, and a place in each."""
POSITIONS = {"north": (-45.2, 0.3), "south": (40.0, -0.01), "nowhere": (1.2, 2.2)}
SWIFT = """
import Foundation

struct Question: Decodable {
    let logits: [[Float]], features: [[Float]]?, k: Double?, list: String?, region: String?
    let month: Int?, position: [Double]?
}
let folder = URL(fileURLWithPath: CommandLine.arguments[1])
let read = { (name: String) in try Data(contentsOf: folder.appendingPathComponent(name)) }
let model = try Florilege(pack: read("pack.json"), open: read)
for question in try JSONDecoder().decode([Question].self, from: read("questions.json")) {
    do {
        let here = question.position.map { model.region(latitude: $0[0], longitude: $0[1])! }
        let region = here ?? question.region
        let place = region.map { Place(region: $0, month: question.month ?? 0) }
        let set = try model.predict(
            question.logits, k: question.k, list: question.list, features: question.features,
            place: place)
        let ids = set.classes.map { model.classes[$0].id }
        let words: [Any?] = [
            set.calibrated, set.shownHitRate, set.unfamiliar, set.noneOfThese, set.placeUsed]
        let recorded = set.inRange.map { $0 == nil ? "-" : $0! ? "1" : "0" }
        print(ids.joined(separator: ","), terminator: " ")
        print(words.map { $0.map { "\\($0)" } ?? "null" }.joined(separator: " "), terminator: " ")
        print(recorded.joined())
    } catch { print("refused") }
}
"""
KOTLIN = """
import org.json.JSONArray
import org.json.JSONObject
import java.io.File

fun rows(question: JSONObject, key: String): List<FloatArray>? {
    val rows = question.optJSONArray(key) ?: return null
    return (0 until rows.length()).map { row ->
        val values = rows.getJSONArray(row)
        FloatArray(values.length()) { values.getDouble(it).toFloat() }
    }
}

fun main(args: Array<String>) {
    val model = Florilege(File(args[0], "pack.json").readText()) { File(args[0], it).readBytes() }
    val questions = JSONArray(File(args[0], "questions.json").readText())
    for (at in 0 until questions.length()) {
        val question = questions.getJSONObject(at)
        val list = if (question.isNull("list")) null else question.getString("list")
        val corner = question.optJSONArray("position")
        val region = if (corner != null) model.regionAt(corner.getDouble(0), corner.getDouble(1))
        else if (question.isNull("region")) null else question.getString("region")
        val place = region?.let { Place(it, question.optInt("month", 0)) }
        val (photos, features) = rows(question, "logits")!! to rows(question, "features")
        try {
            val set = if (!question.isNull("k"))
                model.predict(photos, question.getDouble("k"), list, features, place)
            else model.predict(photos, list = list, features = features, place = place)
            val ids = set.classes.joinToString(",") { model.classIds[it] }
            val recorded = set.inRange.joinToString("") { it?.compareTo(false)?.toString() ?: "-" }
            val verdicts = listOf(set.unfamiliar, set.noneOfThese, set.placeUsed).joinToString(" ")
            println("$ids ${set.calibrated} ${set.shownHitRate} $verdicts $recorded")
        } catch (error: IllegalArgumentException) { println("refused") }
    }
}
"""


def _swift(folder: Path) -> list[str]:
    """Compile the Swift snippet with a program around it, and return the command that runs it."""
    if shutil.which("swiftc") is None:
        pytest.skip("swiftc is not installed")
    (folder / "main.swift").write_text(SWIFT)
    sources = [str(folder / "main.swift"), str(folder / "Florilege.swift")]
    subprocess.run(["swiftc", *sources, "-o", str(folder / "app")], check=True)
    return [str(folder / "app")]


def _kotlin(folder: Path) -> list[str]:
    """The same for Kotlin."""
    library = os.environ.get("ORG_JSON", "")
    if shutil.which("kotlinc") is None or not Path(library).is_file():
        pytest.skip("kotlinc or org.json is not installed")
    (folder / "Main.kt").write_text(KOTLIN)
    sources = [str(folder / "Main.kt"), str(folder / "Florilege.kt")]
    app = str(folder / "app.jar")
    options = ["-Werror", "-classpath", library, "-include-runtime", "-d", app]
    subprocess.run(["kotlinc", *sources, *options], check=True)
    return ["java", "-cp", f"{app}{os.pathsep}{library}", "MainKt"]


def _questions(pipeline: Pipeline, nearest: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Photos, sizes, lists and places, with the line that the server's answer would print."""
    questions, lines = list[dict[str, Any]](), list[str]()
    shown = (garden.photo(1), garden.photo(2), garden.photo(5, blur=0.5, other=6), garden.DULL)
    outputs = [pipeline.outputs(photo) for photo in shown]
    places: tuple[dict[str, Any], ...] = ({}, {"region": "north"}, {"region": "north", "month": 12})
    places += ({"region": "south", "month": 1}, {"region": "nowhere", "month": 5})
    groups, sizes, lists = (outputs[:1], outputs[:2], outputs[:3], outputs[3:]), (None, 1.0), LISTS
    for group, k, name, place in product(groups, sizes, lists, places):
        for with_features in (True, False):
            query = {"list": name, "k": k, **place}
            plan = pipeline.planner.plan(IdentifyQuery.model_validate(query))
            answer = pipeline.decide(group, plan, "app").answer
            where = _where(place, by_position=k is None)
            question = _question(pipeline, group, with_features=with_features)
            questions.append(question | query | where)
            line = _line(pipeline, group, answer, nearest if with_features else None)
            lines.append(line)
    plain = _question(pipeline, outputs[:1], with_features=True)
    refused: list[dict[str, Any]] = [
        {"logits": []},
        {"logits": [[1.0]]},
        {"features": [[1.0]]},
        {"features": []},
        {"k": 0.37},
        {"list": "no such list"},
        {"region": CELLS["north"], "month": 13},
    ]
    questions += [plain | wrong for wrong in refused]
    return questions, [*lines, *("refused" for _ in refused)]


def _where(place: dict[str, Any], *, by_position: bool) -> dict[str, Any]:
    """The place of a question: a region, or a position in it."""
    region = place.get("region")
    if region is None:
        return {}
    position = POSITIONS[region] if by_position else None
    return {"region": None if position else CELLS[region], "position": position}


def _question(
    pipeline: Pipeline, group: Sequence[Outputs], *, with_features: bool
) -> dict[str, Any]:
    rows = [one.logits[pipeline.record.head][0].tolist() for one in group]
    features = [one.features[0].tolist() for one in group if one.features is not None]
    return {"logits": rows, "features": features if with_features else None}


def _line(
    pipeline: Pipeline, group: Sequence[Outputs], answer: Answer, nearest: float | None
) -> str:
    """What the snippets print of an answer, for this threshold of "none of these".

    Without one, as without features, they know less of strangers.
    """
    head, verdict = pipeline.record.head, answer.rejection.verdict
    if nearest is None:
        none, logits = None, {head: np.concatenate([one.logits[head] for one in group])}
        verdict = judge(logits, IdentifyQuery(), pipeline.record).verdict
    else:
        none = _none_of_these(pipeline, group, nearest)
    unfamiliar, rate = verdict == "suspect", answer.set.hit_rate
    shown = "null" if unfamiliar or rate is None else repr(rate.value)
    everything = pipeline.planner.plan(
        IdentifyQuery(region=answer.query.region, month=answer.query.month)
    ).effect
    recorded = everything.in_range or [None] * len(pipeline.bundle.classes)
    used = everything.lift is not None
    ids = ",".join(result.class_id for result in answer.results)
    words = [answer.set.calibrated, shown, unfamiliar, "null" if none is None else none, used]
    bits = "".join("-" if value is None else str(int(value)) for value in recorded)
    return " ".join([ids, *map(str, words), bits]).lower()


def _none_of_these(pipeline: Pipeline, group: Sequence[Outputs], nearest: float) -> bool | None:
    """What the server would say with this threshold."""
    rule = pipeline.record.rejection
    assert rule is not None
    unseen = (replace(rule.unseen[0], threshold=nearest),)
    features = np.concatenate([one.features for one in group if one.features is not None])
    return replace(rule, unseen=unseen).none_of_these(features, pipeline.reference, None)


@pytest.mark.parametrize("compiler", [_swift, _kotlin])
def test_a_compiled_snippet_gives_the_sets_of_the_server(
    pipeline: Pipeline, tmp_path: Path, compiler: Any
) -> None:
    for name, content in _mobile_files(pipeline).items():
        (tmp_path / name).write_bytes(content)
    pack = json.loads((tmp_path / "pack.json").read_text())
    cells = [CELLS[name] for name in pack["occurrences"]["regions"]]
    pack["occurrences"] |= {"regions": cells, "cell_degrees": 0.5}
    command: Sequence[str] = compiler(tmp_path)
    words = list[list[str]]()
    for nearest in NEAREST:
        pack["calibration"]["rejection"]["unseen"][0]["threshold"] = nearest
        (tmp_path / "pack.json").write_text(json.dumps(pack))
        questions, expected = _questions(pipeline, nearest)
        (tmp_path / "questions.json").write_text(json.dumps(questions))
        output = subprocess.check_output([*command, str(tmp_path)], text=True)
        assert output.lower().splitlines() == expected
        words += [line.split() for line in expected if line != "refused"]
    verdicts = [{line[column] for line in words} for column in (3, 4, 5)]
    assert verdicts == [{"true", "false"}, {"true", "false", "null"}, {"true", "false"}]
