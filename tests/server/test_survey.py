"""`POST /v1/survey`: each tile is answered as a photo of its own, and others wait for one alone."""

import json
import struct
import threading
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from florilege.models.session import Session
from florilege.server.answers.plot import Box, Plot
from florilege.server.http.request import UploadBudget
from florilege.server.problems import Problem
from tests.models.pictures import chunk
from tests.server import garden
from tests.server.http_client import identify, open_client
from tests.server.server_thread import Running, wait_for
from tests.server.test_problems import check

SIDE = 48
TILES = "/v1/survey?tile_size=48"
HUGE = garden.encoded(np.zeros((1500, 1500, 3), np.uint8))


def mosaic(*indices: int, rows: int = 1, dull: int = 0) -> np.ndarray:
    """Pixels of flowers in a grid, ``dull`` cells of no flower first."""
    cells = dull * [np.array([0.72, 0.42, 0.38])] + [garden.COLOURS[at] for at in indices]
    pictures = [garden.pixels(colour, side=SIDE, seed=at) for at, colour in enumerate(cells)]
    width = len(pictures) // rows
    return np.vstack([np.hstack(pictures[at * width : (at + 1) * width]) for at in range(rows)])


def survey(client: TestClient, array: np.ndarray, path: str = TILES, **form: Any) -> dict[str, Any]:
    response = client.post(path, content=garden.encoded(array, **form))
    assert response.status_code == 200, response.text
    return dict(response.json())


@pytest.mark.parametrize("query", ["", "&k=3", "&only=Rosa,Viola&lang=fr", "&rule=top_k&k=2"])
def test_results_are_those_of_each_tile_sent_alone(client: TestClient, query: str) -> None:
    array = mosaic(2, 5, 5, 7, dull=1)[:, : 4 * SIDE + 30]
    result = survey(client, array, f"{TILES}&tile_stride=30{query}")
    lefts = [*range(0, array.shape[1] - SIDE, 30), array.shape[1] - SIDE]
    alone = [
        client.post(
            f"/v1/identify?reject=true{query}" + "&k=1" * ("k=" not in query),
            content=garden.encoded(array[:, left : left + SIDE]),
        ).json()
        for left in lefts
    ]
    tiles = Counter(each["class_id"] for answer in alone for each in answer["results"])
    best = {
        id_: max(
            (each["score"], -left)
            for left, answer in zip(lefts, alone, strict=True)
            for each in answer["results"]
            if each["class_id"] == id_
        )
        for id_ in tiles
    }
    taxa = {each["class_id"]: each["taxon"] for answer in alone for each in answer["results"]}
    order = sorted(tiles, key=lambda id_: (-tiles[id_], -best[id_][0]))
    assert [each["class_id"] for each in result["results"]] == order
    for rank, each in enumerate(result["results"], 1):
        id_ = each["class_id"]
        assert (each["rank"], each["tiles"], each["score"]) == (rank, tiles[id_], best[id_][0])
        assert each["box"] == [-best[id_][1], 0, SIDE - best[id_][1], SIDE]
        assert each["taxon"] == taxa[id_]
    unfamiliar = sum(answer["rejection"]["verdict"] == "rejected" for answer in alone)
    assert 0 < unfamiliar < len(lefts)
    about = result["tiles"]
    assert (about["total"], about["unfamiliar"]) == (len(lefts), unfamiliar)
    used = next(a for a in alone if a["rejection"]["verdict"] == "accepted")
    names = ("calibrated", "expected_size", "hit_rate", "statement")
    assert [about[name] for name in names] == [used["set"][name] for name in names]


