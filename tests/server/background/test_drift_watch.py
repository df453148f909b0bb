"""The drift watch: silent on photos like those of the validation, an alarm on others."""

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilege.calibration.drift import WATCHED
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.scores import logsumexp
from florilege.calibration.view import PLAIN
from florilege.errors import UsageError
from florilege.models.bundle import open_bundle
from florilege.models.session import Session
from florilege.processes import WorkerGroup
from florilege.server import publisher
from florilege.server.app import create_app
from florilege.server.prometheus import Metrics
from florilege.server.publisher import Answered, _DriftWatch
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.http_client import open_client
from tests.server.metric_values import value

Traffic = Callable[..., list[np.ndarray]]  # logits


@pytest.fixture(scope="module")
def traffic(bundle: Path, record: CalibrationRecord) -> Traffic:
    """Makes photos distributed as those of the validation, optionally dimmer."""
    session = Session(open_bundle(bundle), device="cpu")

    def make(rows: int, *, dim: float = 1.0) -> list[np.ndarray]:
        generator, requests = np.random.default_rng(3), []
        for _ in range(rows):
            colour = garden.COLOURS[generator.integers(12)] + generator.normal(0.0, 0.15, 3)
            photo = garden.pixels(dim * colour, seed=int(generator.integers(2**31)))
            logits = session.logits(photo[np.newaxis])[record.head]
            requests.append(logits)
        return requests

    return make


def pass_on(watch: _DriftWatch, requests: Iterable[np.ndarray], portion: int = 64) -> None:
    """Let a watch process requests in portions, as the server does."""
    answered = [Answered(logits, restricted=False) for logits in requests]
    for start in range(0, len(answered), portion):
        watch.on_answers(answered[start : start + portion])


def watched(
    record: CalibrationRecord,
    photos: Iterable[np.ndarray],
    state: Path | None = None,
) -> tuple[_DriftWatch, Metrics]:
    """A watch that has processed the photos, and its metrics."""
    metrics = Metrics()
    watch = _DriftWatch(record, metrics, state)
    pass_on(watch, photos)
    watch.close()
    return watch, metrics


def overheard(watch: _DriftWatch) -> list[tuple[np.ndarray, ...]]:
    """What the monitor of a watch gets from now on."""
    update, calls = watch.monitor.update, list[tuple[np.ndarray, ...]]()

    def listen(*values: np.ndarray) -> Any:
        calls.append(values)
        return update(*values)

    watch.monitor.update = listen  # type: ignore[method-assign,assignment]  # to overhear
    return calls


def raised(metrics: Metrics) -> set[str]:
    return {name for name in WATCHED if value(metrics, "drift_alarm", watched=name)}


def test_photos_like_those_of_the_validation_raise_no_alarm(
    traffic: Traffic, record: CalibrationRecord, caplog: pytest.LogCaptureFixture
) -> None:
    _, metrics = watched(record, traffic(1000))
    assert raised(metrics) == set()
    assert value(metrics, "drift_photos") == 1000
    assert "drift" not in caplog.text


@pytest.mark.parametrize("split", ["val", "traffic"])
def test_what_a_calibration_from_traffic_left_out_is_not_compared_with_it(
    traffic: Traffic, record: CalibrationRecord, split: str
) -> None:
    judge = record.rejection and record.rejection.from_logits
    assert judge is not None
    photos = traffic(80)
    middle = float(np.median([judge.familiarity(content) for content in photos]))
    strict = replace(judge, threshold=middle)  # every second photo is suspect
    suspect = sum(strict.verdict(result)[1] for result in photos)
    assert 0 < suspect < len(photos)
    measured = replace(record.measured, split=split)
    watch, _ = watched(replace(record, measured=measured, rejection=strict), photos)
    assert watch.monitor.rows == len(photos) - (suspect if split == "traffic" else 0)


def test_sets_and_scores_are_those_of_the_default_k(
    traffic: Traffic, record: CalibrationRecord
) -> None:
    """The monitor gets the sets at the default K, for any query."""
    watch, photos = _DriftWatch(record, Metrics(), None), traffic(5)
    calls = overheard(watch)
    pass_on(watch, photos)
    logits = np.concatenate(photos).astype(np.float64)
    powers = np.exp(logits)
    scores = powers / powers.sum(axis=1, keepdims=True)
    lambda_val = record.point(PLAIN, record.setting("average_k", record.default_k)).lambda_val
    assert lambda_val is not None
    ((sizes, best, lse),) = calls
    assert list(sizes) == list(np.maximum(1, (scores >= lambda_val).sum(axis=1)))
    assert best == pytest.approx(scores.max(axis=1))
    assert lse == pytest.approx(np.log(powers.sum(axis=1)))


