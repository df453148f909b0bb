"""Place and season over HTTP, from Python and on the command line."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from starlette.testclient import TestClient

import florilege
from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.calibrate.evaluate import evaluate_bundle
from florilege.calibration.record.record_file import open_occurrences, read_record
from florilege.calibration.view import View
from florilege.errors import BundleError
from florilege.models.bundle import OCCURRENCES, open_bundle, replace_files
from florilege.models.regions import Place
from florilege.server.answers.pipeline import open_pipeline
from florilege.server.answers.plan import ClassLists, Plan, Planner
from florilege.server.answers.query import IdentifyQuery
from florilege.server.http.photo_routes import _plan
from tests.server import garden
from tests.server.http_client import identify, open_client
from tests.server.predict.predict_command import predicted, run

IDS = [flower[0] for flower in garden.FLOWERS]
VIOLET = garden.photo(5, blur=0.5, other=6)
PACKAGE = Path(florilege.__file__).parent
NORTH = {"region": "north", "month": 6}


def occurrences(path: Path, *, grid: bool = False) -> Path:
    """Every second flower lives in the south, the others in the north; the last one nowhere."""
    names = ("cell5_40_0", "cell5_45_0") if grid else ("south", "north")
    rows = [
        f"{region},{month},{name},{60 if at == index % 2 and month in (5, 6) else 1}"
        for index, name in enumerate(IDS[:-1])
        for at, region in enumerate(names)
        for month in range(1, 12)
        if (index, at, month) != (0, 1, 3)
    ]
    path.write_text("\n".join(["region,month,class_id,weight", *rows]) + "\n")
    return path


def grown(folder: Path, *, grid: bool = False) -> Path:
    table = occurrences(folder / "occurrences.csv", grid=grid)
    return garden.grow(folder, occurrences=str(table))


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grown(tmp_path_factory.mktemp("places"))


@pytest.fixture(scope="module")
def client(placed: Path) -> Any:
    with open_client(placed) as client:
        yield client


def test_a_place_changes_scores_by_the_recorded_strength(client: TestClient, placed: Path) -> None:
    record = read_record(opened := open_bundle(placed))
    table, prior = open_occurrences(opened, record), record.place_prior
    assert table is not None
    assert prior is not None
    assert prior.strength > 0
    plain = identify(client, VIOLET, include="scores")
    there = identify(client, VIOLET, include="scores", region="north", month=6)
    scores = {
        name: {r["class_id"]: r["score"] for r in answer["results"]}
        for name, answer in (("plain", plain), ("there", there))
    }
    expected = np.log([scores["plain"][name] for name in IDS])
    expected += prior.strength * table.log_lift(Place("north", 6))
    shares = np.exp(expected) / np.exp(expected).sum()
    assert [scores["there"][name] for name in IDS] == pytest.approx(shares.tolist(), rel=1e-6)
    assert there["set"]["calibrated"]
    assert (there["query"]["region"], there["query"]["month"]) == ("north", 6)
    assert (plain["query"]["region"], plain["query"]["month"]) == (None, None)
    expected_point = record.point(View(place="region_and_month"), record.setting("average_k", 3))
    assert there["set"]["lambda"] == expected_point.lambda_val
    assert there["warnings"] == plain["warnings"] == []


def test_each_result_says_whether_it_was_recorded_there(client: TestClient) -> None:
    answer = identify(client, VIOLET, include="scores", region="north", month=1)
    in_range = {r["class_id"]: r["in_range"] for r in answer["results"]}
    assert in_range == {**dict.fromkeys(IDS, True), IDS[-1]: None}
    for query in ({"region": "north", "month": 12}, {"region": "north"}):
        answer = identify(client, VIOLET, include="scores", **query)
        assert len(answer["results"]) == len(IDS)  # nothing is left out
    plain = identify(client, VIOLET, include="scores")
    assert {r["in_range"] for r in plain["results"]} == {None}
    only = ",".join([IDS[-2], IDS[-1]])  # their places in the answer are not those in the model
    answer = identify(client, VIOLET, include="scores", region="north", month=1, only=only)
    assert {r["class_id"]: r["in_range"] for r in answer["results"]} == {
        IDS[-2]: True,
        IDS[-1]: None,
    }


def test_a_region_alone_has_its_own_thresholds_or_says_that_it_has_none(
    client: TestClient, placed: Path
) -> None:
    record = read_record(open_bundle(placed))
    answer = identify(client, VIOLET, region="south")
    calibrated = bool(record.values("average_k", None, View(place="region")))
    assert answer["set"]["calibrated"] == calibrated
    codes = [warning["code"] for warning in answer["warnings"]]
    assert codes == ([] if calibrated else ["place_not_calibrated"])


def test_what_was_calibrated_without_places_promises_nothing_at_one(client: TestClient) -> None:
    """Thresholds by class are those of single photos of unknown places."""
    query = {"rule": "class_coverage", "coverage": 0.9}
    plain, there = (identify(client, VIOLET, **query, **place) for place in ({}, NORTH))
    assert plain["set"]["calibrated"]
    answer = there["set"]
    assert (answer["calibrated"], answer["guaranteed"], answer["statement"]) == (False, False, None)
    assert answer["reasons"][-1] == "another_view"
    assert answer["calibrated_for"] == {"images": 1, "list": None, "place": None}
    assert [warning["code"] for warning in there["warnings"]] == ["place_not_calibrated"]


def test_an_evaluation_measures_no_place_that_it_would_have_to_draw(
    placed: Path, tmp_path: Path
) -> None:
    data = str(garden.validation_folder(tmp_path / "photos"))
    views = evaluate_bundle(placed, data, "val", device="cpu").views
    assert {result.view.place for result in views} == {None}


def test_an_unknown_region_is_not_used_and_the_answer_says_so(client: TestClient) -> None:
    plain, answer = identify(client, VIOLET), identify(client, VIOLET, region="moon", month=6)
    assert [w["code"] for w in answer["warnings"]] == ["place_not_used"]
    assert "nothing was recorded in the region 'moon'" in answer["warnings"][0]["detail"]
    assert [r["score"] for r in answer["results"]] == [r["score"] for r in plain["results"]]
    assert answer["set"] == plain["set"]
    assert {r["in_range"] for r in answer["results"]} == {None}


def test_a_place_that_gained_nothing_is_not_used_and_says_so(placed: Path) -> None:
    record = read_record(opened := open_bundle(placed))
    table, prior = open_occurrences(opened, record), record.place_prior
    assert table is not None
    assert prior is not None
    useless = replace(record, place_prior=replace(prior, strength=0.0))
    lists = ClassLists.of(opened.classes, useless)
    planner = Planner(record=useless, lists=lists, occurrences=table)
    effect = planner.plan(IdentifyQuery.model_validate(NORTH)).effect
    assert (effect.kind, effect.lift) == (None, None)
    assert effect.why_unused == "it gained no hits when the model was calibrated"
    assert effect.in_range == table.in_range(Place("north", 6))


def test_predict_warns_once_of_a_region_without_records(placed: Path, tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(VIOLET)
    result = run(placed, tmp_path, "--region", "nowhere")
    assert result.stderr.count("warning: the place of the photo was not used") == 1


def test_with_a_place_only_is_not_calibrated_and_several_photos_are(
    client: TestClient,
) -> None:
    some = ",".join(IDS[4:9])
    answer = identify(client, VIOLET, region="north", month=6, only=some, include="scores")
    assert not answer["set"]["calibrated"]
    codes = {warning["code"] for warning in answer["warnings"]}
    assert codes == {"list_not_calibrated"}  # the threshold is that of photos with a place
    assert answer["set"]["calibrated_for"]["place"] == "region_and_month"
    assert len(answer["results"]) == 5
    assert {r["in_range"] for r in answer["results"]} == {True}
    unplaced = identify(client, VIOLET, only=some, include="scores")
    assert answer["results"] != unplaced["results"]
    before, after = (
        {r["class_id"]: r["score"] for r in each["results"]} for each in (unplaced, answer)
    )
    all_there = identify(client, VIOLET, region="north", month=6, include="scores")
    there = {r["class_id"]: r["score"] for r in all_there["results"]}
    total = sum(there[name] for name in before)
    assert after == pytest.approx({name: there[name] / total for name in before})
    several = identify(client, VIOLET, VIOLET, region="north", month=6)
    assert several["set"]["calibrated"]
    used = {"images": 2, "list": None, "place": "region_and_month"}
    assert several["set"]["calibrated_for"] == used


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("month=6", "need a region"),
        ("date=2026-06-30", "need a region"),
        ("region=north&month=13", "month"),
        ("region=north&month=6&date=2026-06-30", "month or date, not both"),
        ("region=north&date=June", "parameter `date`: a month must be 1 to 12 or a date"),
        ("date=2026-13-01", "parameter `date`: a month must be"),
        ("region=north&date=", "parameter `date`: a month must be"),
        ("region=north&latitude=43&longitude=3", "give region, or both"),
        ("latitude=43", "give region, or both"),
        ("latitude=43&longitude=3", "named regions, no grid: give region, such as north"),
        ("latitude=99&longitude=3", "latitude"),
        ("region=north&k=3&coverage=0.9", "takes k, not coverage"),
    ],
)
def test_a_place_that_cannot_be_used_is_refused(
    client: TestClient, query: str, message: str
) -> None:
    response = client.post(f"/v1/identify?{query}", content=VIOLET)
    assert response.status_code == 400
    assert message in response.json()["detail"]


def test_a_query_goes_straight_to_its_threshold(placed: Path) -> None:
    """Route, plan, record: no other file of the server is entered, and none about regions."""
    planner = open_pipeline(placed, device="cpu").planner
    engine: Any = Mock(pipeline=Mock(planner=planner))
    query = IdentifyQuery(region="north", date="2026-06-30")
    expected, entered = planner.plan(query), dict[str, None]()  # it fills the caches, too

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            entered[path.relative_to(PACKAGE).as_posix()] = None

    sys.setprofile(note)
    try:
        _plan(engine, query).send(None)
    except StopIteration as end:
        plan: Plan = end.value
    finally:
        sys.setprofile(None)
    assert (plan.view, plan.points) == (expected.view, expected.points)
    way = [path for path in entered if not path.startswith("calibration/")]
    answers = ("plan", "query")  # the latter for the languages
    assert way == ["server/http/photo_routes.py", *(f"server/answers/{at}.py" for at in answers)]
    assert "calibration/record/__init__.py" in entered


def test_the_model_card_says_which_places_there_are(client: TestClient, placed: Path) -> None:
    places = client.get("/v1/model").json()["places"]
    prior = read_record(open_bundle(placed)).place_prior
    assert prior is not None
    assert places["regions"] == ["north", "south"]
    assert places["cell_degrees"] is None
    assert places["strength"] == prior.strength
    assert places["simulated"] is True
    assert "region_and_month" in places["calibrated"]


def test_a_grid_takes_latitude_and_longitude(tmp_path: Path) -> None:
    bundle = grown(tmp_path, grid=True)
    predictor = florilege.load(bundle, device="cpu")
    answer = predictor.predict(VIOLET, latitude=43.6, longitude=3.9, date="2026-06-30")
    assert (answer.query.region, answer.query.month) == ("cell5_40_0", 6)
    assert answer.set.calibrated
    assert answer == predictor.predict(VIOLET, region="cell5_40_0", month=6)
    predictor.close()
    (tmp_path / "p.png").write_bytes(VIOLET)
    place = ("--latitude", "43.6", "--longitude", "3.9", "--month", "6")
    (line,) = predicted(bundle, tmp_path / "p.png", *place, fails=None)
    assert line["results"][0]["score"] == answer.results[0].score


def test_a_model_without_a_table_refuses_a_place(bundle: Path) -> None:
    with open_client(bundle) as client:
        response = client.post("/v1/identify?region=north", content=VIOLET)
        assert response.status_code == 400
        assert "calibrate --occurrences" in response.json()["detail"]
        assert client.get("/v1/model").json()["places"] is None


def test_a_later_calibration_keeps_the_table_unless_told_otherwise(
    tmp_path: Path, placed: Path
) -> None:
    bundle, data = Path(shutil.copytree(placed, tmp_path / "b")), str(placed.parent / "photos")
    before = open_bundle(bundle).manifest.files[OCCURRENCES]
    calibrate_bundle(bundle, data, "val", device="cpu", ks=[2.0])
    opened = open_bundle(bundle)
    assert opened.manifest.files[OCCURRENCES] == before
    assert read_record(opened).place_prior is not None
    replace_files(bundle, {OCCURRENCES: opened.read(OCCURRENCES)[:-8] + b"\0" * 8})
    opened = open_bundle(bundle)
    with pytest.raises(BundleError, match=r"damaged|another occurrences\.npy"):
        open_occurrences(opened, read_record(opened))
    calibrate_bundle(bundle, data, "val", device="cpu", occurrences="none")
    assert OCCURRENCES not in open_bundle(bundle).manifest.files
    assert read_record(open_bundle(bundle)).place_prior is None
