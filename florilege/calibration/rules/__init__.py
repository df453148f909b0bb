"""The set rules: each chooses a threshold on scores and documents its guarantee."""

from florilege.calibration.rules.label_noise import LabelNoise as LabelNoise
from florilege.calibration.rules.label_noise import NoiseKind as NoiseKind
from florilege.calibration.rules.label_noise import NoisyLabels as NoisyLabels
from florilege.calibration.rules.label_noise import check_label_noise as check_label_noise
from florilege.calibration.rules.label_noise import parse_label_noise as parse_label_noise
from florilege.calibration.rules.rules import MACRO_WEIGHT as MACRO_WEIGHT
from florilege.calibration.rules.rules import RULES as RULES
from florilege.calibration.rules.rules import RuleName as RuleName
from florilege.calibration.rules.rules import RuleSpec as RuleSpec
from florilege.calibration.rules.rules import calibrate as calibrate
from florilege.calibration.rules.rules import class_prior as class_prior
from florilege.calibration.rules.rules import class_weights as class_weights
from florilege.calibration.rules.rules import usual_guarantee as usual_guarantee
from florilege.calibration.rules.score_summary import ScoreSummary as ScoreSummary
