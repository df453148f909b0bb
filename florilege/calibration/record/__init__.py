"""The content of ``calibration.json``: each threshold, its figures, and the photos they are of."""

from florilege.calibration.record.record import CalibrationRecord as CalibrationRecord
