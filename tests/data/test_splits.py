import csv
import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.data.manifests import _keep_groups_together, draw_splits, mend_source, split_source
from florilege.data.options import shuffled
from florilege.data.sources import list_source, open_dataset
from florilege.errors import DataError
from florilege.plugins.papers.data_sets import METADATA, NAMES
from florilege.tables import write_table
from tests.data.pictures import write_folder, write_manifest

pairs = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 12)), min_size=1, max_size=60)


@settings(deadline=None)
@given(pairs, st.floats(0, 0.45), st.floats(0, 0.45), st.integers(0, 5))
def test_no_row_is_lost_and_no_group_is_cut(
    rows: list[tuple[str, int]], val: float, test: float, seed: int
) -> None:
    class_ids = [class_id for class_id, _ in rows]
    groups = [str(group) for _, group in rows]  # some hold several classes
    splits = draw_splits(class_ids, groups, val=val, test=test, seed=seed)
    assert len(splits) == len(rows)
    assert set(splits) <= {"train", "val", "test"}
    of_group = defaultdict(set)
    for group, split in zip(groups, splits, strict=True):
        of_group[group].add(split)
    assert all(len(result) == 1 for result in of_group.values())
    in_train = {c for c, split in zip(class_ids, splits, strict=True) if split == "train"}
    assert in_train == set(class_ids)


def test_each_class_is_cut_in_proportion() -> None:
    class_ids = ["a"] * 500 + ["b"] * 100
    groups = [str(index) for index in range(600)]
    splits = draw_splits(class_ids, groups, val=0.1, test=0.2, seed=0)
    for class_id, size in (("a", 500), ("b", 100)):
        counts = Counter(s for c, s in zip(class_ids, splits, strict=True) if c == class_id)
        assert abs(counts["val"] - 0.1 * size) <= 1
        assert abs(counts["test"] - 0.2 * size) <= 1


