"""Opening a bundle tells what its calibration does not know of this decoder; reloads."""

import json
from pathlib import Path

import pytest

from florilege.calibration.record import CalibrationRecord
from florilege.models.bundle import CALIBRATION, open_bundle
from florilege.models.images import DECODER_VERSION
from florilege.models.regions import RegionList
from florilege.server.answers.pipeline import open_pipeline
from florilege.server.answers.query import IdentifyQuery
from tests.server import garden


def test_a_calibration_with_another_decoder_is_a_warning(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_pipeline(bundle)
    assert "decoder" not in caplog.text
    monkeypatch.setattr("florilege.models.images.DECODER_VERSION", DECODER_VERSION + 1)
    open_pipeline(bundle)
    assert "calibrated with another decoder" in caplog.text
    assert f"florilege calibrate {bundle}" in caplog.text


def test_a_query_planned_before_a_reload_is_answered_with_what_came(bundle: Path) -> None:
    before = open_pipeline(bundle, device="cpu")
    lists = before.planner.lists
    old, new = (lists.adding([RegionList(name="here", classes=at)]) for at in ((0, 1), (3, 4, 5)))
    plan = before.with_lists(old).planner.plan(IdentifyQuery(list="here", include=["scores"]))
    rows = before.all_outputs([garden.photo(4)])
    after = before.with_lists(new)
    results = after.decide(rows, plan, "id").answer.results
    assert {result.class_id for result in results} == {*after.bundle.classes.ids[3:6]}


def test_a_record_that_names_no_decoder_is_of_the_first(bundle: Path) -> None:
    text = open_bundle(bundle).read(CALIBRATION)
    document = json.loads(text)
    assert document["measured"].pop("decoder") == DECODER_VERSION
    record = CalibrationRecord.from_json(json.dumps(document))
    assert record.measured.decoder == 1
