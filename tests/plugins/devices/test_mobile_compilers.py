"""The snippets for apps themselves, compiled and run, where their compilers are installed.

``swiftc`` comes with Xcode or swiftlang, ``kotlinc`` with Kotlin. Kotlin also needs a jar of
``org.json``, which Android brings; its path is in the variable ``ORG_JSON``.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilege.plugins.devices.mobile_folder import mobile_files
from florilege.server.answers.answer import judge
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import IdentifyQuery
from tests.server import garden

SWIFT = """
import Foundation

struct Question: Decodable { let logits: [[Float]], k: Double?, list: String? }
let folder = URL(fileURLWithPath: CommandLine.arguments[1])
let model = try Florilege(pack: Data(contentsOf: folder.appendingPathComponent("pack.json")))
let questions = try JSONDecoder().decode(
    [Question].self, from: Data(contentsOf: folder.appendingPathComponent("questions.json")))
for question in questions {
    do {
        let set = try model.predict(question.logits, k: question.k, list: question.list)
        let ids = set.classes.map { model.classes[$0].id }
        let rate = set.shownHitRate.map { String($0) } ?? "null"
        let unfamiliar = set.unfamiliar.map { String($0) } ?? "null"
        print(ids.joined(separator: ","), set.calibrated, rate, unfamiliar, separator: " ")
    } catch { print("refused") }
}
"""
KOTLIN = """
import org.json.JSONArray
import java.io.File

fun main(args: Array<String>) {
    val model = Florilege(File(args[0], "pack.json").readText())
    val questions = JSONArray(File(args[0], "questions.json").readText())
    for (at in 0 until questions.length()) {
        val question = questions.getJSONObject(at)
        val rows = question.getJSONArray("logits")
        val photos = (0 until rows.length()).map { row ->
            val values = rows.getJSONArray(row)
            FloatArray(values.length()) { values.getDouble(it).toFloat() }
        }
        val list = if (question.isNull("list")) null else question.getString("list")
        try {
            val set = if (question.isNull("k")) model.predict(photos, list = list)
            else model.predict(photos, question.getDouble("k"), list)
            val ids = set.classes.joinToString(",") { model.classIds[it] }
            println("$ids ${set.calibrated} ${set.shownHitRate} ${set.unfamiliar}")
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


def _questions(pipeline: Pipeline) -> tuple[list[dict[str, Any]], list[str]]:
    """Photos, sizes and lists, with the line that the server's answer would print."""
    questions, lines = list[dict[str, Any]](), list[str]()
    shown = (garden.photo(1), garden.photo(2), garden.photo(5, blur=0.5, other=6), garden.DULL)
    outputs = [pipeline.outputs(photo) for photo in shown]
    head = pipeline.record.head
    for group in (outputs[:1], outputs[:2], outputs[:3], outputs[3:]):
        rows = [one.logits[head][0].tolist() for one in group]
        logits = {name: np.concatenate([one.logits[name] for one in group]) for name in (head,)}
        verdict = judge(logits, IdentifyQuery(), pipeline.record).verdict
        for k in (None, 1.0, 3.0):
            for name in (None, "heath"):
                query = IdentifyQuery.model_validate({"list": name, "k": k})
                answer = pipeline.decide(group, pipeline.plan(query), "app").answer
                ids = ",".join(result.class_id for result in answer.results)
                calibrated, unfamiliar = answer.set.calibrated, verdict == "suspect"
                questions.append({"logits": rows, "k": k, "list": name})
                lines.append(f"{ids} {calibrated} {unfamiliar}".lower())
    refused: list[dict[str, Any]] = [
        {"logits": []},
        {"logits": [[1.0]]},
        {"k": 0.37},
        {"list": "no such list"},
    ]
    for wrong in refused:
        questions.append({"logits": rows, "k": None, "list": None} | wrong)
        lines.append("refused")
    return questions, lines


@pytest.mark.parametrize("compiler", [_swift, _kotlin])
def test_a_compiled_snippet_gives_the_sets_of_the_server(
    pipeline: Pipeline, tmp_path: Path, compiler: Any
) -> None:
    for name, content in mobile_files(pipeline).items():
        (tmp_path / name).write_bytes(content)
    questions, expected = _questions(pipeline)
    (tmp_path / "questions.json").write_text(json.dumps(questions))
    command: Sequence[str] = compiler(tmp_path)
    output = subprocess.check_output([*command, str(tmp_path)], text=True)
    lines = [line.split() for line in output.lower().splitlines()]
    assert [" ".join(words[:2] + words[3:]) for words in lines] == expected
    assert all(words[2] == "null" for words in lines if words[-1] == "true")
    assert {words[-1] for words in lines} == {"true", "false", "refused"}
