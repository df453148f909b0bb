"""The score log as the server writes it: its content, and the cost of a full disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilege.calibration.monitoring.score_log import ScoreLogWriter, Scorer, open_score_log
from florilege.calibration.record.record_file import read_record
from florilege.errors import UsageError
from florilege.models.bundle import open_bundle
from florilege.server.answers.pipeline import open_pipeline
from florilege.server.answers.query import IdentifyQuery
from florilege.server.app import create_app
from florilege.server.background.factory import _ScoreLogListener
from florilege.server.prometheus import Metrics
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.http_client import open_client
from tests.server.metric_values import value


@pytest.fixture
def scorer(bundle: Path) -> Scorer:
    opened = open_bundle(bundle)
    return Scorer.of(opened, read_record(opened))


def photos_counted(metrics: Metrics, outcome: str) -> float:
    return value(metrics, "score_log_photos_total", outcome=outcome)


def test_the_logits_of_every_photo_are_logged_bit_for_bit_whatever_was_asked(
    bundle: Path, scorer: Scorer, tmp_path: Path
) -> None:
    folder = tmp_path / "scores"
    groups = [[0], [5, 6], [9], [3]]
    queries: tuple[dict[str, Any], ...] = ({}, {}, {"rule": "top_k", "k": 5}, {"reject": "true"})
    with open_client(bundle, score_log=folder) as client:
        for group, query in zip(groups, queries, strict=True):
            files = [("images", ("p.png", garden.photo(index))) for index in group]
            assert client.post("/v1/identify", params=query, files=files).status_code == 200
        assert client.post("/v1/identify", content=b"no photo").status_code == 415
        metrics = client.app.state.engine.metrics  # type: ignore[attr-defined]  # a FastAPI
    assert photos_counted(metrics, "written") == 5
    pipeline = open_pipeline(bundle, device="cpu")
    expected = [
        pipeline([garden.photo(index) for index in group], IdentifyQuery(), "r").logits
        for group in groups
    ]
    with open_score_log(folder, scorer) as logged:
        for photos in (1, 2):
            (result,) = logged.blocks(photos=photos)  # (requests, photos, classes)
            assert np.array_equal(result, np.stack([one for one in expected if len(one) == photos]))


def test_the_log_is_bounded_as_the_settings_say(bundle: Path, tmp_path: Path) -> None:
    with open_client(bundle, score_log=tmp_path, score_log_max_bytes=1000) as client:
        for _ in range(20):
            client.post("/v1/identify", content=garden.photo(0))
    assert 500 < sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000


def test_without_the_setting_nothing_is_logged(bundle: Path) -> None:
    app = create_app(Settings(bundle=bundle))
    names = [listener.name for listener in app.state.engine.publisher.listeners]
    assert names == ["watch"]


def test_a_failing_disk_loses_rows_and_is_logged_once(
    scorer: Scorer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder was")
    log = _ScoreLogListener(ScoreLogWriter(blocked, scorer, max_bytes=2**30), metrics)
    logits = np.zeros((2, 12), dtype=np.float32)
    for _ in range(3):
        log.on_answer(logits, restricted=False)
    assert photos_counted(metrics, "failed") == 6
    assert caplog.text.count("score log cannot be written") == 1
    blocked.unlink()
    log.on_answer(logits, restricted=False)
    log.close()
    assert photos_counted(metrics, "written") == 2


@pytest.mark.parametrize("name", ["score_log", "feedback_store", "watch_state"])
def test_an_impossible_folder_is_a_usage_error_at_start(
    bundle: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "below" / "state"
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}: .*cannot be created"):
        create_app(Settings(bundle=bundle, **{name: target}))  # type: ignore[arg-type]  # a path
