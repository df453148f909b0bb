"""The whole cycle after deployment: serve, log, recalibrate from the log, serve again."""

from pathlib import Path

import numpy as np
import pytest

from florilege.calibration.monitoring.recalibration import recalibrate_bundle
from florilege.models.bundle import open_bundle
from tests.server import garden
from tests.server.http_client import open_client


def shifted_photo(generator: np.random.Generator) -> bytes:
    """A photo of one of the first four flowers: the others are out of season."""
    colour = garden.COLOURS[generator.integers(4)] + generator.normal(0.0, 0.15, 3)
    return garden.encoded(garden.pixels(colour, seed=int(generator.integers(2**31))))


def test_a_bundle_calibrated_from_its_own_score_log_is_served_with_the_size_it_promises(
    served: Path, tmp_path: Path
) -> None:
    before, log = open_bundle(served).sha256, tmp_path / "log"
    generator = np.random.default_rng(5)
    with open_client(served, score_log=log) as client:
        for _ in range(540):
            client.post("/v1/identify", content=shifted_photo(generator))
    recalibrate_bundle(served, log, approve=True)
    with open_client(served) as client:
        answers = [
            client.post("/v1/identify?include=scores", content=shifted_photo(generator)).json()
            for _ in range(150)
        ]
        metrics = client.app.state.engine.metrics  # type: ignore[attr-defined]  # a FastAPI
    first = answers[0]
    assert first["model"]["bundle_sha256"] != before
    assert first["set"]["hit_rate"] is None  # nobody labelled the traffic
    assert first["set"]["calibrated"] is True
    sizes = [answer["set"]["size"] for answer in answers]
    assert np.mean(sizes) == pytest.approx(3.0, abs=4 * np.std(sizes) / len(sizes) ** 0.5)
    for answer in answers:
        inside = [r["score"] >= answer["set"]["lambda"] for r in answer["results"]]
        assert inside[1:] == [r["in_set"] for r in answer["results"]][1:]
    alarms = [sample.value for family in metrics.drift_alarm.collect() for sample in family.samples]
    assert alarms
    assert not any(alarms)  # the watch compares with the new calibration
