"""Several photos of one plant as one row of scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.calibration.fusion import fuse
from florilege.calibration.marginals import top_k_marginals
from florilege.calibration.photo_groups import groups_of
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import SCORE_KINDS, ScoreKind, scores
from tests.calibration.simulation import draw

RULE_ROWS = 4000
both = pytest.mark.parametrize("k", [None, 2])
shapes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(2, 5))


def some_logits(seed: int, plants: int, photos: int, classes: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (plants, photos, classes))


@pytest.mark.parametrize("kind", SCORE_KINDS)
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), shape=shapes)
def test_fusion_is_the_photos_mean(kind: ScoreKind, seed: int, shape: tuple[int, int, int]) -> None:
    logits = some_logits(seed, *shape)
    marginals = fuse(logits, score_kind=kind, k=2)
    for plant, scores_of_plant in enumerate(fuse(logits, score_kind=kind)):
        single = [scores(photo[np.newaxis], kind)[0] for photo in logits[plant]]
        assert scores_of_plant == pytest.approx(sum(single) / len(single))
        assert marginals[plant] == pytest.approx(top_k_marginals(logits[plant], 2).mean(axis=0))


@both
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000), shape=shapes)
def test_the_order_of_photos_and_the_plants_beside_change_no_digit(
    k: int | None, seed: int, shape: tuple[int, int, int]
) -> None:
    logits, random = some_logits(seed, *shape), np.random.default_rng(seed)
    fused = fuse(logits, score_kind="softmax", k=k)
    shuffled = logits[:, random.permutation(shape[1])]
    assert fuse(shuffled, score_kind="softmax", k=k).tolist() == fused.tolist()
    assert fuse(logits[-1:], score_kind="softmax", k=k)[0].tolist() == fused[-1].tolist()
    classes = random.permutation(shape[2])
    moved = fuse(logits[:, :, classes], score_kind="softmax", k=k)
    assert moved == pytest.approx(fused[:, classes])


@both
def test_one_photo_is_itself_and_equal_photos_are_one(k: int | None) -> None:
    logits = some_logits(3, 6, 1, 5)
    single = scores(logits[:, 0], "softmax") if k is None else top_k_marginals(logits[:, 0], k)
    for photos in (1, 3):
        fused = fuse(np.repeat(logits, photos, axis=1), score_kind="softmax", k=k)
        assert fused == pytest.approx(single, rel=1e-14)
    assert fuse(logits, score_kind="softmax", k=k).tolist() == single.tolist()


@both
def test_rows_sum_to_one_or_k_and_an_impossible_class_stays_out(k: int | None) -> None:
    logits = some_logits(1, 7, 3, 6)
    logits[:, :, 4] = -np.inf
    fused = fuse(logits, score_kind="softmax", k=k)
    assert fused.sum(axis=1) == pytest.approx(k or 1)
    assert ((fused >= 0) & (fused <= 1)).all()
    assert not fused[:, 4].any()


@pytest.mark.parametrize("photos", [2, 3, 5])
def test_a_threshold_for_so_many_photos_keeps_k_where_that_of_one_does_not(photos: int) -> None:
    sample = draw(np.random.default_rng(photos), 2 * RULE_ROWS)
    logits = np.log(sample.scores)
    for_one = calibrate("average_k", sample.scores[:RULE_ROWS], average_k=3, min_size=0)
    fused = []
    for half in (slice(None, RULE_ROWS), slice(RULE_ROWS, None)):
        groups = groups_of(sample.labels[half], size=photos)
        fused.append(fuse(logits[half][groups.rows], score_kind="softmax"))
    for_several = calibrate("average_k", fused[0], average_k=3, min_size=0)
    sizes = for_several.sets(fused[1]).sum(axis=1)
    error = sizes.std() * np.sqrt(1 / len(fused[0]) + 1 / len(fused[1]))
    assert sizes.mean() == pytest.approx(3.0, abs=3 * error)
    off = for_one.sets(fused[1]).sum(axis=1).mean()
    assert abs(off - 3.0) > max(6 * error, 0.25)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 2, 3), {"k": 9}, r"k must be .* \[1, 3\]"),
        ((1, 2, 3), {"score_kind": "logit"}, "kind must be one of"),
        *((shape, {}, "plants, photos, classes") for shape in
          [(2, 3), (0, 2, 3), (2, 0, 3), (2, 3, 0)]),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(
    shape: tuple[int, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fuse(np.zeros(shape), **{"score_kind": "softmax", **options})  # type: ignore[arg-type]


@both
def test_a_nan_is_refused(k: int | None) -> None:
    logits = some_logits(0, 2, 2, 3)
    logits[1, 0, 2] = np.nan
    with pytest.raises(ValueError, match="logits must"):
        fuse(logits, score_kind="softmax", k=k)