@pytest.mark.parametrize(("photos", "together"), [(3, 1), (8, 2), (10, 5), (12, 3), (6, 6)])
def test_over_many_classes_of_a_few_plants_the_shares_come_true(photos: int, together: int) -> None:
    class_ids = [str(row // photos) for row in range(500 * photos)]
    groups = [str(row // together) for row in range(500 * photos)]
    counts = Counter(draw_splits(class_ids, groups, val=0.1, test=0.1, seed=0))
    for name in ("val", "test"):  # a class of one plant stays in train
        share = counts[name] / len(groups)
        assert share == pytest.approx(0 if photos == together else 0.1, abs=0.02)


def test_a_group_of_several_classes_counts_as_its_most_frequent() -> None:
    class_ids = ["a", "b", "a", "a"] * 100 + ["b"] * 400
    groups = [str(row // 4) for row in range(800)]
    for seed in range(5):
        splits = draw_splits(class_ids, groups, val=0.2, test=0.2, seed=seed)
        assert abs(splits[:400].count("val") - 80) <= 4
        assert abs(splits[400:].count("val") - 80) <= 4


def test_a_class_that_only_occurs_in_groups_of_another_keeps_one_in_train() -> None:
    class_ids = ["a", "a", "rare"] + ["a"] * 30
    groups = ["mixed"] * 3 + [str(row) for row in range(30)]
    for seed in range(10):
        assert draw_splits(class_ids, groups, val=0.45, test=0.45, seed=seed)[2] == "train"


@pytest.mark.parametrize("seed", range(10))
def test_the_first_group_drawn_of_a_class_stays_in_train(seed: int) -> None:
    groups = [f"plant {number}" for number in range(3)]
    splits = dict(
        zip(groups, draw_splits(["a"] * 3, groups, val=0.5, test=0.4, seed=seed), strict=True)
    )
    assert splits[shuffled(groups, seed)[0]] == "train"


def test_the_seed_rules_the_draw_and_the_order_of_rows_does_not() -> None:
    class_ids, groups = ["a", "b"] * 50, [str(index) for index in range(100)]
    first = draw_splits(class_ids, groups, val=0.2, test=0.2, seed=0)
    assert first == draw_splits(class_ids, groups, val=0.2, test=0.2, seed=0)
    assert first != draw_splits(class_ids, groups, val=0.2, test=0.2, seed=1)
    backwards = draw_splits(class_ids[::-1], groups[::-1], val=0.2, test=0.2, seed=0)
    assert backwards[::-1] == first


def _split(source: Path, out: Path) -> list[dict[str, str]]:
    write_table(out, split_source(str(source), out, val=0.25, test=0.25, seed=0))
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def test_class_folders_become_a_manifest_that_opens(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", {"": {"a": 8, "b": 8}})
    (tmp_path / "out").mkdir()
    rows = _split(tmp_path / "photos", tmp_path / "out/m.csv")
    assert len(rows) == 16
    assert rows[0]["path"] == "../photos/a/000.png"
    dataset = open_dataset(str(tmp_path / "out/m.csv"))
    sizes = {name: len(split) for name, split in dataset.splits.items()}
    assert sizes == {"train": 8, "val": 4, "test": 4}


@pytest.mark.parametrize("photos", [{"a": 2, "b": 1}, {"a": 1, "b": 1, "c": 1}])
def test_photos_too_few_for_a_split_are_no_manifest(tmp_path: Path, photos: dict[str, int]) -> None:
    """A run would end at the missing split, and so would `florilege fit` with more photos."""
    source = str(write_folder(tmp_path / "photos", {"": photos}))
    with pytest.raises(DataError, match=r"too few photos for val and test.*add photos"):
        split_source(source, tmp_path / "m.csv", val=0.1, test=0.1, seed=0)
    table = split_source(source, tmp_path / "m.csv", val=0, test=0, seed=0)
    assert set(table["split"]) == {"train"}


def test_a_split_folder_is_drawn_anew(tmp_path: Path) -> None:
    write_folder(tmp_path, {"train": {"a": 8, "b": 8}, "val": {"a": 4}})
    rows = _split(tmp_path, tmp_path / "m.csv")
    assert len({row["path"] for row in rows}) == 20
    assert {row["split"] for row in rows} == {"train", "val", "test"}


def test_a_manifest_keeps_its_other_columns_and_its_observations_together(tmp_path: Path) -> None:
    lines = [f"{index}.png,{'ab'[index // 6]},o{index // 3},CC{index}\n" for index in range(12)]
    text = "path,class_id,observation_id,licence\n" + "".join(lines)
    source = write_manifest(tmp_path, text, 12)
    (tmp_path / "deep").mkdir()
    rows = _split(source, tmp_path / "deep/m.csv")
    assert [row["licence"] for row in rows] == [f"CC{index}" for index in range(12)]
    assert rows[0]["path"] == "../0.png"
    assert all(len({row["split"] for row in rows[i : i + 3]}) == 1 for i in range(0, 12, 3))


def test_what_is_not_made_of_files_cannot_be_listed(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/train.json").write_text('{"images": [], "categories": []}')
    for source, message in (
        ("flora:train=5,val=5,test=5", "no picture files"),
        (str(tmp_path / "no"), "no such file"),
        (str(tmp_path / "empty"), "folder"),
        (str(tmp_path / "lists"), "lists no pictures"),  # the list has no annotations
    ):
        with pytest.raises(DataError, match=message):
            split_source(source, tmp_path / "m.csv", val=0.1, test=0.1, seed=0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["train", "val", "test"]), st.integers(0, 9))))
def test_mending_moves_only_groups_in_several_splits(rows: list[tuple[str, int]]) -> None:
    splits, groups = [split for split, _ in rows], [str(group) for _, group in rows]
    mended = _keep_groups_together(splits, groups)
    for split, group, after in zip(splits, groups, mended, strict=True):
        whole = {each for each, other in zip(splits, groups, strict=True) if other == group} == {
            split
        }
        assert after == (split if whole else "train")


def test_a_mended_manifest_opens_with_everything_else_as_it_was(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos/images", {"train": {"7": 2, "9": 1}, "val": {"7": 1, "9": 1}})
    val = tmp_path / "photos/images/val"
    (val / "7/000.png").rename(val / "7/b.png")
    (val / "9/000.png").rename(val / "9/c.png")
    observations = {name: {"obs_id": plant} for name, plant in (("001", 1), ("b", 1), ("c", 2))}
    (tmp_path / "photos" / METADATA).write_text(json.dumps(observations))
    (tmp_path / "photos" / NAMES[0]).write_text('{"7": "Rosa alba L.", "9": "Acer rubrum L."}')
    (tmp_path / "photos/classes.csv").write_text(
        "class_id,gbif,common_name_en,group\n7,3,white rose|rose,A\n9,,,A\n"
    )
    out = tmp_path / "m.csv"
    write_table(out, mend_source(str(tmp_path / "photos"), out))
    before, after = open_dataset(str(tmp_path / "photos")), open_dataset(str(out))
    assert {name: len(split) for name, split in after.splits.items()} == {"train": 4, "val": 1}
    assert after.split("val").observations == ["2"]
    old, new = (
        [(each.id, each.scientific_name, each.genus, each.gbif, each.common_names) for each in data]
        for data in (before.classes, after.classes)
    )
    assert old == new
    assert list_source(str(out)).groups == {"7": ["A"], "9": ["A"]}
    again = tmp_path / "again.csv"
    write_table(again, mend_source(str(out), again))
    assert again.read_text() == out.read_text()


def test_there_is_nothing_to_keep_without_splits(tmp_path: Path) -> None:
    write_folder(tmp_path, {"": {"a": 2, "b": 2}})
    with pytest.raises(DataError, match="4 pictures without a split to keep"):
        mend_source(str(tmp_path), tmp_path / "m.csv")
    (tmp_path / "in.csv").write_text("path,class_id,split\na/000.png,a,train\nb/000.png,b,other\n")
    with pytest.raises(DataError, match="1 picture without a split"):
        mend_source(str(tmp_path / "in.csv"), tmp_path / "m.csv")
