"""The content of ``calibration.json``: each threshold, its figures, and the photos they are of."""

from florilege.calibration.record.measurement import Measurement as Measurement
from florilege.calibration.record.measurement import ShotGroup as ShotGroup
from florilege.calibration.record.measurement import measure_by_shots as measure_by_shots
from florilege.calibration.record.measurement import size_bins as size_bins
from florilege.calibration.record.operating_point import NotCalibrated as NotCalibrated
from florilege.calibration.record.operating_point import OperatingPoint as OperatingPoint
from florilege.calibration.record.operating_point import Row as Row
from florilege.calibration.record.operating_point import Verb as Verb
from florilege.calibration.record.operating_point import row_of as row_of
from florilege.calibration.record.record import PREFERRED_K as PREFERRED_K
from florilege.calibration.record.record import CalibrationRecord as CalibrationRecord
from florilege.calibration.record.record import Served as Served
from florilege.calibration.record.schema import TRAFFIC as TRAFFIC
from florilege.calibration.record.schema import ByClass as ByClass
from florilege.calibration.record.schema import CalibratedList as CalibratedList
from florilege.calibration.record.schema import Counts as Counts
from florilege.calibration.record.schema import Origin as Origin
from florilege.calibration.record.schema import PlacePrior as PlacePrior
from florilege.calibration.record.schema import Selection as Selection
from florilege.calibration.record.schema import Table as Table
from florilege.calibration.record.schema import Thresholds as Thresholds
