"""The set rules: each chooses a threshold from scores, and says what it promises."""

from calibration.rules.rules import calibrate as calibrate
