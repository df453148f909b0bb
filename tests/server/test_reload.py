"""Reload the bundle and keys while requests are being answered."""

import gc
import http.client
import json
import logging
import os
import shutil
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.calibration.view import PLAIN, Setting
from florilege.models.bundle import open_bundle, replace_files
from florilege.models.classes import ClassTable
from florilege.models.regions import Occurrences
from florilege.server import serve
from florilege.server.answers.class_list import TaxonTable
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.plan import ClassLists, Planner
from florilege.server.answers.query import IdentifyQuery
from florilege.server.serve import _WatchedFiles
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.answers import answer_by_hand
from tests.server.background.feedback_rows import words
from tests.server.gate import Gate
from tests.server.http.test_api_keys import bearer, line
from tests.server.metric_values import value
from tests.server.server_process import ServeProcess
from tests.server.server_thread import NO_TLS, Running, wait_for
from tests.server.test_places import grown
from tests.server.test_serve import ask, metrics

PHOTO = garden.photo(0)
LISTS = ("/v1/classes", "/v2/species")


def recalibrated(path: Path, calibration_id: str, **changes: Any) -> None:
    record = read_record(open_bundle(path))
    record = replace(record, calibration_id=calibration_id, **changes)
    replace_files(path, {"calibration.json": record.to_json().encode()})


def reload(running: Running) -> None:
    """Signal the server, and wait until it has reloaded the bundle."""
    before = outcomes(running)
    running.app.state.reloader.request_reload()
    wait_for(lambda: outcomes(running) != before)


def outcomes(running: Running) -> dict[str, float]:
    names = ("swapped", "unchanged", "refused")
    return {n: value(running.engine.metrics, "reloads_total", outcome=n) or 0.0 for n in names}


def get(running: Running, path: str, key: str) -> tuple[int, Any]:
    """The status and the document that a holder of a key gets."""
    status, _, document = running.ask("GET", path, headers=bearer(key))
    return status, document


def identify(running: Running, query: str = "") -> tuple[int, Any]:
    return ask(running.port, f"/v1/identify{query}", PHOTO)


def test_sighup_swaps_under_load_without_losing_a_request(served: Path) -> None:
    with ServeProcess(served, "--threads", "2") as process:
        first = ask(process.port, body=PHOTO)[1]["model"]["calibration_id"]
        outcome = threading.Event()

        def keep_asking(_: int) -> list[tuple[int, str]]:
            answers = []
            connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=20)
            while not outcome.is_set():
                connection.request("POST", "/v1/identify", PHOTO)
                response = connection.getresponse()
                answers.append(
                    (response.status, json.loads(response.read())["model"]["calibration_id"])
                )
            connection.close()
            return answers

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(keep_asking, number) for number in range(4)]
            recalibrated(served, "second")
            process.process.send_signal(signal.SIGHUP)
            process.process.send_signal(signal.SIGHUP)  # two at once
            wait_for(lambda: 'calibration_id="second"' in metrics(process.port))
            time.sleep(0.1)
            outcome.set()
            answers = [one for each in asking for one in each.result()]
        assert {status for status, _ in answers} == {200}
        assert {calibration for _, calibration in answers} == {first, "second"}
        assert f'calibration_id="{first}"' not in metrics(process.port)
        assert ask(process.port, "/v1/model", None)[1]["model"]["calibration_id"] == "second"
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(20) == 0


