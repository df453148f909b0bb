"""`POST /v1/identify`: what comes in and what comes out."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from florilege.server.answers import pipeline
from florilege.server.answers.pipeline import open_pipeline
from florilege.server.answers.query import IdentifyQuery
from tests.server import garden
from tests.server.http_client import identify

VIOLET = garden.photo(5, blur=0.5, other=6)


@pytest.mark.parametrize(
    "content_type", ["image/jpeg", "image/heic", "application/octet-stream", "text/html", ""]
)
def test_the_type_is_told_by_the_bytes_not_by_the_header(
    client: TestClient, content_type: str
) -> None:
    response = client.post("/v1/identify", content=VIOLET, headers={"Content-Type": content_type})
    assert response.status_code == 200


def test_several_photos_are_fused_and_it_is_said_whether_that_is_calibrated(
    client: TestClient,
) -> None:
    photos = garden.photo(5), garden.photo(6)
    content = identify(client, *photos, k=2.5)
    assert content["query"]["images"] == 2
    assert content["set"]["calibrated"] is False
    assert content["set"]["expected_size"] is None
    assert [w["code"] for w in content["warnings"]] == ["fusion_not_calibrated"]
    calibrated = identify(client, *photos, k=2)
    assert calibrated["set"]["calibrated"] is True
    assert calibrated["set"]["expected_size"]["rows"] == 240
    once, again, both = (
        {r["class_id"]: r["score"] for r in identify(client, *sent, include="scores")["results"]}
        for sent in (photos[:1], photos[1:], photos)
    )
    assert both == pytest.approx({name: (once[name] + again[name]) / 2 for name in once})


@pytest.mark.parametrize(
    ("lang", "header", "used", "name", "statement"),
    [
        ("fr", "de", "fr", {"name": "violette", "lang": "fr"}, "Sur"),
        (None, "fr-CH, en;q=0.3", "fr-CH", {"name": "violette", "lang": "fr"}, "Sur"),
        (None, "de-AT, fr;q=0.5", "de-AT", {"name": "violette", "lang": "fr"}, "Bei"),
        (None, "", "en", {"name": "sweet violet", "lang": "en"}, "On"),
        ("ja", "fr", "ja", {"name": "sweet violet", "lang": "en"}, "On"),
    ],
)
def test_names_and_the_statement_follow_lang_then_accept_language(
    client: TestClient, lang: str | None, header: str, used: str, name: object, statement: str
) -> None:
    query, headers = "" if lang is None else f"?lang={lang}", {"Accept-Language": header}
    result = client.post(f"/v1/identify{query}", content=VIOLET, headers=headers).json()
    assert result["query"]["lang"] == used
    assert result["results"][0]["taxon"]["common_names"] == [name]
    assert result["set"]["statement"].partition(" ")[0] == statement


def test_include_takes_commas_and_repetitions_and_max_results_cuts(client: TestClient) -> None:
    commas = identify(client, VIOLET, include="scores,rollup,marginals")
    repeated = identify(client, VIOLET, include=["scores", "rollup", "marginals"])
    cut = identify(client, VIOLET, include="scores", max_results=1)
    assert cut["results"] == [{**commas["results"][0], "top_k_probability": None}]
    assert len(commas["results"]) == len(garden.FLOWERS)
    assert commas["results"][0]["top_k_probability"] is not None
    assert commas["rollup"] == repeated["rollup"] != None  # noqa: E711  # reads as one chain
    assert commas["results"] == repeated["results"]


def test_the_stages_are_timed(client: TestClient) -> None:
    response = client.post("/v1/identify", content=VIOLET)
    timing = response.headers["Server-Timing"]
    assert re.fullmatch(r"(\w+;dur=\d+\.\d\d(, )?){4}", timing)
    assert [part.split(";")[0] for part in timing.split(", ")] == [
        *("queue", "decode", "forward", "decide")
    ]
    assert response.headers["Cache-Control"] == "no-store"


def test_a_turned_photo_gets_the_answer_of_the_upright_one(client: TestClient) -> None:
    upright = garden.pixels(garden.COLOURS[9], side=64)
    upright[:32] = garden.pixels(garden.COLOURS[0], side=64)[:32]
    plain = identify(client, garden.encoded(upright), include="scores")
    stored = np.ascontiguousarray(np.rot90(upright))
    exif = Image.Exif()
    exif[0x0112] = 6  # turns it back by 90 degrees clockwise
    turned = identify(client, garden.encoded(stored, exif=exif), include="scores")
    assert [r["score"] for r in turned["results"]] == pytest.approx(
        [r["score"] for r in plain["results"]], abs=1e-3
    )


def test_the_time_of_a_stage_is_that_of_all_photos(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, stages = open_pipeline(bundle, device="cpu"), pipeline.StageTimes(float)
    infer = type(opened.session).infer
    monkeypatch.setattr(
        type(opened.session), "infer", lambda *given, **named: (infer(*given, **named)[0], 0.5)
    )
    monkeypatch.setattr(pipeline, "perf_counter", iter([1.0, 4.0, 10.0, 15.0, 20.0, 27.0]).__next__)
    rows = opened.all_outputs([garden.photo(0), garden.photo(1)], stages=stages)
    opened.decide(rows, opened.planner.plan(IdentifyQuery()), "r", stages=stages)
    assert stages == {"decode": 3 - 0.5 + 5 - 0.5, "forward": 1.0, "decide": 7.0}


def test_a_photo_takes_the_shortest_route_which_is_counted_by_its_path(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def solve(**_: object) -> None:
        raise AssertionError("FastAPI solved dependencies")

    monkeypatch.setattr("fastapi.routing.solve_dependencies", solve)
    assert identify(client, VIOLET)["results"]
    refusal = client.get("/v1/identify")
    assert (refusal.status_code, refusal.headers["Allow"]) == (405, "POST")
    monkeypatch.undo()
    lines = client.get("/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("florilege_http_requests_total{")]
    assert any('"/v1/identify"' in line and '"200"' in line for line in counted)
