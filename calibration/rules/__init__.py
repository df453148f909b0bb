"""The set rules: each chooses a threshold from scores, and says what it promises."""

from calibration.rules.class_conditional import SmallClasses as SmallClasses
from calibration.rules.rules import RULES as RULES
from calibration.rules.rules import RuleName as RuleName
from calibration.rules.rules import RuleSpec as RuleSpec
from calibration.rules.rules import calibrate as calibrate
from calibration.rules.rules import class_weights as class_weights
from calibration.rules.rules import usual_guarantee as usual_guarantee
