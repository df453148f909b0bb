"""Label noise within groups: its rate, uniformity and dependencies."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from florilege.data.label_noise import noise_groups, noisy_ids
from florilege.data.records import Listing, Records
from florilege.errors import DataError
from florilege.models.classes import ClassInfo

GROUPS = {"a": ["x"], "b": ["x"], "c": ["x"], "d": ["x"], "e": ["y"], "f": ["y"], "g": ["z"]}
ROWS = 14_000


def unread(row: int) -> bytes:
    raise AssertionError(row)


def records(class_ids: list[str], start: int = 0) -> Records:
    names = [f"train/{start + row}.jpg" for row in range(len(class_ids))]
    return Records(class_ids=class_ids, names=names, read=unread)


def listing(train: Records, groups: dict[str, list[str]] = GROUPS) -> Listing:
    return Listing(source="somewhere", splits={"train": train}, groups=groups)


TRAIN = records([list(GROUPS)[row % 7] for row in range(ROWS)])


def noisy(train: Records = TRAIN, *, rate: float = 0.3, seed: int = 0) -> list[str]:
    return noisy_ids(listing(train), train, rate=rate, seed=seed)


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_label_is_drawn_evenly_from_its_group_itself_included(rate: float, seed: int) -> None:
    sample = Counter(zip(TRAIN.class_ids, noisy(rate=rate, seed=seed), strict=True))
    each = ROWS // 7
    for before, (group,) in GROUPS.items():
        size = sum(other == [group] for other in GROUPS.values())
        for after, (other,) in GROUPS.items():
            share = (rate / size if other == group else 0) + (1 - rate if after == before else 0)
            spread = 4.5 * np.sqrt(each * share * (1 - share))
            assert abs(sample[before, after] - each * share) <= spread, (before, after)


def test_noise_at_a_higher_rate_holds_that_at_every_lower_one() -> None:
    clean, low, high = TRAIN.class_ids, noisy(rate=0.2), noisy(rate=0.5)
    changed = [row for row in range(ROWS) if low[row] != clean[row]]
    assert changed
    assert all(high[row] == low[row] for row in changed)
    assert noisy(rate=0.0) == clean


def test_noise_depends_on_the_seed_and_the_picture_and_not_on_order_or_neighbours() -> None:
    assert noisy() == noisy()
    both = [
        {row for row, name in enumerate(noisy(rate=0.2, seed=seed)) if name != TRAIN.class_ids[row]}
        for seed in (1, 2)
    ]
    assert len(both[0] & both[1]) < 0.3 * len(both[0])
    rows = np.random.default_rng(0).permutation(ROWS)[: ROWS // 2].tolist()
    some = Records(
        class_ids=[TRAIN.class_ids[row] for row in rows],
        names=[TRAIN.names[row] for row in rows],
        read=unread,
    )
    whole = noisy()
    assert noisy(some) == [whole[row] for row in rows]


def test_draws_of_rate_and_class_are_independent() -> None:
    """With one draw for both, a low rate would draw only the first classes of a group."""
    train = records(["a"] * ROWS)
    several = Listing(source="somewhere", splits={"train": train}, groups=GROUPS, order=[*GROUPS])
    sample = Counter(noisy_ids(several, train, rate=0.1, seed=3))
    assert min(sample[name] for name in "bcd") > 0.7 * ROWS * 0.1 / 4


def named(*names: str, **genus: str) -> Listing:
    reference = {
        name: ClassInfo(id=name, scientific_name=name, genus=genus.get(name)) for name in names
    }
    return Listing(source="s", splits={"train": records(list(names))}, class_infos=reference)


def test_without_groups_the_genus_stands_for_them() -> None:
    result = noise_groups(named("Rosa canina", "Rosa_rugosa", "Acer x freemanii", "Acer campestre"))
    assert result == {
        "Rosa canina": "Rosa",
        "Rosa_rugosa": "Rosa",
        "Acer x freemanii": "Acer",
        "Acer campestre": "Acer",
    }
    assert noise_groups(named("1", "2", **{"1": "Rosa", "2": "Rosa"})) == {"1": "Rosa", "2": "Rosa"}
    bare = Listing(source="s", splits={"train": records(["Rosa canina", "Rosa rugosa"])})
    assert set(noise_groups(bare).values()) == {"Rosa"}  # the id is the name of the species


@pytest.mark.parametrize(
    "name", ["rose", "Golden-Delicious", "1355868", "ceiling fan", "Royal Gala"]
)
def test_classes_without_groups_are_refused_with_the_ways_to_give_them(name: str) -> None:
    with pytest.raises(
        DataError,
        match=rf"no group is known for 1 class of 3: '{name}'; .*'group' .* classes\.csv .* genus",
    ):
        noise_groups(named("Rosa canina", "Rosa rugosa", name))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("x-x", r"no group is known for 1 class of 3: 'Rosa rugosa'"),  # although it has a genus
        (("x", "xy", "x"), "classes of several groups, but a class belongs to one: 'Rosa rugosa'"),
        ("xyz", "alone"),
    ],
)
def test_groups_that_allow_no_noise_are_refused(groups: Sequence[str], message: str) -> None:
    ids = ["Rosa canina", "Rosa rugosa", "Acer rubrum"]
    of_class = {name: list(each.strip("-")) for name, each in zip(ids, groups, strict=True)}
    with pytest.raises(DataError, match=message):
        noise_groups(listing(records(ids), of_class))
