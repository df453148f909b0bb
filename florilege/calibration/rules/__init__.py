"""The set rules: each chooses a threshold on scores and documents its guarantee."""

from florilege.calibration.rules.rule_table import RULES as RULES
from florilege.calibration.rules.rule_table import RuleName as RuleName
from florilege.calibration.rules.rule_table import RuleSpec as RuleSpec
from florilege.calibration.rules.rule_table import calibrate as calibrate
from florilege.calibration.rules.rule_table import usual_guarantee as usual_guarantee
from florilege.calibration.rules.rules import MACRO_WEIGHT as MACRO_WEIGHT
from florilege.calibration.rules.rules import class_prior as class_prior
from florilege.calibration.rules.rules import class_weights as class_weights
