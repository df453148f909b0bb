"""Opening a bundle tells what its calibration does not know of this decoder."""

import json
from pathlib import Path

import pytest

from florilege.calibration.record import CalibrationRecord
from florilege.models.bundle import CALIBRATION, open_bundle
from florilege.models.images import DECODER_VERSION
from florilege.server.answers.pipeline import open_pipeline


def test_a_calibration_with_another_decoder_is_a_warning(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_pipeline(bundle)
    assert "decoder" not in caplog.text
    monkeypatch.setattr("florilege.models.images.DECODER_VERSION", DECODER_VERSION + 1)
    open_pipeline(bundle)
    assert "calibrated with another decoder" in caplog.text
    assert f"florilege calibrate {bundle}" in caplog.text


def test_a_record_that_names_no_decoder_is_of_the_first(bundle: Path) -> None:
    text = open_bundle(bundle).read(CALIBRATION)
    document = json.loads(text)
    assert document["measured"].pop("decoder") == DECODER_VERSION
    record = CalibrationRecord.from_json(json.dumps(document))
    assert record.measured.decoder == 1
