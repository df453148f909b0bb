"""The public import path of ``calibration.live.drift``."""

from calibration.live.drift import Alarm as Alarm
from calibration.live.drift import Expected as Expected
from calibration.live.drift import Monitor as Monitor
from calibration.live.drift import expected_of as expected_of
from calibration.sets import largest_set as largest_set
