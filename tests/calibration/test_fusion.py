"""Several photos of one plant as one row of scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.calibration.photo_groups import groups_of
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import SCORE_KINDS, Fusion, ScoreKind, fuse, scores
from tests.calibration.simulation import draw

RULE_ROWS = 4000
both = pytest.mark.parametrize("fusion", [None, 0.7])
shapes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(2, 5))


def some_logits(seed: int, plants: int, photos: int, classes: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (plants, photos, classes))


def fused(logits: np.ndarray, fusion: Fusion) -> np.ndarray:
    prior = np.arange(1.0, logits.shape[2] + 1)
    return fuse(logits, score_kind="softmax", fusion=fusion, prior=prior / prior.sum())


@pytest.mark.parametrize("kind", SCORE_KINDS)
@settings(max_examples=50)
@given(seed=st.integers(0, 1000), shape=shapes)
def test_fusion_is_the_photos_mean(kind: ScoreKind, seed: int, shape: tuple[int, int, int]) -> None:
    logits = some_logits(seed, *shape)
    for plant, scores_of_plant in enumerate(fuse(logits, score_kind=kind)):
        single = [scores(photo[np.newaxis], kind)[0] for photo in logits[plant]]
        assert scores_of_plant == pytest.approx(sum(single) / len(single))


@settings(max_examples=50)
@given(seed=st.integers(0, 1000), shape=shapes, exponent=st.sampled_from([0.2, 0.7, 1.0]))
def test_a_product_counts_the_prior_once(
    seed: int, shape: tuple[int, int, int], exponent: float
) -> None:
    logits = some_logits(seed, *shape)
    prior = np.arange(1.0, shape[2] + 1) / np.arange(1.0, shape[2] + 1).sum()
    for plant, row in enumerate(fused(logits, exponent)):
        product = prior.copy()
        for photo in logits[plant]:
            product *= (scores(photo[np.newaxis], "softmax")[0] / prior) ** exponent
        assert row == pytest.approx(product / product.sum(), rel=1e-9)


def test_a_product_of_independent_photos_is_the_posterior() -> None:
    """Two photos drawn independently given the class, each with its own posterior."""
    random, prior = np.random.default_rng(4), np.array([0.6, 0.3, 0.1])
    likelihoods = random.uniform(0.05, 1, (2, 3))  # of each photo under each class
    single = np.log(likelihoods * prior)
    posterior = prior * likelihoods.prod(axis=0)
    result = fuse(single[np.newaxis], score_kind="softmax", fusion=1.0, prior=prior)
    assert result[0] == pytest.approx(posterior / posterior.sum())


@pytest.mark.parametrize("fusion", [None, 0.5])
def test_a_place_is_added_to_each_photo_of_a_mean_and_once_to_a_product(fusion: Fusion) -> None:
    logits, lift = some_logits(2, 4, 3, 5), np.linspace(-1, 1, 5)
    prior = np.full(5, 0.2)
    result = fuse(
        logits, score_kind="softmax", fusion=fusion, lift=lift[np.newaxis, np.newaxis], prior=prior
    )
    if fusion is None:
        assert result == pytest.approx(fuse(logits + lift, score_kind="softmax"))
    else:
        expected = fuse(logits, score_kind="softmax", fusion=fusion, prior=prior) * np.exp(lift)
        assert result == pytest.approx(expected / expected.sum(axis=1, keepdims=True))


@both
@settings(max_examples=60)
@given(seed=st.integers(0, 1000), shape=shapes)
def test_the_order_of_photos_and_the_plants_beside_change_no_digit(
    fusion: Fusion, seed: int, shape: tuple[int, int, int]
) -> None:
    logits, random = some_logits(seed, *shape), np.random.default_rng(seed)
    rows = fused(logits, fusion)
    shuffled = logits[:, random.permutation(shape[1])]
    assert fused(shuffled, fusion).tolist() == rows.tolist()
    assert fused(logits[-1:], fusion)[0].tolist() == rows[-1].tolist()


def test_one_photo_is_itself_and_equal_photos_are_one() -> None:
    logits = some_logits(3, 6, 1, 5)
    single = scores(logits[:, 0], "softmax")
    for photos in (1, 3):
        assert fused(np.repeat(logits, photos, axis=1), None) == pytest.approx(single, rel=1e-14)
    assert fused(logits, None).tolist() == single.tolist()


@both
def test_rows_sum_to_one_and_an_impossible_class_stays_out(fusion: Fusion) -> None:
    logits = some_logits(1, 7, 3, 6)
    logits[:, :, 4] = -np.inf
    rows = fused(logits, fusion)
    assert rows.sum(axis=1) == pytest.approx(1)
    assert ((rows >= 0) & (rows <= 1)).all()
    assert not rows[:, 4].any()


def test_photos_that_exclude_every_class_together_leave_the_prior() -> None:
    logits = np.full((1, 2, 3), -np.inf)
    logits[0, 0, 0] = logits[0, 1, 1] = 0.0
    assert fused(logits, 1.0)[0] == pytest.approx([1 / 6, 2 / 6, 3 / 6])


@pytest.mark.parametrize("photos", [2, 3, 5])
def test_a_threshold_for_so_many_photos_keeps_k_where_that_of_one_does_not(photos: int) -> None:
    sample = draw(np.random.default_rng(photos), 2 * RULE_ROWS)
    logits = np.log(sample.scores)
    for_one = calibrate("average_k", sample.scores[:RULE_ROWS], average_k=3, min_size=0)
    halves = []
    for half in (slice(None, RULE_ROWS), slice(RULE_ROWS, None)):
        groups = groups_of(sample.labels[half], size=photos)
        halves.append(fuse(logits[half][groups.rows], score_kind="softmax"))
    for_several = calibrate("average_k", halves[0], average_k=3, min_size=0)
    sizes = for_several.sets(halves[1]).sum(axis=1)
    error = sizes.std() * np.sqrt(1 / len(halves[0]) + 1 / len(halves[1]))
    assert sizes.mean() == pytest.approx(3.0, abs=3 * error)
    off = for_one.sets(halves[1]).sum(axis=1).mean()
    assert abs(off - 3.0) > max(6 * error, 0.25)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 2, 3), {"fusion": 1.0}, "needs a prior of 3 classes"),
        ((1, 2, 3), {"score_kind": "logit"}, "kind must be one of"),
        *((shape, {}, "observations, photos, classes") for shape in
          [(2, 3), (0, 2, 3), (2, 0, 3), (2, 3, 0)]),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(
    shape: tuple[int, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fuse(np.zeros(shape), **{"score_kind": "softmax", **options})  # type: ignore[arg-type]


@both
def test_a_nan_is_refused(fusion: Fusion) -> None:
    logits = some_logits(0, 2, 2, 3)
    logits[1, 0, 2] = np.nan
    with pytest.raises(ValueError, match="logits must"):
        fused(logits, fusion)
