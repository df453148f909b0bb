"""The drift watch: silent on photos like those of the validation, an alarm on others."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from florilege.calibration.distribution import logsumexp
from florilege.calibration.monitoring.monitor import WATCHED, Alarm
from florilege.calibration.record import CalibrationRecord
from florilege.errors import UsageError
from florilege.models.bundle import open_bundle
from florilege.models.session import Session
from florilege.server.app import create_app
from florilege.server.background import drift_watch
from florilege.server.background.drift_watch import DriftWatch
from florilege.server.background.publisher import AnsweredRequest
from florilege.server.prometheus import Metrics
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.metric_values import value


@pytest.fixture(scope="module")
def record(bundle: Path) -> CalibrationRecord:
    return CalibrationRecord.from_json(open_bundle(bundle).read("calibration.json"))


@pytest.fixture(scope="module")
def session(bundle: Path) -> Session:
    return Session(open_bundle(bundle), device="cpu")


def traffic(
    session: Session, record: CalibrationRecord, rows: int, *, dim: float = 1.0
) -> Iterator[AnsweredRequest]:
    """Photos distributed as those of the validation, optionally dimmer."""
    generator = np.random.default_rng(3)
    for _ in range(rows):
        colour = garden.COLOURS[generator.integers(12)] + generator.normal(0.0, 0.15, 3)
        photo = garden.pixels(dim * colour, seed=int(generator.integers(2**31)))
        yield AnsweredRequest(logits=session.logits(photo[np.newaxis])[record.head])


def alarms(metrics: Metrics) -> dict[str, float]:
    values = (value(metrics, "drift_alarm", watched=name) for name in WATCHED)
    return dict(zip(WATCHED, values, strict=True))


def test_photos_like_those_of_the_validation_raise_no_alarm(
    session: Session, record: CalibrationRecord, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    watch = DriftWatch(record, metrics, None)
    for result in traffic(session, record, 1000):
        watch.on_answer(result)
    watch.close()
    assert alarms(metrics) == dict.fromkeys(WATCHED, 0)
    assert value(metrics, "drift_photos") == 1000
    assert "drift" not in caplog.text


def test_other_photos_raise_an_alarm_that_is_logged_once(
    session: Session, record: CalibrationRecord, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    watch = DriftWatch(record, metrics, None)
    for result in traffic(session, record, 1000, dim=0.4):
        watch.on_answer(result)
    watch.close()
    raised = {name for name, value in alarms(metrics).items() if value}
    assert raised == {alarm.watched for alarm in watch.monitor.alarms} != set()
    assert caplog.text.count("drift:") == len(raised)
    assert "calibrate on newer photos" in caplog.text


@pytest.mark.parametrize("split", ["val", "traffic"])
def test_what_a_calibration_from_traffic_left_out_is_not_compared_with_it(
    session: Session, record: CalibrationRecord, split: str
) -> None:
    assert record.rejection is not None
    judge = record.rejection.from_logits
    assert judge is not None
    photos = list(traffic(session, record, 80))
    middle = float(np.median([judge.familiarity(content.logits) for content in photos]))
    strict = replace(judge, threshold=middle)  # every second photo is suspect
    suspect = sum(strict.verdict(result.logits)[1] for result in photos)
    assert 0 < suspect < len(photos)
    measured = replace(record.measured, split=split)
    watch = DriftWatch(replace(record, measured=measured, rejection=strict), Metrics(), None)
    for outcome in photos:
        watch.on_answer(outcome)
    watch.close()
    assert watch.monitor.rows == len(photos) - (suspect if split == "traffic" else 0)


def test_sets_and_scores_are_those_of_the_default_k(
    session: Session, record: CalibrationRecord
) -> None:
    """The monitor gets the sets at the default K, for any query."""
    watch = DriftWatch(record, Metrics(), None)
    lines: list[tuple[list[float], ...]] = []
    update = watch.monitor.update

    def listen(sizes: np.ndarray, best: np.ndarray, lse: np.ndarray) -> list[object]:
        lines.append((list(sizes), list(best), list(lse)))
        return list(update(sizes, best, lse))

    watch.monitor.update = listen  # type: ignore[method-assign,assignment]  # to overhear
    result = list(traffic(session, record, 5))
    for one in result:
        watch.on_answer(one)
    watch.close()
    logits = np.concatenate([one.logits for one in result]).astype(np.float64)
    powers = np.exp(logits)
    scores = powers / powers.sum(axis=1, keepdims=True)
    lambda_val = record.point("average_k", k=record.default_k).lambda_val
    assert lambda_val is not None
    ((sizes, best, lse),) = lines
    assert sizes == list(np.maximum(1, (scores >= lambda_val).sum(axis=1)))
    assert best == pytest.approx(list(scores.max(axis=1)))
    assert lse == pytest.approx(list(np.log(powers.sum(axis=1))))


def test_photos_are_processed_in_portions_or_after_a_second(
    session: Session, record: CalibrationRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(drift_watch, "monotonic", lambda: now)
    monkeypatch.setattr(drift_watch, "ROWS_AT_ONCE", 4)
    metrics = Metrics()
    watch = DriftWatch(record, metrics, None)
    looked = []
    for number, result in enumerate(traffic(session, record, 13)):
        now += 0.6 if number > 8 else 0
        watch.on_answer(result)
        looked.append(value(metrics, "drift_photos"))
    assert looked == [0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 11, 11, 13]
    watch.close()
    assert value(metrics, "drift_photos") == 13


def test_the_state_does_not_depend_on_the_portions(
    session: Session, record: CalibrationRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = list(traffic(session, record, 41, dim=0.7))
    results = []
    for rows in (1, 4, 40, 41, 64):
        monkeypatch.setattr(drift_watch, "ROWS_AT_ONCE", rows)
        watch = DriftWatch(record, Metrics(), None)
        for result in photos:
            watch.on_answer(result)
        watch.close()
        plain = json.loads(watch.monitor.to_json())
        logs = [plain["tests"][name].pop("logs") for name in WATCHED]
        results.append((plain, np.concatenate(logs)))
    for counted, sums in results[1:]:
        assert counted == results[0][0]
        assert sums == pytest.approx(results[0][1])


def test_the_state_is_saved_now_and_then_without_an_alarm(
    session: Session, record: CalibrationRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(drift_watch, "monotonic", lambda: now)
    monkeypatch.setattr(drift_watch, "SAVE_EVERY_S", 60.0)
    state = tmp_path / "watch.json"
    watch = DriftWatch(record, Metrics(), state)
    saved = []
    for seconds, result in zip(
        (0, 59, 60, 61.5, 63, 121, 123), traffic(session, record, 7), strict=True
    ):
        now = 1000.0 + seconds
        watch.on_answer(result)
        saved.append(json.loads(state.read_text())["rows"])
    assert saved == [0, 0, 0, 4, 4, 4, 7]


def test_several_photos_of_a_request_count_as_one(
    session: Session, record: CalibrationRecord
) -> None:
    watch = DriftWatch(record, Metrics(), None)
    rows = np.concatenate([result.logits for result in traffic(session, record, 400)])
    lines = list[int]()
    update = watch.monitor.update

    def listen(sizes: np.ndarray, best: np.ndarray, lse: np.ndarray) -> list[Alarm]:
        lines.extend(np.flatnonzero(np.isin(logsumexp(rows), lse)) % 4)
        return update(sizes, best, lse)

    watch.monitor.update = listen  # type: ignore[method-assign,assignment]  # to overhear
    for request in rows.reshape(100, 4, -1):
        watch.on_answer(AnsweredRequest(logits=request))
    watch.close()
    assert watch.monitor.rows == 100
    assert min(np.bincount(lines)) > 10  # the first, second, third and fourth photo alike


def test_a_repeated_photo_does_not_count(
    session: Session, record: CalibrationRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    watch = DriftWatch(record, metrics, None)
    photos = list(traffic(session, record, 8, dim=0.4))
    for _ in range(50):
        for result in photos:
            watch.on_answer(result)
    watch.close()
    assert watch.monitor.rows == 8
    assert alarms(metrics) == dict.fromkeys(WATCHED, 0)
    monkeypatch.setattr(drift_watch, "MAX_RECENT_PHOTOS", 4)
    watch = DriftWatch(record, metrics, None)
    for place in (0, 1, 2, 3, 0, 4, 0, 1):  # four are remembered, the least recent is forgotten
        watch.on_answer(photos[place])
    watch.close()
    assert watch.monitor.rows == 6


def test_an_alarm_ends_when_photos_are_again_as_they_were_and_the_log_says_when(
    session: Session, record: CalibrationRecord, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "florilege.server")
    metrics, state = Metrics(), tmp_path / "watch.json"
    watch = DriftWatch(record, metrics, state)
    for result in traffic(session, record, 600, dim=0.4):
        watch.on_answer(result)
    watch.close()
    raised = {name for name, value in alarms(metrics).items() if value}
    assert raised
    watch = DriftWatch(record, metrics, state)  # the server is started anew
    for result in traffic(session, record, 2000):
        watch.on_answer(result)
    watch.close()
    assert alarms(metrics) == dict.fromkeys(WATCHED, 0)
    assert caplog.text.count("drift: over since photo ") == len(raised)


def test_the_state_is_kept_across_restarts_and_does_not_depend_on_splits(
    session: Session, record: CalibrationRecord, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    photos = list(traffic(session, record, 150, dim=0.7))
    whole = DriftWatch(record, Metrics(), None)
    for result in photos:
        whole.on_answer(result)
    whole.close()
    state = tmp_path / "watch.json"
    for part in (photos[:37], photos[37:90], photos[90:]):
        metrics = Metrics()
        watch = DriftWatch(record, metrics, state)
        for result in part:
            watch.on_answer(result)
        watch.close()
    content, expected = json.loads(state.read_text()), json.loads(whole.monitor.to_json())
    assert (content["rows"], content["alarms"]) == (150, expected["alarms"])
    for name in WATCHED:
        assert content["tests"][name]["logs"] == pytest.approx(expected["tests"][name]["logs"])
    assert "resuming after 90 photos" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["watch.json"]


def test_an_alarm_is_saved_at_once(
    session: Session, record: CalibrationRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift_watch, "SAVE_EVERY_S", np.inf)
    state = tmp_path / "watch.json"
    watch = DriftWatch(record, Metrics(), state)
    for result in traffic(session, record, 300, dim=0.4):
        watch.on_answer(result)
    content, now = json.loads(state.read_text()), json.loads(watch.monitor.to_json())
    assert content["alarms"] == now["alarms"] != []
    assert content["rows"] < now["rows"]  # nothing was saved since


def test_an_earlier_alarm_is_active_after_a_restart(
    session: Session, record: CalibrationRecord, tmp_path: Path
) -> None:
    state = tmp_path / "watch.json"
    first = DriftWatch(record, Metrics(), state)
    for result in traffic(session, record, 600, dim=0.4):
        first.on_answer(result)
    first.close()
    metrics = Metrics()
    DriftWatch(record, metrics, state)
    assert (
        {name for name, value in alarms(metrics).items() if value}
        == {alarm.watched for alarm in first.monitor.alarms}
        != set()
    )


@pytest.mark.parametrize("damage", ["other calibration", "cut", "no json", "half of the tests"])
def test_a_state_of_another_calibration_is_discarded_and_logged(
    session: Session,
    record: CalibrationRecord,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    state = tmp_path / "watch.json"
    before = DriftWatch(record, Metrics(), state)
    for result in traffic(session, record, 10):
        before.on_answer(result)
    before.close()
    text = state.read_text()
    plain = json.loads(text)
    del plain["tests"]["logsumexp"]
    broken = {"cut": text[:100], "no json": "?", "half of the tests": json.dumps(plain)}
    state.write_text(broken.get(damage, text))
    other = replace(record, calibration_id="new") if damage == "other calibration" else record
    watch = DriftWatch(other, Metrics(), state)
    assert "from the start" in caplog.text
    fresh = DriftWatch(other, Metrics(), None)
    assert watch.monitor.to_json() == fresh.monitor.to_json()
    assert json.loads(state.read_text())["rows"] == 0


def test_a_state_that_cannot_be_written_is_logged_once_and_watching_continues(
    session: Session, record: CalibrationRecord, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    watch = DriftWatch(record, Metrics(), folder / "watch.json")
    (folder / "watch.json").unlink()
    folder.rmdir()
    for result in traffic(session, record, 3):
        watch.on_answer(result)
        watch.close()
    assert watch.monitor.rows == 3
    assert caplog.text.count("cannot be written") == 1


def test_the_server_watches_unless_told_not_to(bundle: Path, tmp_path: Path) -> None:
    state = tmp_path / "new" / "watch.json"
    for settings, rows in (
        (Settings(bundle=bundle, watch_state=state), 4.0),
        (Settings(bundle=bundle, watch=False), None),
    ):
        with TestClient(create_app(settings)) as client:
            for k in (1, 2, 3, 7):
                client.post(f"/v1/identify?k={k}", content=garden.photo(k))
            metrics = client.app.state.engine.metrics  # type: ignore[attr-defined]  # a FastAPI
        lines = metrics.text().decode().splitlines()
        assert any(line.startswith("florilege_drift_alarm{") for line in lines) is settings.watch
        assert f"florilege_drift_photos {rows or 0.0}" in lines
    assert json.loads(state.read_text())["rows"] == 4


def test_a_state_that_cannot_be_a_file_is_a_usage_error(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--watch-state .* is a folder; name a file"):
        create_app(Settings(bundle=bundle, watch_state=tmp_path))