def test_no_figure_is_given_for_the_list_of_a_plot(client: TestClient) -> None:
    array = mosaic(0, 1, 2, 3, 4, 5, rows=2)
    result = survey(client, array)
    whole = identify(client, garden.photo(0))
    assert set(result) == {*whole, "tiles"}
    figures = ("calibrated", "guaranteed", "expected_size", "hit_rate", "statement")
    assert [result["set"][name] for name in figures] == [False, False, None, None, None]
    assert result["set"]["size"] == len(result["results"]) >= 6
    assert result["tiles"]["total"] == 15  # 5 x 3, half a tile apart
    about = result["tiles"]
    wrong = (15 - about["unfamiliar"]) * (
        about["expected_size"]["value"] - about["hit_rate"]["value"]
    )
    assert f" {wrong:.0f} of the" in result["warnings"][-1]["detail"]
    for query in (TILES, f"{TILES}&k=3"):  # whole sets are counted, however little is shown
        whole, cut = survey(client, array, query), survey(client, array, f"{query}&max_results=1")
        assert cut["results"] == whole["results"][:1]
        assert cut["set"] == {**whole["set"], "truncated": True}


def test_names_are_in_the_language_that_the_client_accepts(client: TestClient) -> None:
    content, headers = garden.encoded(mosaic(1)), {"Accept-Language": "xx;q=0.1, fr"}
    assert client.post(TILES, content=content, headers=headers).json()["query"]["lang"] == "fr"


@pytest.mark.parametrize(("max_tiles", "status"), [(7, 200), (6, 422)])
def test_a_photo_may_have_as_many_tiles_as_allowed(
    bundle: Path, max_tiles: int, status: int
) -> None:
    with open_client(bundle, max_tiles=max_tiles) as client:
        assert client.post(TILES, content=PLOT).status_code == status


def test_boxes_are_those_of_the_upright_photo(client: TestClient) -> None:
    array = mosaic(3, 3, 3, 8)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    plain, turned = survey(client, array), survey(client, array, exif=exif.tobytes())
    boxes = [{r["class_id"]: r["box"] for r in each["results"]} for each in (plain, turned)]
    left, _, right, _ = boxes[0]["1009"]
    assert boxes[1]["1009"] == [0, left, SIDE, right]


@pytest.mark.parametrize(
    ("array", "size", "total", "codes"),
    [
        (mosaic(1), 48, 1, ["plot_not_calibrated"]),
        (mosaic(1), 500, 1, ["plot_not_calibrated", "tiles_reduced"]),
        (mosaic(1, 2, 3), 500, 3, ["plot_not_calibrated", "tiles_reduced"]),
        (mosaic(dull=1), 48, 1, ["plot_not_calibrated"]),
    ],
)
def test_a_small_photo_has_small_tiles_and_an_unfamiliar_one_none(
    client: TestClient, array: np.ndarray, size: int, total: int, codes: list[str]
) -> None:
    result = survey(client, array, f"/v1/survey?tile_size={size}")
    assert (result["tiles"]["total"], result["tiles"]["size"]) == (total, SIDE)
    assert [each["code"] for each in result["warnings"]] == codes
    if result["tiles"]["unfamiliar"]:
        assert (result["results"], result["rejection"]["verdict"]) == ([], "rejected")
        assert (result["best_match"], result["tiles"]["hit_rate"]) == (None, None)


@pytest.mark.parametrize(
    ("query", "content", "status", "code"),
    [
        ("tile_size=31", garden.photo(1), 400, "invalid_parameter"),
        ("tile_stride=15", garden.photo(1), 400, "invalid_parameter"),
        ("include=scores", garden.photo(1), 400, "unknown_parameter"),
        ("k=2.71828", b"<html>", 422, "not_calibrated"),  # before it is read
        ("tile_size=32", garden.encoded(np.zeros((700, 700, 3), np.uint8)), 422, "too_many_tiles"),
        ("", HUGE, 413, "image_too_large"),
        ("tile_size=32", HUGE, 413, "image_too_large"),
        ("", garden.photo(1)[:200], 422, "image_unreadable"),
        ("", b"<html>", 415, "unsupported_image_type"),
        ("", b"", 422, "wrong_number_of_images"),
    ],
)
def test_what_cannot_be_surveyed_is_refused(
    client: TestClient, query: str, content: bytes, status: int, code: str
) -> None:
    check(client.post(f"/v1/survey?{query}", content=content), status, code)


