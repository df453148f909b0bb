"""Doubt in labels: wrong ones have a small probability, by heads that did not learn from them."""

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.rules.label_doubt import (
    _SHRINKAGES,
    _TEMPERATURES,
    _LabelDoubt,
    _log_probabilities,
    label_doubt,
)


def probabilities_of(*arrays: ArrayLike, plants: ArrayLike | None = None) -> NDArray[np.float64]:
    features, labels = arrays
    return label_doubt(features, labels, observations=plants).probabilities


def blobs(rows: int = 600, classes: int = 6) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Features around a centre for each class, of very different scales; and the classes."""
    random = np.random.default_rng(3)
    labels = random.integers(0, classes, rows)
    centres = random.normal(size=(classes, 12)) * 2
    scales = 10.0 ** random.uniform(-3, 3, 12)
    return (centres[labels] + random.normal(size=(rows, 12))) * scales, labels


def test_wrong_labels_come_first() -> None:
    features, truth = blobs()
    random = np.random.default_rng(4)
    labels = np.where(random.random(600) < 0.4, random.integers(0, 6, 600), truth)
    probabilities = probabilities_of(features, labels)
    first = np.argsort(probabilities)[:120]
    assert (labels != truth)[first].mean() > 0.95
    assert probabilities.min() >= 0
    assert probabilities.max() <= 1


def test_right_labels_are_probable_and_probabilities_honest() -> None:
    features, truth = blobs()
    assert np.median(probabilities_of(features, truth)) > 0.9
    # Where features say nothing, the probability is the share of the class.
    nothing = probabilities_of(np.random.default_rng(0).normal(size=(600, 12)), truth)
    assert abs(nothing.mean() - 1 / 6) < 0.03
    # Certain labels judge the heads too, and refuse those that are too sure.
    certain = label_doubt(np.random.default_rng(0).normal(size=(600, 12)), truth, answers=1)
    np.testing.assert_allclose(certain.probabilities, 1 / 6, atol=0.06)


def test_no_head_judges_a_plant_that_it_learned_from() -> None:
    # Photos of one plant are alike and alone in their class: learned from, they would look right.
    random = np.random.default_rng(5)
    plants = np.repeat(np.arange(60), 5)
    features = random.normal(size=(60, 40))[plants] + 0.01 * random.normal(size=(300, 40))
    labels = random.integers(0, 2, 60)[plants]
    alone = probabilities_of(features, labels)
    together = probabilities_of(features, labels, plants=plants)
    assert together.mean() < 0.65
    assert alone.mean() > 0.8


def test_a_label_of_a_single_plant_cannot_be_judged() -> None:
    features, labels = blobs(60, 3)
    labels[7] = 9
    probabilities = probabilities_of(features, labels)
    assert np.flatnonzero(np.isnan(probabilities)).tolist() == [7]
    assert np.isnan(probabilities_of([[1.0, 2.0]], [0])).all()


def test_a_constant_feature_changes_little() -> None:
    features, labels = blobs(100, 2)
    constant = np.concatenate([features, np.full((100, 1), 7.0)], axis=1)
    np.testing.assert_allclose(
        probabilities_of(constant, labels), probabilities_of(features, labels), atol=0.05
    )


@pytest.mark.parametrize("seed", range(6))
def test_copies_of_one_photo_of_each_class_leave_their_labels_right(seed: int) -> None:
    """Their covariance is 0 but for rounding, which may even be negative."""
    labels = np.repeat(np.arange(4), 12)
    photos = np.random.default_rng(seed).normal(size=(4, 64)).astype(np.float32)
    doubt = label_doubt(photos[labels], labels)
    assert doubt.wrong_rate == 0
    assert (doubt.probabilities > 0.9).all()


def test_answers_about_other_photos_are_refused() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        label_doubt(np.eye(3), [0, 1, 0], answers=[0, 1])


@pytest.mark.parametrize("shape", [(3,), (0, 2), (4, 2)])
def test_shapes_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"features must have shape \(photos, dimensions\)"):
        label_doubt(np.zeros(shape), [0] * min(shape[0], 3))


def test_the_heads_are_normal_densities_with_a_common_covariance() -> None:
    features, labels = blobs(80, 3)
    values = (features / features.std(axis=0)).astype(np.float32)[:, :4]
    fold = np.arange(80) % 4 == 0
    result = _log_probabilities(values, labels, fold)
    others, own = values[~fold].astype(np.float64), labels[~fold]
    means = [others[own == c].mean(axis=0) for c in range(3)]
    rest = [x - means[c] for x, c in zip(others, own, strict=True)]
    covariance = sum(np.outer(each, each) for each in rest) / len(rest)
    for index, shrinkage in enumerate(_SHRINKAGES):
        round_part = shrinkage * np.trace(covariance) / 4 * np.eye(4)
        inverse = np.linalg.inv((1 - shrinkage) * covariance + round_part)
        for at, temperature in enumerate(_TEMPERATURES):
            expected = []
            for x, label in zip(values[fold].astype(np.float64), labels[fold], strict=True):
                log_density = [
                    (np.log((own == c).mean()) - (x - means[c]) @ inverse @ (x - means[c]) / 2)
                    / temperature
                    for c in range(3)
                ]
                expected.append(log_density[label] - np.logaddexp.reduce(log_density))
            np.testing.assert_allclose(result[index, at], expected, atol=1e-3)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
def test_the_rate_of_wrong_labels_is_estimated(rate: float) -> None:
    features, truth = blobs(1200)
    random = np.random.default_rng(6)
    labels = np.where(random.random(1200) < rate, random.integers(0, 6, 1200), truth)
    doubt = label_doubt(features, labels)
    assert doubt.wrong_rate == pytest.approx(rate, abs=0.05)
    assert doubt.wrong_now == pytest.approx((labels != truth).mean(), abs=0.05)
    assert (doubt.right[labels == truth] >= 0.5).mean() > 0.97


@pytest.mark.parametrize(("width", "classes"), [(0.0, 3), (1.0, 20)])
def test_heads_that_know_nothing_leave_out_nothing(width: float, classes: int) -> None:
    features = width * np.random.default_rng(1).normal(size=(600, 20))
    doubt = label_doubt(features, np.arange(600) % classes)
    assert doubt.wrong_rate == 0
    assert doubt.believed().all()


def test_believed_labels_are_right_and_the_others_wrong() -> None:
    features, truth = blobs(1200)
    random = np.random.default_rng(6)
    labels = np.where(random.random(1200) < 0.4, random.integers(0, 6, 1200), truth)
    believed = label_doubt(features, labels).believed()
    wrong = labels != truth
    assert wrong[~believed].mean() > 0.95
    assert (~believed)[wrong].mean() > 0.9


@pytest.mark.parametrize("slips", [0, 30])
def test_labels_that_people_corrected_tell_the_rate_and_leave_the_others_in_doubt(
    slips: int,
) -> None:
    features, truth = blobs(1200)
    random = np.random.default_rng(6)
    labels = np.where(random.random(1200) < 0.4, random.integers(0, 6, 1200), truth)
    first = np.argsort(label_doubt(features, labels).probabilities)[:300]
    answers = np.zeros(1200, dtype=np.int64)
    answers[first] = np.where(labels != truth, -1, 1)[first]
    answers[first[:slips]] = 1  # the most doubtful ones are confirmed, and yet wrong
    labels = np.where(answers == -1, truth, labels)
    doubt = label_doubt(features, labels, answers=answers)
    left = (labels != truth) & (answers == 0)
    assert left.sum() > 60
    assert doubt.wrong_rate == pytest.approx(0.4, abs=0.07)
    assert doubt.wrong_now == pytest.approx(left.mean(), abs=0.02)
    assert doubt.right[first].tolist() == [1.0] * 300
    assert doubt.believed()[first].all()
    assert (~doubt.believed())[left].mean() > 0.9
    assert left[~doubt.believed()].mean() > 0.9


def test_the_rate_follows_from_answers_where_features_say_nothing() -> None:
    features = np.random.default_rng(0).normal(size=(600, 12))
    labels = np.random.default_rng(1).integers(0, 4, 600)
    answers = np.repeat([-1, 1, 0], [90, 110, 400])
    # Of labels drawn from four classes three are wrong.
    rate = label_doubt(features, labels, answers=answers).wrong_rate
    assert rate == pytest.approx(0.45 * 4 / 3, abs=0.02)


def test_labels_of_few_photos_are_believed() -> None:
    features, labels = blobs(600)
    random = np.random.default_rng(8)
    labels = np.where(random.random(600) < 0.3, random.integers(0, 6, 600), labels)
    rare = np.flatnonzero(labels == 5)[9:]  # nine of the class stay, wrong ones among them
    features, labels = np.delete(features, rare, axis=0), np.delete(labels, rare)
    doubt = label_doubt(features, labels)
    assert doubt.wrong_rate > 0.2
    assert doubt.right[labels == 5].tolist() == [1.0] * 9
    assert doubt.believed()[labels == 5].all()
    assert doubt.wrong_now == 1 - doubt.right[labels != 5].mean()


def test_a_label_is_right_as_the_rule_of_bayes_says() -> None:
    # Half of the photos show the class. Of ten that do, six keep their label and two draw it again;
    # of ten that show the other one, two draw this label.
    doubt = _LabelDoubt(
        labels=np.repeat([0, 1], 10),
        probabilities=np.full(20, 0.5),
        wrong_rate=0.4,
        answers=np.zeros(20, dtype=np.int64),
    )
    np.testing.assert_allclose(doubt.right, 8 / (8 + 2))


def test_five_photos_of_every_class_are_believed() -> None:
    doubt = _LabelDoubt(
        labels=np.repeat([0, 1], [12, 6]),
        probabilities=np.array([0.001 * (row + 1) for row in range(12)] + [0.9] * 6),
        wrong_rate=0.5,
        answers=np.where(np.arange(18) == 0, -1, 0),
    )
    assert np.flatnonzero(doubt.believed()).tolist() == [0, *range(8, 18)]
