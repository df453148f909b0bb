"""The set rules: each chooses a threshold on scores and documents its guarantee."""

from florilege.calibration.rules.rules import MACRO_WEIGHT as MACRO_WEIGHT
from florilege.calibration.rules.rules import RULES as RULES
from florilege.calibration.rules.rules import RuleName as RuleName
from florilege.calibration.rules.rules import RuleSpec as RuleSpec
from florilege.calibration.rules.rules import calibrate as calibrate
from florilege.calibration.rules.rules import class_prior as class_prior
from florilege.calibration.rules.rules import class_weights as class_weights
from florilege.calibration.rules.rules import usual_guarantee as usual_guarantee
