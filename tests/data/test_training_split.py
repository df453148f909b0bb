"""The training split: thinned, with a long tail, with label noise, or with val held out."""

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilege.data.options import TrainingOptions, _noisy_ids, _sample_rows, noise_groups
from florilege.data.records import Dataset, Listing, Records
from florilege.data.sources import open_dataset
from florilege.errors import DataError
from florilege.models.classes import ClassInfo
from florilege.plugins.papers.data_sets import METADATA, NAMES
from tests.data.pictures import write_folder

FOLDER = {
    "train": {"Rosa canina": 40, "Rosa rugosa": 20, "Acer rubrum": 30, "Acer negundo": 10},
    "val": {"Rosa canina": 3, "Rosa rugosa": 3, "Acer rubrum": 3},
    "test": {"Rosa canina": 2, "Acer negundo": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), FOLDER)


def manifest_of(folder: Path) -> Path:
    """A manifest of all pictures of a folder, whose classes are one group."""
    path = folder / "photos.csv"
    files = sorted(folder.rglob("*.png"))
    lines = [
        f"{file.relative_to(folder)},{file.parent.name},{file.parts[-3]},all" for file in files
    ]
    path.write_text("\n".join(["path,class_id,split,group", *lines]) + "\n")
    return path


def plantnet_of(folder: Path) -> Path:
    """Pl@ntNet-300K with two species of one genus."""
    root = folder / "plantnet"
    counts = {"train": {"11": 30, "12": 30}, "val": {"11": 2, "12": 2}, "test": {"11": 2}}
    write_folder(root / "images", counts)
    (root / METADATA).write_text("{}")
    (root / NAMES[0]).write_text('{"11": "Rosa canina L.", "12": "Rosa rugosa Thunb."}')
    return root


def changed(clean: Dataset, noisy: Dataset) -> dict[str, float]:
    """The share of labels that differ, by split."""
    return {
        name: float(np.mean(split.labels != noisy.split(name).labels))
        for name, split in clean.splits.items()
    }


@pytest.mark.parametrize("layout", [Path, manifest_of, plantnet_of])
def test_noise_changes_labels_of_train_alone_whatever_the_layout(
    tmp_path: Path, layout: Callable[[Path], Path]
) -> None:
    source = str(layout(write_folder(tmp_path, FOLDER)))
    clean, noisy = open_dataset(source), open_dataset(f"{source}:noise=0.8,noise_seed=1")
    shares = changed(clean, noisy)
    assert 0.25 < shares.pop("train") < 0.8
    assert set(shares.values()) == {0}
    assert noisy.source == f"{source}:noise=0.8,noise_seed=1"
    assert noisy.classes.ids == clean.classes.ids
    assert noisy.split("train").names == clean.split("train").names
    alone = open_dataset(f"{source}:noise=0.8,noise_seed=1", splits=["train"])
    np.testing.assert_array_equal(alone.split("train").labels, noisy.split("train").labels)
    other = open_dataset(f"{source}:noise=0.8,noise_seed=2")
    assert changed(noisy, other)["train"] > 0


def test_noise_in_the_flora_stays_within_the_genus() -> None:
    clean = open_dataset("flora:train=3000,val=50,test=50")
    noisy = open_dataset("flora:train=3000,val=50,test=50,noise=0.5")
    shares = changed(clean, noisy)
    assert 0.3 < shares["train"] < 0.5
    assert shares["val"] == shares["test"] == 0
    genera = np.array([item.genus for item in clean.classes])
    before, after = clean.split("train").labels, noisy.split("train").labels
    assert (genera[before] == genera[after]).all()


def test_training_counts_are_of_the_labels_trained_on(folder: Path) -> None:
    dataset = open_dataset(f"{folder}:noise=1,fraction=0.5")
    labels = dataset.split("train").labels
    assert dataset.classes.counts is not None
    assert dataset.classes.counts.tolist() == np.bincount(labels, minlength=4).tolist()
    assert dataset.classes.counts.tolist() != [5, 15, 20, 10]
    assert len(labels) == 50


