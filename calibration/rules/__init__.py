"""The set rules: each chooses a threshold from scores, and says what it promises."""

from florilege.calibration.rules.class_conditional import SmallClasses as SmallClasses
from florilege.calibration.rules.rules import RULES as RULES
from florilege.calibration.rules.rules import RuleName as RuleName
from florilege.calibration.rules.rules import RuleSpec as RuleSpec
from florilege.calibration.rules.rules import calibrate as calibrate
from florilege.calibration.rules.rules import class_weights as class_weights
from florilege.calibration.rules.rules import usual_guarantee as usual_guarantee
