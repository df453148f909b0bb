"""Diagnostics of the record that all folders share."""

import pytest

from florilege.calibration.record import CalibrationRecord
from florilege.calibration.report.diagnostics import Diagnostics, diagnose
from tests.calibration.record.test_record import sample_logits, scoring_of


@pytest.fixture(scope="session")
def findings(record: CalibrationRecord) -> Diagnostics:
    logits, labels = sample_logits()
    return diagnose(record, scoring_of({"multi_label": logits}, labels))
