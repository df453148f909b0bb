"""Groups of photos that stand for requests with several photos of one plant."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.calibration.photo_groups import groups_of, observation_numbers, one_of_each


@settings(max_examples=150)
@given(data=st.data(), size=st.integers(1, 4), seed=st.integers(0, 5))
def test_groups_are_disjoint_and_of_one_plant(data: st.DataObject, size: int, seed: int) -> None:
    rows = data.draw(st.integers(0, 30))
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)), int)
    plants = data.draw(st.lists(st.sampled_from("abcd "), min_size=rows, max_size=rows))
    plants = [plant.strip() for plant in plants]
    groups = groups_of(labels, size=size, observations=plants, seed=seed, fewest=0)
    assert groups.made_from == "observations"
    assert len(set(groups.rows.ravel().tolist())) == groups.rows.size
    used = []
    for members in groups.rows.tolist():
        assert len({(plants[row], labels[row]) for row in members}) == 1
        used.append(plants[members[0]])
    assert "" not in used
    assert len(set(used)) == len(used)  # one group a plant
    for plant in set(plants) - {""}:
        labels_of_plant = [
            label for label, other in zip(labels.tolist(), plants, strict=True) if other == plant
        ]
        assert (plant in used) == (max(map(labels_of_plant.count, labels_of_plant)) >= size)


@settings(max_examples=100)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    size=st.integers(1, 5),
    seed=st.integers(0, 5),
)
def test_without_plants_every_species_is_used_up(labels: list[int], size: int, seed: int) -> None:
    groups = groups_of(labels, size=size, seed=seed)
    assert groups.made_from == "same_class"
    assert groups.rows.dtype == np.int64
    assert len(set(groups.rows.ravel().tolist())) == groups.rows.size
    of_group = [{labels[row] for row in members} for members in groups.rows.tolist()]
    assert all(len(group_plants) == 1 for group_plants in of_group)
    for label in set(labels):
        assert of_group.count({label}) == labels.count(label) // size


def test_too_few_plants_give_groups_of_one_species_and_say_so() -> None:
    labels, plants = [0] * 20, ["one"] * 2 + [f"plant {row}" for row in range(18)]
    groups = groups_of(labels, size=2, observations=plants)
    assert (groups.made_from, len(groups.rows)) == ("same_class", 10)
    groups = groups_of(labels, size=2, observations=plants, fewest=1)
    assert (groups.made_from, groups.rows.tolist()) in [
        ("observations", [[0, 1]]),
        ("observations", [[1, 0]]),
    ]


def test_the_same_seed_gives_the_same_groups_and_another_one_others() -> None:
    labels = np.random.default_rng(0).integers(0, 5, 500)
    plants = [f"{label} {row % 60}" for row, label in enumerate(labels.tolist())]
    for observations in (None, plants):
        first, again, other = (
            groups_of(labels, size=2, observations=observations, seed=seed, fewest=1).rows.tolist()
            for seed in (1, 1, 2)
        )
        assert first == again
        assert first != other


def test_photos_of_a_large_observation_are_drawn_at_random() -> None:
    samples = [
        row
        for seed in range(400)
        for row in groups_of([0] * 4, size=2, observations=["a"] * 4, seed=seed, fewest=1)
        .rows[0]
        .tolist()
    ]
    counts = np.bincount(samples, minlength=4)
    assert counts / 400 == pytest.approx(0.5, abs=4 * np.sqrt(0.25 / 400))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        groups_of([0], size=0)
    with pytest.raises(ValueError, match="observations must have 2 entries"):
        groups_of([0, 1], size=1, observations=["a"])


def test_photos_without_an_observation_are_plants_of_their_own() -> None:
    numbers = observation_numbers(["b", "", "a", "", "b"])
    assert numbers is not None
    assert numbers.tolist() == [0, 1, 2, 3, 0]


def test_any_photo_of_a_plant_may_be_the_one_that_is_drawn() -> None:
    masks = np.array([one_of_each([0, 1, 0, 0], seed=seed) for seed in range(40)])
    assert (masks.sum(axis=0)[[0, 2, 3]] > 5).all()
    assert masks[:, 1].all()


def test_as_many_groups_as_needed_are_those_of_plants() -> None:
    plants, labels = ["a", "a", "b", "b"], np.array([0, 0, 0, 0])
    assert groups_of(labels, size=2, observations=plants, fewest=2).made_from == "observations"
    assert groups_of(labels, size=2, observations=plants, fewest=3).made_from == "same_class"


def test_the_label_with_most_photos_of_an_observation_counts() -> None:
    labels = np.array([1, 0, 0, 1, 0])
    groups = groups_of(labels, size=2, observations=["a"] * 5, fewest=1)
    assert labels[groups.rows[0]].tolist() == [0, 0]
    three = groups_of(labels, size=3, observations=["a"] * 5, fewest=1)
    assert sorted(three.rows[0].tolist()) == [1, 2, 4]