def test_pictures_left_out_do_not_change_the_labels_of_those_kept(folder: Path) -> None:
    noisy = open_dataset(f"{folder}:noise=0.8").split("train")
    fewer = open_dataset(f"{folder}:noise=0.8,fraction=0.3,imbalance=5").split("train")
    label_of = dict(zip(noisy.names, noisy.labels.tolist(), strict=True))
    assert len(fewer) < 0.31 * len(noisy)
    assert fewer.labels.tolist() == [label_of[name] for name in fewer.names]
    for row in (0, len(fewer) - 1):
        assert fewer.read(row) == (folder / fewer.names[row]).read_bytes()


def test_thinning_touches_train_alone_and_follows_its_seed(folder: Path) -> None:
    whole = open_dataset(str(folder))
    half = open_dataset(f"{folder}:fraction=0.5")
    assert half.classes.counts is not None
    assert half.classes.counts.tolist() == [5, 15, 20, 10]
    for name in ("val", "test"):
        assert half.split(name).names == whole.split(name).names
    other = open_dataset(f"{folder}:fraction=0.5,sample_seed=1")
    assert half.split("train").names != other.split("train").names


def test_a_class_that_noise_takes_the_last_picture_of_stays_a_class(tmp_path: Path) -> None:
    counts = {
        "train": {"Rosa alba": 60, "Rosa bella": 1, "Rosa clara": 1},
        "val": {"Rosa alba": 1, "Rosa bella": 1},
    }
    write_folder(tmp_path, {**counts, "test": {"Rosa clara": 1}})
    count = 0
    for seed in range(5):
        dataset = open_dataset(f"{tmp_path}:noise=1,noise_seed={seed},fraction=0.02")
        assert dataset.classes.ids == ("Rosa alba", "Rosa bella", "Rosa clara")
        count += 0 in [item.training_count for item in dataset.classes]
    assert count


def test_what_train_lacks_is_still_refused_under_noise(tmp_path: Path) -> None:
    write_folder(tmp_path, {"train": {"Rosa alba": 9, "Rosa bella": 9}, "val": {"Rosa clara": 1}})
    with pytest.raises(DataError, match="1 class of val without a picture in train: 'Rosa clara'"):
        open_dataset(f"{tmp_path}:noise=1")


@pytest.mark.parametrize(
    ("split", "options"), [("test", "noise=0.5,fraction=0.1"), ("val", "hold_out=5")]
)
def test_data_without_train_are_read_whatever_is_asked_of_it(
    tmp_path: Path, split: str, options: str
) -> None:
    write_folder(tmp_path, {split: {"a": 1, "b": 1}})
    assert len(open_dataset(f"{tmp_path}:{options}", splits=["test"]).split("test")) == 2


CLASSES = [f"c{number:02d}" for number in range(20)]
IDS = [CLASSES[row % 20] for row in range(2000)]
NAMES_OF_ROWS = [f"{row}.png" for row in range(2000)]


def sample(**options: Any) -> list[int]:
    """The rows kept of 2,000 pictures of 20 classes."""
    return _sample_rows(IDS, NAMES_OF_ROWS, TrainingOptions(**options))


def sizes(counts: dict[str, int], **options: Any) -> Counter[str]:
    """How many of each class are kept."""
    ids = list(Counter(counts).elements())
    requested = TrainingOptions(**options)
    assert requested.thins
    rows = _sample_rows(ids, list(map(str, range(len(ids)))), requested)
    return Counter(ids[row] for row in rows)


def photo(row: int) -> bytes:
    return str(row).encode()


@pytest.mark.parametrize("fraction", [0.004, 0.1, 0.5, 1.0])
def test_the_same_share_of_each_class_is_kept_and_at_least_one(fraction: float) -> None:
    rows = sample(fraction=fraction)
    assert rows == sorted(rows)
    assert set(Counter(IDS[row] for row in rows).values()) == {max(1, round(100 * fraction))}
    assert len({IDS[row] for row in rows}) == 20


def test_a_number_of_each_class_is_kept_after_its_share_and_before_the_tail() -> None:
    counts = {"a": 100, "b": 40, "c": 6}
    assert sizes(counts, per_class=10) == {"a": 10, "b": 10, "c": 6}
    assert sizes(counts, fraction=0.5, per_class=25) == {"a": 25, "b": 20, "c": 3}
    tail = sizes(dict.fromkeys(CLASSES, 500), per_class=100, imbalance=10)
    assert (max(tail.values()), min(tail.values())) == (100, 10)
    rows = sample(per_class=7)
    assert set(Counter(IDS[row] for row in rows).values()) == {7}
    assert set(rows) < set(sample(per_class=8))


