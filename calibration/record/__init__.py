"""What ``calibration.json`` holds: each threshold, what it was measured to do, and on what."""

from florilege.calibration.record.record import CalibrationRecord as CalibrationRecord
