"""Photos of something else: what suspect and rejected mean, over HTTP and on the command line."""

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from florilege.calibration.rejection import generalised_entropy
from florilege.server.answers.pipeline import open_pipeline
from florilege.server.answers.query import IdentifyQuery
from tests.server import garden
from tests.server.http_client import identify, open_client
from tests.server.predict.predict_command import csv_rows, predicted


def test_a_clear_photo_is_accepted_whether_or_not_others_are_rejected(client: TestClient) -> None:
    for reject in ("false", "true"):
        result = identify(client, garden.photo(9), reject=reject)
        assert result["rejection"]["verdict"] == "accepted"
        assert result["rejection"]["value"] >= result["rejection"]["threshold"]
        assert result["set"]["size"] == len(result["results"]) > 0


def test_a_suspect_photo_keeps_its_set(client: TestClient) -> None:
    result = identify(client, garden.DULL)
    assert result["rejection"]["verdict"] == "suspect"
    assert result["rejection"]["value"] < result["rejection"]["threshold"]
    assert result["set"]["size"] == len(result["results"]) > 1
    assert result["set"]["calibrated"] is True
    assert result["best_match"] is not None


def test_a_rejected_photo_gets_an_empty_set_that_promises_nothing_and_its_scores_if_asked(
    client: TestClient,
) -> None:
    result = identify(client, garden.DULL, reject="true")
    assert result["rejection"]["verdict"] == "rejected"
    assert (result["results"], result["best_match"]) == ([], None)
    assert (result["set"]["size"], result["set"]["truncated"]) == (0, False)
    assert (result["set"]["calibrated"], result["set"]["hit_rate"]) == (False, None)
    whole = identify(client, garden.DULL, include="scores")
    assert {**result["rejection"], "verdict": "suspect"} == whole["rejection"]
    outcome = identify(client, garden.DULL, reject="true", include="scores,rollup")
    assert outcome["results"] == [{**each, "in_set": False} for each in whole["results"]]
    assert (outcome["rollup"], outcome["best_match"], outcome["set"]["size"]) == ([], None, 0)


def test_value_and_threshold_are_those_of_the_record(bundle: Path, record: Any) -> None:
    outcome = open_pipeline(bundle, device="cpu")([garden.DULL], IdentifyQuery(), "r")
    rule, result = record.rejection, outcome.answer.rejection
    assert (result.method, result.threshold) == (rule.method, rule.threshold)
    assert rule.head == record.head
    value = generalised_entropy(outcome.logits, rule.score_kind)
    assert result.value == value.max()


def test_one_familiar_photo_of_several_is_enough(client: TestClient) -> None:
    mixed = identify(client, garden.DULL, garden.photo(9), reject="true")["rejection"]
    assert mixed["verdict"] == "accepted"
    assert mixed["value"] == identify(client, garden.photo(9))["rejection"]["value"]
    both = identify(client, garden.DULL, garden.DULL, reject="true")["rejection"]
    assert both["verdict"] == "rejected"


def test_verdicts_and_rejected_photos_are_counted(bundle: Path) -> None:
    with open_client(bundle) as client:
        for photo, reject in ((0, "true"), (9, "false")):
            identify(client, garden.photo(photo), reject=reject)
        for reject in ("true", "true", "false"):
            identify(client, garden.DULL, reject=reject)
        lines = client.get("/metrics").text.splitlines()
    for name, count in (
        ('florilege_rejection_verdicts_total{verdict="accepted"}', 2.0),
        ('florilege_rejection_verdicts_total{verdict="suspect"}', 1.0),
        ('florilege_rejection_verdicts_total{verdict="rejected"}', 2.0),
        ('florilege_rejected_total{reason="unfamiliar"}', 2.0),
    ):
        assert f"{name} {count}" in lines


def test_predict_says_the_same_and_rejects_when_told_to(
    bundle: Path, client: TestClient, tmp_path: Path
) -> None:
    (tmp_path / "dull.png").write_bytes(garden.DULL)
    (tmp_path / "clear.png").write_bytes(garden.photo(9))
    clear, dull = predicted(bundle, tmp_path, fails=None)
    assert dull["rejection"] == identify(client, garden.DULL)["rejection"]
    assert clear["rejection"]["verdict"] == "accepted"
    assert dull["set"]["size"] > 1
    clear, dull = predicted(bundle, tmp_path, "--reject", fails=None)
    assert (dull["set"]["size"], dull["rejection"]["verdict"]) == (0, "rejected")
    assert clear["set"]["size"] > 0
    rows = csv_rows(bundle, tmp_path, "--reject", fails=None)
    assert (rows[-1]["verdict"], rows[-1]["class_id"]) == ("rejected", "")
    assert float(rows[-1]["familiarity"]) == dull["rejection"]["value"]
    assert {row["verdict"] for row in rows[:-1]} == {"accepted"}