def test_the_state_is_saved_now_and_then_without_an_alarm(
    traffic: Traffic, record: CalibrationRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, saved, state = 1000.0, [], tmp_path / "watch.json"
    monkeypatch.setattr(publisher, "monotonic", lambda: now)
    monkeypatch.setattr(publisher, "SAVE_EVERY_S", 60.0)
    watch = _DriftWatch(record, Metrics(), state)
    for seconds, photo in zip((0, 59, 60, 61.5, 63, 121, 123), traffic(7), strict=True):
        now = 1000.0 + seconds
        pass_on(watch, [photo])
        saved.append(json.loads(state.read_text())["rows"])
    assert saved == [0, 0, 0, 4, 4, 4, 7]


def test_an_answer_that_was_restricted_to_a_list_does_not_count(
    traffic: Traffic, record: CalibrationRecord
) -> None:
    watch, photos = _DriftWatch(record, Metrics(), None), traffic(4)
    restricted = [number % 2 > 0 for number in range(4)]
    watch.on_answers([*map(Answered, photos, restricted)])
    watch.on_answers([Answered(photos[3], restricted=True)])
    assert watch.monitor.rows == 2


def test_several_photos_of_a_request_count_as_one(
    traffic: Traffic, record: CalibrationRecord
) -> None:
    watch = _DriftWatch(record, Metrics(), None)
    rows = np.concatenate(traffic(400))
    calls = overheard(watch)
    pass_on(watch, rows.reshape(100, 4, -1))
    assert watch.monitor.rows == 100
    seen = np.concatenate([lse for _, _, lse in calls])
    places = np.flatnonzero(np.isin(logsumexp(rows), seen)) % 4
    assert min(np.bincount(places)) > 10  # the first, second, third and fourth photo alike


def test_a_repeated_photo_does_not_count(
    traffic: Traffic, record: CalibrationRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = traffic(8, dim=0.4)
    watch, metrics = watched(record, 50 * photos)
    assert watch.monitor.rows == 8
    assert raised(metrics) == set()
    monkeypatch.setattr(publisher, "MAX_RECENT_PHOTOS", 4)
    order = (0, 1, 2, 3, 0, 4, 0, 1)  # four are remembered, the least recent is forgotten
    assert watched(record, [photos[place] for place in order])[0].monitor.rows == 6


def test_an_alarm_is_logged_once_and_ends_when_photos_are_again_as_they_were(
    traffic: Traffic, record: CalibrationRecord, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "florilege.server")
    state = tmp_path / "watch.json"
    first, metrics = watched(record, traffic(600, dim=0.4), state)
    alarms = raised(metrics)
    assert caplog.text.count("calibrate on newer photos") == len(alarms)
    _DriftWatch(record, metrics := Metrics(), state)  # the server is started anew
    assert raised(metrics) == alarms == {alarm.watched for alarm in first.monitor.alarms} != set()
    _, metrics = watched(record, traffic(2000), state)
    assert raised(metrics) == set()
    assert caplog.text.count("drift: over since photo ") == len(alarms)


def test_the_state_is_kept_across_restarts_and_does_not_depend_on_splits(
    traffic: Traffic, record: CalibrationRecord, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    photos, state = traffic(150, dim=0.7), tmp_path / "watch.json"
    expected = json.loads(watched(record, photos)[0].monitor.to_json())
    for part in (photos[:37], photos[37:90], photos[90:]):
        watched(record, part, state)
    content = json.loads(state.read_text())
    assert (content["rows"], content["alarms"]) == (150, expected["alarms"])
    for name in WATCHED:
        assert content["tests"][name]["logs"] == pytest.approx(expected["tests"][name]["logs"])
    assert "resuming after 90 photos" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["watch.json"]


def test_an_alarm_is_saved_at_once(
    traffic: Traffic, record: CalibrationRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "SAVE_EVERY_S", np.inf)
    state = tmp_path / "watch.json"
    watch = _DriftWatch(record, Metrics(), state)
    pass_on(watch, traffic(300, dim=0.4))
    content, now = json.loads(state.read_text()), json.loads(watch.monitor.to_json())
    assert content["alarms"] == now["alarms"] != []
    assert content["rows"] < now["rows"]  # nothing was saved since


@pytest.mark.parametrize("damage", ["other calibration", "cut", "no json", "half of the tests"])
def test_a_state_of_another_calibration_is_discarded_and_logged(
    traffic: Traffic,
    record: CalibrationRecord,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    state = tmp_path / "watch.json"
    watched(record, traffic(10), state)
    text = state.read_text()
    plain = json.loads(text)
    del plain["tests"]["logsumexp"]
    broken = {"cut": text[:100], "no json": "?", "half of the tests": json.dumps(plain)}
    state.write_text(broken.get(damage, text))
    other = replace(record, calibration_id="new") if damage == "other calibration" else record
    watch = _DriftWatch(other, Metrics(), state)
    assert "from the start" in caplog.text
    assert watch.monitor.to_json() == _DriftWatch(other, Metrics(), None).monitor.to_json()
    assert json.loads(state.read_text())["rows"] == 0


def test_a_state_that_cannot_be_written_is_logged_once_and_watching_continues(
    traffic: Traffic, record: CalibrationRecord, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    watch = _DriftWatch(record, Metrics(), folder / "watch.json")
    (folder / "watch.json").unlink()
    folder.rmdir()
    for photo in traffic(3):
        pass_on(watch, [photo])
        watch.close()
    assert watch.monitor.rows == 3
    assert caplog.text.count("cannot be written") == 1


def test_the_server_watches_unless_told_not_to(bundle: Path, tmp_path: Path) -> None:
    state = tmp_path / "new" / "watch.json"
    settings: tuple[dict[str, Any], ...] = ({"watch_state": state}, {"watch": False})
    for watch, options in zip((True, False), settings, strict=True):
        with open_client(bundle, **options) as client:
            for k in (1, 2, 3, 7):
                client.post(f"/v1/identify?k={k}", content=garden.photo(k))
            metrics = client.app.state.engine.metrics  # type: ignore[attr-defined]  # a FastAPI
        lines = metrics.text().decode().splitlines()
        assert any(line.startswith("florilege_drift_alarm{") for line in lines) is watch
        assert f"florilege_drift_photos {4.0 if watch else 0.0}" in lines
    assert json.loads(state.read_text())["rows"] == 4


def test_a_state_that_cannot_be_a_file_is_a_usage_error(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="watch-state"):
        create_app(Settings(bundle=bundle, watch_state=tmp_path))


def test_workers_watch_together(
    traffic: Traffic, record: CalibrationRecord, tmp_path: Path
) -> None:
    """Each continues where the other has stopped; a photo that both get counts once."""
    groups = [WorkerGroup(tmp_path, 2, number) for number in range(2)]
    groups[0].create()
    state = tmp_path / "state.json"
    workers = [_DriftWatch(record, Metrics(), state, group) for group in groups]
    photos = traffic(300)
    for start in range(0, 300, 60):
        for number, worker in enumerate(workers):
            pass_on(worker, photos[start + number : start + 60 : 2])
    for number, worker in enumerate(workers):
        pass_on(worker, photos[1 - number : 50 : 2])  # those that the other had
        worker.close()
    assert workers[1].monitor.rows == json.loads(state.read_text())["rows"] == 300
    alone, _ = watched(record, [])
    alone.monitor.restore(state.read_bytes())  # a server of one worker continues from it
    new = _DriftWatch(record, Metrics(), None, groups[0])
    assert new.monitor.rows == 300
    other = _DriftWatch(replace(record, calibration_id="f" * 16), Metrics(), None, groups[0])
    assert other.monitor.rows == 0


def test_workers_watch_on_a_full_disk_and_say_so_once(
    traffic: Traffic, record: CalibrationRecord, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = WorkerGroup(tmp_path, 2)
    group.create()
    (tmp_path / "watch.new").mkdir()  # so that nothing can be written there
    worker = _DriftWatch(record, Metrics(), None, group)
    pass_on(worker, traffic(200))
    worker.close()
    assert [entry.message.partition(":")[0] for entry in caplog.records] == [
        "the state of the drift watch cannot be written"
    ]
