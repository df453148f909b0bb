"""The public import path of ``florilege.calibration.monitoring.monitor``."""

from florilege.calibration.monitoring.monitor import Alarm as Alarm
from florilege.calibration.monitoring.monitor import Expected as Expected
from florilege.calibration.monitoring.monitor import Monitor as Monitor
from florilege.calibration.monitoring.monitor import expected_of as expected_of
