"""Lists over HTTP and on the command line, and the records of restricted answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from florilege.calibration.monitoring.audit import audit_file
from florilege.calibration.monitoring.score_log import Scorer, open_score_log
from florilege.calibration.record.record_file import read_record
from florilege.errors import DataError, UsageError
from florilege.models.bundle import open_bundle
from florilege.server.app import create_app
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.background.feedback_rows import words
from tests.server.http_client import identify, open_client
from tests.server.metric_values import value
from tests.server.predict.predict_command import predicted, run

HEATH = ("1002", "1004", "1007", "1008", "1012")
VIOLET = garden.photo(5, blur=0.5, other=6)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of files that a server may be given."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "berge.txt").write_text("\n".join(reversed(HEATH)))
    (folder / "pair.txt").write_text("1001\n1011\n")
    (folder / "odd.txt").write_text("1001\n1O02\n")
    return folder


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that is calibrated with the list `heath`."""
    folder = tmp_path_factory.mktemp("listed")
    (folder / "heath.txt").write_text("\n".join(HEATH))
    return garden.grow(folder, list_files=[str(folder / "heath.txt")])


@pytest.fixture(scope="module")
def client(listed: Path, files: Path) -> Any:
    words = (str(files / "berge.txt"), f"few={files / 'pair.txt'}")
    with open_client(listed, lists=words) as client:
        yield client


def problem(client: TestClient, query: str) -> tuple[int, str, Any]:
    response = client.post(f"/v1/identify?{query}", content=VIOLET)
    result = response.json()
    return response.status_code, result["code"], result.get("allowed")


def test_lists_are_offered_with_what_they_are_calibrated_for(client: TestClient) -> None:
    card = client.get("/v1/model").json()
    assert card["lists"] == [
        {"name": "berge", "classes": 5, "calibrated": True},
        {"name": "few", "classes": 2, "calibrated": False},
        {"name": "heath", "classes": 5, "calibrated": True},
    ]
    rules = {rule["rule"]: rule for rule in card["rules"]}
    assert [each["list"] for each in rules["average_k"]["lists"]] == ["berge", "heath"]
    berge, heath = (each["points"] for each in rules["average_k"]["lists"])
    assert berge == heath
    assert [point["k"] for point in heath] == [1, 2, 3, 5, 10]
    assert rules["class_coverage"]["lists"] == []
    result = identify(client, VIOLET, list="heath", k=2)
    point = heath[1]
    assert result["set"]["lambda"] == point["lambda"]
    assert result["set"]["expected_size"] == point["expected_size"]
    assert result["set"]["hit_rate"] == point["hit_rate"]


def test_a_bundle_without_lists_offers_none(bundle: Path) -> None:
    with open_client(bundle) as client:
        card = client.get("/v1/model").json()
        assert card["lists"] == []
        assert {tuple(rule["lists"]) for rule in card["rules"]} == {()}
        assert problem(client, "list=heath") == (422, "unknown_list", [])


def test_only_and_list_are_asked_for_in_the_query(client: TestClient) -> None:
    outcome = identify(client, VIOLET, only="viola,1001", include="scores")
    assert outcome["query"]["only"] == ["1001", "1006", "1007"]
    assert {result["class_id"] for result in outcome["results"]} == {"1001", "1006", "1007"}
    assert sum(result["score"] for result in outcome["results"]) == pytest.approx(1)
    assert outcome["set"]["calibrated"] is False
    twice = client.post("/v1/identify?only=viola&only=1001", content=VIOLET).json()
    assert twice["query"] == outcome["query"]
    berge = identify(client, VIOLET, list="berge", only="Viola")
    assert (berge["query"]["list"], berge["query"]["only"]) == ("berge", ["1007"])
    assert identify(client, VIOLET)["query"]["list"] is None


@pytest.mark.parametrize(
    ("query", "status", "code", "allowed"),
    [
        ("list=moor", 422, "unknown_list", ["berge", "few", "heath"]),
        ("list=", 422, "unknown_list", ["berge", "few", "heath"]),
        ("only=Viole", 422, "unknown_class", ["Viola", "Violaceae"]),
        ("always=Viole", 422, "unknown_class", ["Viola", "Violaceae"]),
        ("only=", 400, "invalid_parameter", None),
        ("only=,", 400, "invalid_parameter", None),
        ("list=few&only=Viola", 400, "invalid_parameter", None),
        ("list=few&list=heath", 400, "invalid_parameter", None),
    ],
)
def test_an_impossible_restriction_is_refused_before_the_photo(
    client: TestClient, query: str, status: int, code: str, allowed: list[str] | None
) -> None:
    assert problem(client, query) == (status, code, allowed)
    no_form = {"content-type": "multipart/form-data"}
    response = client.post(f"/v1/identify?{query}", content=b"no photo at all", headers=no_form)
    assert (response.status_code, response.json()["code"]) == (status, code)


