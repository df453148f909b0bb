"""Calibrate, measure and compare bundles on labelled photos."""

from florilege.calibration.calibrate.calibrate import calibrate_bundle as calibrate_bundle
from florilege.calibration.calibrate.evaluate import Evaluated as Evaluated
from florilege.calibration.calibrate.evaluate import Evaluation as Evaluation
from florilege.calibration.calibrate.evaluate import evaluate_bundle as evaluate_bundle
from florilege.calibration.calibrate.gate import Gate as Gate
from florilege.calibration.calibrate.gate import agreement as agreement
from florilege.calibration.calibrate.gate import check_comparable as check_comparable
from florilege.calibration.calibrate.gate import compare_outputs as compare_outputs
from florilege.calibration.calibrate.gate import differences as differences
from florilege.calibration.calibrate.noise_rate import noisy_labels as noisy_labels
from florilege.calibration.calibrate.photo_outputs import BundleOutputs as BundleOutputs
from florilege.calibration.calibrate.photo_outputs import SplitOutputs as SplitOutputs
from florilege.calibration.calibrate.photo_outputs import bundle_outputs as bundle_outputs
from florilege.calibration.calibrate.photo_outputs import outputs_of as outputs_of
from florilege.calibration.calibrate.score_sources import Source as Source
from florilege.calibration.calibrate.threshold_tables import tabulate as tabulate