def test_a_smaller_share_is_part_of_a_larger_one_and_a_seed_draws_another() -> None:
    assert set(sample(fraction=0.2)) < set(sample(fraction=0.5))
    assert sample(fraction=0.5, sample_seed=1) != sample(fraction=0.5, sample_seed=2)
    backwards = _sample_rows(IDS[::-1], NAMES_OF_ROWS[::-1], TrainingOptions(fraction=0.5))
    assert {1999 - row for row in backwards} == set(sample(fraction=0.5))


@pytest.mark.parametrize("imbalance", [1.25, 10.0, 100.0])
def test_a_long_tail_falls_by_one_factor_in_an_order_drawn_by_the_seed(imbalance: float) -> None:
    counts = sizes(dict.fromkeys(CLASSES, 500), imbalance=imbalance)
    other = sizes(dict.fromkeys(CLASSES, 500), imbalance=imbalance, sample_seed=1)
    orders = [[name for name, _ in each.most_common()] for each in (counts, other)]
    assert orders[0] != orders[1] != CLASSES != orders[0]
    falling = sorted(counts.values(), reverse=True)
    assert falling == sorted(other.values(), reverse=True)
    assert falling == [round(500 * imbalance ** (-place / 19)) for place in range(20)]
    assert falling[0] == 500
    assert falling[-1] == 500 / imbalance


def test_a_class_with_fewer_pictures_than_its_place_allows_keeps_them_all() -> None:
    counts = {"a": 400, "b": 3, "c": 90, "d": 1}
    tail = sizes(counts, imbalance=4)
    assert (tail["b"], tail["d"]) == (3, 1)
    assert all(tail[name] >= 400 / 4 or tail[name] == counts[name] for name in counts)
    assert sizes({"a": 7}, imbalance=100) == {"a": 7}
    assert sizes({}, imbalance=100) == {}


def test_the_tail_begins_at_what_the_share_leaves_and_ends_with_one_picture() -> None:
    few = sizes(dict.fromkeys(CLASSES, 10), fraction=0.5, imbalance=1000)
    assert (max(few.values()), min(few.values())) == (5, 1)
    both = sizes(dict.fromkeys("abc", 100), fraction=0.5, imbalance=25)
    assert sorted(both.values()) == [2, 10, 50]


def test_selected_pictures_bring_their_columns_and_bytes() -> None:
    records = Records(
        class_ids=["a", "b", "c"], names=NAMES_OF_ROWS[:3], observations="xyz", read=photo
    )
    choice = records.select_rows([2, 0])
    assert choice.class_ids == ["c", "a"]
    assert choice.names == ["2.png", "0.png"]
    assert choice.observations == ["z", "x"]
    assert pickle.loads(pickle.dumps(choice.read))(0) == b"2"


HELD = {"train": {"a": 30, "b": 20, "c": 12}, "val": {"a": 2, "b": 2, "c": 2}}


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), HELD)


def test_val_is_a_balanced_part_of_train_and_the_val_there_was_is_test(held: Path) -> None:
    whole, cut = open_dataset(str(held)), open_dataset(f"{held}:hold_out=5")
    train, val = cut.split("train"), cut.split("val")
    assert Counter(val.labels.tolist()) == {0: 5, 1: 5, 2: 5}
    assert Counter(train.labels.tolist()) == {0: 25, 1: 15, 2: 7}
    assert sorted([*train.names, *val.names]) == sorted(whole.split("train").names)
    assert [name for name in val.names if name < "train/a/005"] != val.names[:5]  # not the first
    assert cut.split("test").names == whole.split("val").names
    assert [each.training_count for each in cut.classes] == [25, 15, 7]
    for split in (train, val):
        assert split.read(3) == (held / split.names[3]).read_bytes()