def test_a_list_that_cannot_be_used_stops_the_start(listed: Path, files: Path) -> None:
    with pytest.raises(DataError, match=r"1O02 \(near: 1002, 1012\)"):
        create_app(Settings(bundle=listed, lists=(str(files / "odd.txt"),)))
    twice = (str(files / "berge.txt"), f"berge={files / 'pair.txt'}")
    with pytest.raises(UsageError, match="lists"):
        create_app(Settings(bundle=listed, lists=twice))


def test_restricted_answers_are_kept_apart_in_metrics_watch_feedback_and_audit(
    listed: Path, tmp_path: Path
) -> None:
    with open_client(
        listed, feedback_store=tmp_path / "said", score_log=tmp_path / "scores"
    ) as client:
        whole = identify(client, VIOLET)
        inside = identify(client, VIOLET, list="heath")
        other = identify(client, VIOLET, only="Rosa")
        for answer in (whole, inside, other):
            body = {"request_id": answer["id"], "class_id": "1006"}
            receipt = client.post("/v1/feedback", json=body).json()
            assert receipt["in_set"] == ("1006" in [r["class_id"] for r in answer["results"]])
        metrics = client.app.state.engine.metrics  # type: ignore[attr-defined]  # a FastAPI
    assert value(metrics, "set_size_sum") == whole["set"]["size"]
    counts = [value(metrics, f"{name}_count") for name in ("set_size", "top_score")]
    assert (counts, value(metrics, "restricted_set_size_count")) == ([1, 1], 2)
    rows = words(tmp_path / "said")
    assert [(row["list"], row["restricted"]) for row in rows] == [
        (None, False), ("heath", True), (None, True),
    ]  # fmt: skip
    assert rows[2]["members"] == [result["class_id"] for result in sorted(
        other["results"], key=lambda result: result["class_id"])]  # fmt: skip
    audits = audit_file(tmp_path / "said").audits
    assert set(audits) == {
        "average_k k=3", "average_k k=3, list heath", "average_k k=3, only some classes",
    }  # fmt: skip
    assert audits["average_k k=3, list heath"].hits == 0  # it was on no list
    scorer = Scorer.of(bundle := open_bundle(listed), read_record(bundle))
    with open_score_log(tmp_path / "scores", scorer) as log:
        (logits,) = np.concatenate(list(log.blocks()))
        assert log.repeated == 2  # restricted answers log what the others do
    assert logits.shape == (1, len(garden.FLOWERS))


def test_the_watch_sees_only_answers_about_all_classes(listed: Path) -> None:
    with open_client(listed) as client:
        engine = client.app.state.engine  # type: ignore[attr-defined]  # a FastAPI application
        [watch] = engine.publisher.listeners
        for index, query in enumerate(({"list": "heath"}, {"only": "Rosa"}, {}), start=5):
            identify(client, garden.photo(index), **query)  # a repeated one would not count
        identify(client, garden.photo(1), k=2)
    assert watch.monitor.rows == 2


def test_predict_takes_a_file_or_a_list_of_the_bundle(
    listed: Path, files: Path, tmp_path: Path, client: TestClient
) -> None:
    photo = tmp_path / "violet.png"
    photo.write_bytes(VIOLET)
    served = identify(client, VIOLET, list="heath")
    (by_name,) = predicted(listed, photo, "--list", "heath")
    (by_file,) = predicted(listed, photo, "--list", files / "berge.txt")
    assert served["set"] == by_name["set"] == by_file["set"]
    assert (by_name["query"]["list"], by_file["query"]["list"]) == ("heath", "berge")
    (other,) = predicted(listed, photo, "--list", f"heath={files / 'pair.txt'}")
    assert {each["class_id"] for each in other["results"]} <= {"1001", "1011"}
    assert other["set"]["calibrated"] is False
    (only,) = predicted(listed, photo, "--only", "viola", "--only", "1001,1002")
    assert only["query"]["only"] == ["1001", "1002", "1006", "1007"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--list", "nowhere.txt"), "no list and no file is named nowhere.txt"),
        (("--only", "Viole"), "possible values: Viola, Violaceae"),
        (("--only", ","), "it names no class"),
    ],
)
def test_predict_refuses_words_that_name_no_class(
    listed: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "a.png").write_bytes(VIOLET)
    with pytest.raises((DataError, UsageError), match=message):
        run(listed, tmp_path / "a.png", *words)
