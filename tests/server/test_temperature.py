"""A temperature of 2 has the same effect everywhere as halving the network's logits.

Halving is exact, so a network with logits twice as large, calibrated at temperature 2, and its
twin at temperature 1 must agree in every digit: whatever forgot the temperature would show.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.calibrate.evaluate import evaluate_bundle
from florilege.calibration.calibrate.gate import compare_outputs
from florilege.calibration.calibrate.photo_outputs import bundle_outputs
from florilege.calibration.monitoring import recalibration
from florilege.calibration.monitoring.recalibration import recalibrate_bundle
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.calibration.record.schema import Table
from florilege.calibration.view import PLAIN
from florilege.models.bundle import open_bundle
from florilege.models.session import Session
from florilege.server.prometheus import Metrics
from florilege.server.publisher import Answered, _DriftWatch
from tests.calibration.small_bundle import CLASSES, make_bundle, make_data, square
from tests.server.garden import encoded
from tests.server.http_client import open_client
from tests.server.predict.predict_command import predicted

QUERY = "/v1/identify?k=3&include=scores,marginals,rollup"


class Twins(NamedTuple):
    """Bundles: ``hot`` has logits twice as large and temperature 2."""

    hot: Path
    plain: Path
    data: str

    @property
    def records(self) -> list[CalibrationRecord]:
        return [read_record(open_bundle(path)) for path in (self.hot, self.plain)]


def calibrate(path: Path, data: str, temperature: float, **options: Any) -> None:
    options |= {"head": "sccp", "score_kind": "softmax", "rejection_method": None}
    calibrate_bundle(path, data, temperatures=[temperature], **options)


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    root = tmp_path_factory.mktemp("twins")
    data = str(make_data(root / "d", rows=40))
    hot, plain = make_bundle(root / "hot", sharper=2).path, make_bundle(root / "plain").path
    for path, temperature in ((hot, 2.0), (plain, 1.0)):
        calibrate(path, data, temperature, ks=[1, 2, 2.5, 3])
    return Twins(hot=hot, plain=plain, data=data)


def cooled(record: CalibrationRecord) -> list[Table]:
    """The tables as if the temperature were 1."""
    return [
        replace(table, scoring=replace(table.scoring, temperature=1.0)) for table in record.tables
    ]


def test_calibration_gives_equal_thresholds_for_every_rule_and_number_of_photos(
    twins: Twins,
) -> None:
    hot, plain = twins.records
    assert (hot.temperature, plain.temperature) == (2.0, 1.0)
    assert hot.photos == plain.photos == (1, 2)
    assert cooled(hot) == list(plain.tables)
    assert hot.distribution.best_scores == plain.distribution.best_scores
    assert hot.shots == plain.shots


def test_evaluation_and_comparison_agree(twins: Twins) -> None:
    hot, plain = (evaluate_bundle(path, twins.data).rules for path in twins[:2])
    assert [(result.row, result.shots) for result in hot] == [
        (result.row, result.shots) for result in plain
    ]
    with (
        bundle_outputs(twins.hot, twins.data, "test") as new,
        bundle_outputs(twins.plain, twins.data, "test") as old,
    ):
        compared = compare_outputs(new, old)
    for outcome in compared:
        assert (outcome.gained, outcome.lost, outcome.size.difference) == (0, 0, 0)


def test_answers_over_http_and_on_the_command_line_agree(twins: Twins, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    photos = [encoded(square(label, random)) for label in (0, 1, 1, 2, 3, 4, 5)]
    for number, photo in enumerate(photos):
        (tmp_path / f"{number}.png").write_bytes(photo)
    answers = []
    for path in twins[:2]:
        with open_client(path) as client:
            results = [client.post(QUERY, content=photo).json() for photo in photos]
            files = [("images", photo) for photo in photos[1:3]]
            results.append(client.post(QUERY, files=files).json())
            results.append(client.post("/v1/identify?rule=top_k&k=3", files=files).json())
        words = ("--k", "3", "--include", "scores,marginals,rollup")
        results += predicted(path, tmp_path, *words, fails=None)
        of_its_bundle = dict.fromkeys(("id", "model", "path"))
        answers.append([answer | of_its_bundle for answer in results])
    hot, plain = answers
    assert hot == plain
    assert len(hot) == 2 * len(photos) + 2
    assert hot[7]["query"]["images"] == 2
    assert hot[7]["set"]["calibrated"]
    point, session = (
        twins.records[0].point(PLAIN, twins.records[0].setting("average_k", 3)),
        Session(open_bundle(twins.hot)),
    )
    view = square(0, np.random.default_rng(3))[np.newaxis]
    powers = np.exp(session.logits(view)["sccp"][0].astype(np.float64) / 2)
    labels = {result["class_id"]: result["score"] for result in hot[0]["results"]}
    for index in range(CLASSES):
        assert labels[f"c{index}"] == pytest.approx(powers[index] / powers.sum(), rel=1e-12)
    assert point.lambda_val == hot[0]["set"]["lambda"]


def test_thresholds_from_traffic_agree(
    twins: Twins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recalibration, "FEWEST_REQUESTS", 100)
    random, results = np.random.default_rng(4), []
    photos = [encoded(square(int(random.integers(3)), random)) for _ in range(110)]
    for path, temperature in zip(twins[:2], (2.0, 1.0), strict=True):
        log = tmp_path / path.name
        with open_client(path, score_log=log) as client:
            for photo in photos:
                client.post("/v1/identify", content=photo)
        copy = make_bundle(tmp_path / f"{path.name}-copy", sharper=temperature).path
        calibrate(copy, twins.data, temperature)
        outcome = recalibrate_bundle(copy, log, approve=True)
        assert outcome.record is not None
        results.append((outcome.thresholds, outcome.record))
    (hot_thresholds, hot), (thresholds, plain) = results
    assert hot_thresholds == thresholds
    assert hot.temperature == 2.0
    assert cooled(hot) == list(plain.tables)
    assert hot.distribution.all_scores == plain.distribution.all_scores
    random = np.random.default_rng(5)
    logits = random.normal(size=(9, CLASSES)).astype(np.float32)
    assert hot.scores(2 * logits).tolist() == plain.scores(logits).tolist()


def test_the_watch_sees_equal_sets_and_scores(twins: Twins) -> None:
    states = []
    for path, record in zip(twins[:2], twins.records, strict=True):
        watch, session = _DriftWatch(record, Metrics(), None), Session(open_bundle(path))
        random = np.random.default_rng(6)
        for _ in range(200):
            view = square(int(random.integers(CLASSES)), random)[np.newaxis]
            watch.on_answers([Answered(session.logits(view)["sccp"], restricted=False)])
        states.append(json.loads(watch.monitor.to_json())["tests"])
    for name in ("set_size", "faint_photos", "best_score"):
        assert states[0][name] == states[1][name]