def test_workers_open_a_bundle_one_after_the_other(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one of them needs memory for two."""
    steps, original = list[str](), serve.pipeline_of

    @contextmanager
    def lock(name: str) -> Iterator[None]:
        steps.append(f"lock {name}")
        yield
        steps.append("unlock")

    def opened(*arguments: Any) -> Pipeline:
        steps.append("open")
        return original(*arguments)

    with Running(served) as running:
        monkeypatch.setattr(serve, "pipeline_of", opened)
        running.engine.group = SimpleNamespace(lock=lock)
        reload(running)
    assert steps == ["lock reload", "open", "unlock"]


def test_a_request_under_way_is_answered_by_the_bundle_it_came_to(
    served: Path, tmp_path: Path
) -> None:
    store, logged = tmp_path / "store", tmp_path / "log"
    with (
        Running(
            served, threads=1, feedback_store=store, feedback_photos=True, score_log=logged
        ) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        gate = running.engine.pipeline = Gate(running.engine.pipeline)
        first = gate.model.calibration_id
        early = pool.submit(identify, running)
        wait_for(lambda: len(gate.entered) == 1)
        recalibrated(served, "second")
        reload(running)
        assert outcomes(running) == {"swapped": 1.0, "unchanged": 0.0, "refused": 0.0}
        gate.opened.set()
        old, new = early.result()[1], identify(running)[1]
        assert [one["model"]["calibration_id"] for one in (old, new)] == [first, "second"]
        for answer in (old, new):  # feedback names the calibration that answered
            about = {"request_id": answer["id"], "class_id": "1001", "consent": True}
            typed, content = {"Content-Type": "application/json"}, json.dumps(about).encode()
            status, _, receipt = running.ask("POST", "/v1/feedback", content, typed)
            assert (status, receipt["photos"]) == (202, 1)
        metric = "score_log_photos_total"
        wait_for(lambda: value(running.engine.metrics, metric, outcome="written") == 1)
    assert [row["calibration_id"] for row in words(store)] == [first, "second"]


def test_a_bundle_that_cannot_be_served_changes_nothing(
    served: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Running(served) as running:
        replace_files(served, {}, without=["calibration.json"])
        reload(running)
        assert "keeping garden 2026.11: " in caplog.text
        assert "florilege calibrate" in caplog.text
        assert identify(running)[0] == 200
        (served / "model.onnx").write_bytes(b"broken")
        reload(running)
        shutil.rmtree(served)
        reload(running)
        assert outcomes(running)["refused"] == 3
        assert identify(running)[0] == 200


def test_a_bundle_of_other_classes_is_served_and_the_log_says_so(
    served: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Running(served, plantnet=True) as running:
        for path in LISTS:
            assert '"other"' not in httpx.get(running.url + path, verify=NO_TLS).text
        table = open_bundle(served).classes
        renamed = ClassTable((replace(table[0], id="other"), *table.items[1:]))
        replace_files(served, {"classes.json": renamed.to_json().encode()})
        reload(running)
        assert "classes: 1 added, 1 removed" in caplog.text
        assert ask(running.port, "/v1/classes/other", None)[0] == 200
        for path in LISTS:  # nothing of the old bundle is cached
            assert '"other"' in httpx.get(running.url + path, verify=NO_TLS).text


def test_a_replaced_bundle_leaves_no_part_of_it_behind(tmp_path: Path) -> None:
    served = grown(tmp_path)
    with Running(served) as running:
        old = list[weakref.ref[Any]]()
        for number in range(3):
            pipeline = running.engine.pipeline
            assert identify(running, "?region=north&month=6&lang=de")[0] == 200
            assert ask(running.port, "/v1/classes", None)[0] == 200
            point = pipeline.record.point(PLAIN, Setting.of("average_k", 3))
            planner = pipeline.planner
            parts = (planner, planner.occurrences, pipeline.taxa, pipeline.session, point, pipeline)
            old += map(weakref.ref, (*parts, pipeline.record, pipeline.bundle.classes))
            del pipeline, planner, parts, point
            recalibrated(served, f"number {number}")
            reload(running)
        gc.collect()  # of errors and tasks, in cycles
        wait_for(lambda: not [each() for each in old if each() is not None])


def test_caches_of_a_bundle_are_in_no_cycle(record: CalibrationRecord) -> None:
    """Else those of the first bundle, which a server freezes, would stay for ever."""
    gc.disable()
    try:
        table = TaxonTable(answer_by_hand.TABLE)
        table.entry(answer_by_hand.TABLE.ids[0], ["en"])
        occurrences = Occurrences.of(["north"], [6], [0], [1.0], classes=2)
        lists = ClassLists.of(answer_by_hand.TABLE, record)
        planner = Planner(record=record, lists=lists, occurrences=occurrences)
        planner.plan(IdentifyQuery(region="north", month=6))
        caches = [weakref.ref(each) for each in (table, planner, occurrences)]
        del table, planner, occurrences
        assert [each() for each in caches] == [None] * 3
    finally:
        gc.enable()


def test_a_changed_path_is_noticed_by_polling(served: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(served, tmp_path / "other"))
    recalibrated(other, "second")
    current = tmp_path / "current"
    current.symlink_to(served)
    with Running(current, reload_every_s=0.05) as running:
        time.sleep(0.2)
        assert sum(outcomes(running).values()) == 0  # nothing has changed yet
        (tmp_path / "next").symlink_to(other)
        (tmp_path / "next").replace(current)
        wait_for(lambda: running.engine.pipeline.model.calibration_id == "second")
        current.unlink()  # a moment without a bundle is no reason to complain
        time.sleep(0.2)
        assert outcomes(running) == {"swapped": 1.0, "unchanged": 0.0, "refused": 0.0}


def test_a_bundle_that_is_being_copied_is_served_when_it_is_complete(
    served: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(served, tmp_path / "other"))
    recalibrated(other, "second")
    replace_files(other, {"MODEL_CARD.md": b"new"})

    def copy(name: str) -> None:
        shutil.copy(other / name, tmp_path / name)
        (tmp_path / name).replace(served / name)  # so a slow machine sees no half of it

    with Running(served, reload_every_s=0.05) as running:
        copy("bundle.json")  # and then the copying stops for a while
        wait_for(lambda: outcomes(running)["refused"] == 1)
        time.sleep(0.3)
        assert outcomes(running)["refused"] == 1  # not once for every look
        copy("MODEL_CARD.md")
        wait_for(lambda: outcomes(running)["refused"] == 2)
        copy("calibration.json")
        wait_for(lambda: outcomes(running)["swapped"] == 1)
        assert running.engine.pipeline.model.calibration_id == "second"
        assert outcomes(running)["refused"] == 2


def test_files_that_still_change_are_left_alone(served: Path) -> None:
    watched = _WatchedFiles(Settings(bundle=served))
    assert not watched.have_changed()
    for size in range(3):  # a copy under way
        (served / "model.onnx").write_bytes(bytes(size))
        assert not watched.have_changed()
    assert watched.have_changed()
    assert watched.have_changed()  # until it is read
    watched.remember()
    assert not watched.have_changed()
    manifest = (served / "bundle.json").read_bytes()
    (served / "bundle.json").write_bytes(manifest[:40])
    (served / "model.onnx").unlink()
    assert [watched.have_changed() for _ in range(2)] == [False, True]
    watched.remember()
    (served / "model.onnx").write_bytes(b"")  # watched although `bundle.json` is damaged
    assert [watched.have_changed() for _ in range(2)] == [False, True]
    content = json.loads(manifest)
    content["files"]["more.json"] = "0" * 64
    (served / "bundle.json").write_text(json.dumps(content))
    watched.remember()
    (served / "more.json").write_text("{}")  # named by the new `bundle.json`
    assert [watched.have_changed() for _ in range(2)] == [False, True]


def test_a_missing_file_is_no_change(served: Path, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "here").write_text("1001")
    (tmp_path / "keys").write_text("")
    settings = Settings(
        bundle=served,
        keys_file=tmp_path / "keys",
        lists=(str(tmp_path / "lists"), f"x={tmp_path / 'lists' / 'here'}"),
    )
    watched = _WatchedFiles(settings)
    names = (served / "bundle.json", tmp_path / "keys", tmp_path / "lists" / "here")
    for path in (*names, tmp_path / "lists", served):
        path.rename(tmp_path / "away")
        assert [watched.have_changed() for _ in range(2)] == [False, False]
        (tmp_path / "away").rename(path)
        assert [watched.have_changed() for _ in range(2)] == [False, False]


def test_a_list_that_comes_to_a_folder_or_goes_is_noticed_by_polling(
    served: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "here").write_text("1001\n1002\n")
    with Running(served, lists=(str(folder),), reload_every_s=0.05) as running:

        def lists() -> list[str]:
            return [each["name"] for each in ask(running.port, "/v1/model", None)[1]["lists"]]

        assert lists() == ["here"]
        (folder / "there").write_text("1003\n")
        wait_for(lambda: lists() == ["here", "there"])
        (folder / "here").unlink()
        wait_for(lambda: lists() == ["there"])
        wait_for(lambda: outcomes(running)["swapped"] == 2)
        assert outcomes(running)["refused"] == 0


def test_sighup_reads_the_keys_again_and_a_bad_file_leaves_the_old_ones(
    served: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text(line("a", "k1"))
    with Running(served, keys_file=path) as running:
        assert [get(running, "/v1/model", key)[0] for key in ("k1", "k2")] == [200, 403]
        path.write_text(line("a", "k2"))
        reload(running)
        assert [get(running, "/v1/model", key)[0] for key in ("k1", "k2")] == [403, 200]
        path.write_text("nonsense")
        running.app.state.reloader.request_reload()
        wait_for(lambda: "keeping the current keys" in caplog.text)
        assert [get(running, "/v1/model", key)[0] for key in ("k1", "k2")] == [403, 200]


@pytest.mark.parametrize("stalls", [False, True], ids=["nobody writes", "its writer stalls"])
def test_a_pipe_in_place_of_keys_or_a_list_keeps_nobody_waiting(
    stalls: bool,
    served: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the next reload either, nor the end of the server."""
    monkeypatch.setattr("florilege.server.serve._PIPE_WAIT_S", 0.02)
    keys, listed = tmp_path / "keys", tmp_path / "here"
    keys.write_text(line("a", "k1"))
    listed.write_text("1001\n1002\n")
    with (
        Running(served, keys_file=keys, lists=(f"here={listed}",)) as running,
        ExitStack() as open_,
    ):
        for path, refusal in ((keys, "keeping the current keys"), (listed, "keeping garden")):
            path.unlink()
            os.mkfifo(path)
            if stalls:
                open_.callback(os.close, os.open(path, os.O_RDWR))
            reload(running)
            assert refusal in caplog.text
            assert ("its writer has not ended it" in caplog.text) == stalls
            assert get(running, "/v1/model", "k1")[1]["lists"][0]["classes"] == 2
    assert outcomes(running) == {"swapped": 0, "unchanged": 1, "refused": 1}


def test_changed_keys_and_lists_are_noticed_by_polling(served: Path, tmp_path: Path) -> None:
    keys, listed = tmp_path / "keys", tmp_path / "here"
    keys.write_text(line("a", "k1") + line("b", "k2"))
    listed.write_text("1001\n1002\n")
    with Running(served, keys_file=keys, lists=(f"here={listed}",), reload_every_s=0.05) as running:
        assert get(running, "/v1/model", "k2")[0] == 200
        keys.write_text(line("a", "k1"))  # b is revoked
        wait_for(lambda: get(running, "/v1/model", "k2")[0] == 403)
        session, model = running.engine.pipeline.session, running.engine.pipeline.model
        listed.write_text("1003\n1004\n1005\n")
        wait_for(lambda: get(running, "/v1/model", "k1")[1]["lists"][0]["classes"] == 3)
        path = "/v1/identify?list=here&include=scores"
        answer = running.ask("POST", path, PHOTO, bearer("k1"))[2]
        assert {each["class_id"] for each in answer["results"]} == {"1003", "1004", "1005"}
        assert (running.engine.pipeline.session, running.engine.pipeline.model) == (session, model)
        listed.write_text("9999\n")  # no class: what was there stays
        wait_for(lambda: outcomes(running)["refused"] == 1)
        assert get(running, "/v1/model", "k1")[1]["lists"][0]["classes"] == 3


def test_sighup_reads_a_changed_list_again_although_the_bundle_is_the_same(
    served: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    closed = list[Pipeline]()
    monkeypatch.setattr(Pipeline, "close", lambda pipeline: closed.append(pipeline))
    listed = tmp_path / "here"
    listed.write_text("1001\n1002\n")
    with Running(served, lists=(str(listed),)) as running:
        pipeline = running.engine.pipeline
        reload(running)
        assert outcomes(running)["unchanged"] == 1
        assert running.engine.pipeline is pipeline
        assert [each is pipeline for each in closed] == [False]
        listed.write_text("1003\n")
        reload(running)
        assert outcomes(running)["swapped"] == 1
        assert "its lists have changed" in caplog.text
        answer = identify(running, "?list=here&include=scores")[1]
        assert [each["class_id"] for each in answer["results"]] == ["1003"]
