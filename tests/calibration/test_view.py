"""What is known beside the pictures, and the one way from logits to scores."""

from typing import Any

import numpy as np
import pytest

from florilege.calibration.scores import scores
from florilege.calibration.view import PLAIN, Scoring, Setting, View

RANDOM = np.random.default_rng(5)
LOGITS = RANDOM.normal(0, 2, (6, 2, 5))  # observations, photos, classes
LISTED = np.array([1, 2, 4])
LIFT = RANDOM.normal(0, 1, (6, 5))
PRIOR = np.array([0.4, 0.3, 0.1, 0.15, 0.05])


def test_one_photo_alone_is_the_plain_view() -> None:
    assert PLAIN.single
    assert not View(place="region").single


def test_a_view_is_described_by_what_it_knows() -> None:
    assert str(PLAIN) == ""
    several = View(photos=2, list="alps", place="region_and_month")
    assert str(several) == "with 2 photos for photos with region and month for the list 'alps'"


def test_a_setting_has_the_usual_guarantee_of_its_rule() -> None:
    assert Setting.of("coverage", 0.9) == Setting("coverage", 0.9, "mean")
    assert Setting.of("coverage", 0.9, "probability").guarantee == "probability"
    assert Setting.of("average_k", 3).guarantee is None
    assert Setting.of("average_k", 3).asks == "k"


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_single_photos_are_scaled_lifted_and_cut_to_the_list(kind: Any) -> None:
    temperature = 1.0 if kind == "sigmoid" else 0.5
    scoring = Scoring(head="a", score_kind=kind, temperature=temperature)
    plain = scoring.scores(LOGITS[:, :1])
    assert plain == pytest.approx(scores(LOGITS[:, 0] / temperature, kind))
    lifted = scoring.scores(LOGITS[:, :1], lift=LIFT, classes=LISTED)
    cut = (LOGITS[:, 0] / temperature + LIFT)[:, LISTED]
    assert lifted == pytest.approx(scores(cut, kind))
    nothing = np.where(np.isin(np.arange(LOGITS.shape[2]), LISTED), -np.inf, LOGITS[:, :1])
    even = scoring.scores(nothing, classes=LISTED)  # no listed class is possible
    assert even == pytest.approx(scores(np.zeros(even.shape), kind))
    same_place = scoring.scores(LOGITS[:, :1], lift=LIFT[0])
    assert same_place == pytest.approx(scores(LOGITS[:, 0] / temperature + LIFT[0], kind))


def test_several_photos_are_averaged_or_multiplied_among_the_listed_classes() -> None:
    mean = Scoring(head="a", score_kind="softmax", temperature=2.0)
    each = [scores((LOGITS[:, photo] / 2)[:, LISTED], "softmax") for photo in range(2)]
    assert mean.scores(LOGITS, classes=LISTED) == pytest.approx((each[0] + each[1]) / 2)
    product = Scoring(head="a", score_kind="softmax", temperature=2.0, fusion=0.7)
    log_prior = np.log(PRIOR[LISTED])
    joint = 0.7 * sum(np.log(one) - log_prior for one in each) + log_prior + LIFT[:, LISTED]
    fused = product.scores(LOGITS, lift=LIFT, classes=LISTED, prior=PRIOR)
    assert fused == pytest.approx(scores(joint, "softmax"))
    assert product.single == mean
    assert mean.single == mean


@pytest.mark.parametrize(
    "wrong",
    [{"fusion": 0.0}, {"fusion": 1.1}, {"fusion": 0.5, "score_kind": "sigmoid"},
     {"temperature": 0.0}],
)  # fmt: skip
def test_scorings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"fusion must be in \(0, 1\]|temperature"):
        Scoring(**{"head": "a", "score_kind": "softmax", **wrong})