def test_a_header_of_many_pixels_takes_no_memory(client: TestClient) -> None:
    header = struct.pack(">IIBBBBB", 30_000_000, 64, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IEND", b"")
    address = "/v1/survey?tile_size=32&tile_stride=16"
    client.post(address, content=b"\xff\xd8\xff")
    tracemalloc.start()
    try:
        check(client.post(address, content=content), 413, "image_too_large")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_several_photos_are_refused(client: TestClient) -> None:
    files = [("images", ("a", garden.photo(1)))] * 2
    document = check(client.post("/v1/survey", files=files), 422, "wrong_number_of_images")
    assert document["limit"] == 1


class Slow:
    """Tiles that wait until a test lets each go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.begun = threading.Semaphore(0), 0
        answer_tile = Plot.answer_tile

        def wait(plot: Plot, box: Box) -> Any:
            self.begun += 1
            assert self.go.acquire(timeout=20)
            return answer_tile(plot, box)

        monkeypatch.setattr(Plot, "answer_tile", wait)


PLOT = garden.encoded(mosaic(1, 2, 3, 4))  # 7 tiles
NEEDED = 4 * (4 * SIDE * SIDE) + len(PLOT)  # bytes in memory while it is decoded


def test_a_photo_waits_for_one_tile_not_for_a_survey(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    with Running(bundle, threads=1, queue_limit=2) as running:
        with ThreadPoolExecutor(2) as pool:
            plot_answer = pool.submit(running.ask, "POST", TILES, PLOT)
            wait_for(lambda: slow.begun == 1)
            photo_answer = pool.submit(running.ask, "POST", "/v1/identify", garden.photo(1))
            wait_for(lambda: running.engine.depth == 2)
            slow.go.release()
            assert photo_answer.result()[0] == 200
            wait_for(lambda: slow.begun == 2)
            assert not plot_answer.done()
            slow.go.release(6)
            assert plot_answer.result()[0] == 200
        assert running.engine.depth == running.app.state.upload_budget.now == 0


@pytest.mark.parametrize(
    ("event", "code"), [("left", None), ("replaced", "loading"), ("full memory", "overloaded")]
)
def test_a_survey_ends_early(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, event: str, code: str | None
) -> None:
    slow = Slow(monkeypatch)
    with Running(bundle, threads=1, max_held_bytes=NEEDED) as running:
        if event == "full memory":
            running.app.state.upload_budget.uploads.own += 1
        connection = running.connection()
        connection.request("POST", TILES, PLOT)
        if event != "full memory":
            wait_for(lambda: slow.begun == 1)
        if event == "replaced":
            old = running.engine.pipeline
            new = Session(old.bundle, device="cpu")
            running.engine.pipeline = replace(old, session=new)
        if code is None:
            connection.close()
        slow.go.release(9)
        if code is not None:
            response = connection.getresponse()
            assert (response.status, json.loads(response.read())["code"]) == (503, code)
            connection.close()
        left = int(event == "full memory")
        wait_for(lambda: running.app.state.upload_budget.now == left and running.engine.depth == 0)
        assert slow.begun < (1 if event == "full memory" else 3)


def test_a_photo_that_never_fits_is_refused_before_it_is_decoded(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.server.answers.plot.decode", None)  # would be a 500
    with Running(bundle, threads=1, max_held_bytes=NEEDED - 4) as running:
        status, _, document = running.ask("POST", TILES, PLOT)
        assert (status, document["code"], document["retryable"]) == (413, "image_too_large", False)
        assert document["limit"] == 4 * SIDE * SIDE - 1
        assert running.app.state.upload_budget.now == 0
        running.app.state.upload_budget.limit = NEEDED
        running.app.state.upload_budget.uploads.own += 1
        status, _, document = running.ask("POST", TILES, PLOT)
        assert (status, document["retryable"]) == (503, True)


def test_what_a_thread_counts_after_the_request_has_ended_is_not_held() -> None:
    budget = UploadBudget(100)
    with budget.hold() as count:
        count(60)
    with pytest.raises(Problem):
        count(1)
    assert budget.now == 0