def test_subsets_have_as_many_of_each_class_and_the_same_val(held: Path) -> None:
    whole = open_dataset(f"{held}:hold_out=2")
    small, large = (open_dataset(f"{held}:hold_out=2,per_class={n}") for n in (4, 12))
    assert Counter(small.split("train").labels.tolist()) == {0: 4, 1: 4, 2: 4}
    assert Counter(large.split("train").labels.tolist()) == {0: 12, 1: 12, 2: 10}
    assert set(small.split("train").names) < set(large.split("train").names)
    other = open_dataset(f"{held}:hold_out=2,per_class=4,sample_seed=1")
    assert other.split("train").names != small.split("train").names
    for cut in (small, large, other):
        assert cut.split("val").names == whole.split("val").names
        assert cut.split("test").names == whole.split("test").names


def test_only_the_photos_that_wanted_splits_come_from_must_be_there(tmp_path: Path) -> None:
    write_folder(tmp_path, HELD)
    source = f"{manifest_of(tmp_path)}:hold_out=5"
    (tmp_path / "train/a/000.png").unlink()
    assert len(open_dataset(source, splits=["test"]).split("test")) == 6
    with pytest.raises(DataError, match="missing"):
        open_dataset(source, splits=["valid"])


def test_what_cannot_be_held_out_is_refused(tmp_path: Path, held: Path) -> None:
    with pytest.raises(DataError, match=r"hold_out=12 leaves no training picture in 1 class: 'c'"):
        open_dataset(f"{held}:hold_out=12")
    with pytest.raises(DataError, match="already"):
        open_dataset("flora:train=9,val=9,test=9,hold_out=1")
    manifest = tmp_path / "m.csv"
    manifest.write_text("path,class_id,split,observation_id\n1,a,train,x\n2,b,train,y\n")
    for name in "12":
        (tmp_path / name).touch()
    with pytest.raises(DataError, match="plant"):
        open_dataset(f"{manifest}:hold_out=1")


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


def noisy_labels(train: Records = TRAIN, *, rate: float = 0.3, seed: int = 0) -> list[str]:
    return _noisy_ids(listing(train), train, rate=rate, seed=seed)


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_label_is_drawn_evenly_from_its_group_itself_included(rate: float, seed: int) -> None:
    sample = Counter(zip(TRAIN.class_ids, noisy_labels(rate=rate, seed=seed), strict=True))
    each = ROWS // 7
    for before, (group,) in GROUPS.items():
        size = sum(other == [group] for other in GROUPS.values())
        for after, (other,) in GROUPS.items():
            share = (rate / size if other == group else 0) + (1 - rate if after == before else 0)
            spread = 4.5 * np.sqrt(each * share * (1 - share))
            assert abs(sample[before, after] - each * share) <= spread, (before, after)


def test_noise_at_a_higher_rate_holds_that_at_every_lower_one() -> None:
    clean, low, high = TRAIN.class_ids, noisy_labels(rate=0.2), noisy_labels(rate=0.5)
    changed = [row for row in range(ROWS) if low[row] != clean[row]]
    assert changed
    assert all(high[row] == low[row] for row in changed)
    assert noisy_labels(rate=0.0) == clean


def test_noise_depends_on_the_seed_and_the_picture_and_not_on_order_or_neighbours() -> None:
    assert noisy_labels() == noisy_labels()
    both = [
        {
            row
            for row, name in enumerate(noisy_labels(rate=0.2, seed=seed))
            if name != TRAIN.class_ids[row]
        }
        for seed in (1, 2)
    ]
    assert len(both[0] & both[1]) < 0.3 * len(both[0])
    rows = np.random.default_rng(0).permutation(ROWS)[: ROWS // 2].tolist()
    some = Records(
        class_ids=[TRAIN.class_ids[row] for row in rows],
        names=[TRAIN.names[row] for row in rows],
        read=unread,
    )
    whole = noisy_labels()
    assert noisy_labels(some) == [whole[row] for row in rows]


def test_draws_of_rate_and_class_are_independent() -> None:
    """With one draw for both, a low rate would draw only the first classes of a group."""
    train = records(["a"] * ROWS)
    several = Listing(source="somewhere", splits={"train": train}, groups=GROUPS, order=[*GROUPS])
    sample = Counter(_noisy_ids(several, train, rate=0.1, seed=3))
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
