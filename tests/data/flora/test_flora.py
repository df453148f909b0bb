import hashlib
import io
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from florilege.data.flora import Flora
from florilege.data.options import MOST_PICTURES
from florilege.data.sources import open_dataset
from florilege.errors import DataError

SMALL = {"train": 30, "val": 20, "test": 20}


def test_the_default_has_20000_8000_and_8000_pictures() -> None:
    dataset = open_dataset("flora")
    sizes = {"train": 20_000, "val": 8_000, "test": 8_000}
    assert {name: len(split) for name, split in dataset.splits.items()} == Flora().rows == sizes
    assert len(dataset.classes) == 85
    assert dataset.classes.counts is not None
    assert dataset.classes.counts.sum() == 20_000


def test_options_set_sizes_and_seed() -> None:
    flora = Flora.parse("flora:train=40,valid=5, test=0,seed=3")
    assert flora == Flora(3, {"train": 40, "val": 5, "test": 0})
    assert list(open_dataset("flora:test=0").splits) == ["train", "val"]
    assert Flora.parse(f"flora:train={MOST_PICTURES}").rows["train"] == MOST_PICTURES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("sead=3", "unknown setting sead; .*; did you mean seed?"),
        ("train", "must be a whole number in .*, got ''"),
        ("train=-1", "got '-1'"),
        ("train=1e3", "got '1e3'"),
        (f"train={MOST_PICTURES + 1}", rf"train must be .* in \[0, {MOST_PICTURES}\]"),
        ("val=1,cal=2", "val is given twice"),
    ],
)
def test_a_wrong_option_is_refused(options: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_dataset(f"flora:{options}")


def test_a_wrong_flora_is_refused() -> None:
    with pytest.raises(ValueError, match="seed must be 0 or more, got -1"):
        Flora(-1)
    with pytest.raises(ValueError, match="rows must map"):
        Flora(0, {"train": -1})
    flora = Flora(0, {"train": 3})
    with pytest.raises(ValueError, match="split"):
        flora.labels("val")
    for row in (-1, 3):
        with pytest.raises(IndexError, match=r"\[0, 2\] in train"):
            flora.picture("train", row)


def test_a_picture_is_48_pixels_and_its_file_the_same() -> None:
    flora = Flora(0, SMALL)
    picture = flora.picture("val", 3)
    assert picture.shape == (48, 48, 3)
    assert picture.dtype == np.uint8
    with Image.open(io.BytesIO(flora.png("val", 3))) as decoded:
        np.testing.assert_array_equal(np.asarray(decoded), picture)


def test_a_smaller_flora_is_the_beginning_of_a_larger_one() -> None:
    small, large = Flora(5, SMALL), Flora(5)
    for split, rows in SMALL.items():
        np.testing.assert_array_equal(small.labels(split), large.labels(split)[:rows])
        np.testing.assert_array_equal(small.observed(split), large.observed(split)[:rows])
        assert small.png(split, rows - 1) == large.png(split, rows - 1)


def test_order_threads_and_pickling_do_not_change_a_picture() -> None:
    flora = Flora(5, SMALL)
    forward = [flora.png("train", row) for row in range(30)]
    assert [flora.png("train", row) for row in reversed(range(30))] == forward[::-1]
    split = open_dataset("flora:seed=5,train=30").split("train")
    np.testing.assert_array_equal(split.labels, flora.labels("train"))
    assert split.names[7] == "train/000007.png"
    read = pickle.loads(pickle.dumps(split.read))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(30))) == forward


def test_another_process_draws_the_same_picture() -> None:
    code = (
        "import hashlib; from florilege.data.flora import Flora;"
        "print(hashlib.sha256(Flora(5, {'train': 9}).png('train', 8)).hexdigest())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == hashlib.sha256(Flora(5, SMALL).png("train", 8)).hexdigest()


def test_splits_and_seeds_hold_different_pictures() -> None:
    pictures = {
        Flora(seed, SMALL).png(split, row)
        for seed in (0, 1)
        for split in SMALL
        for row in range(SMALL[split])
    }
    assert len(pictures) == 2 * sum(SMALL.values())


def test_drawn_arrays_cannot_be_changed_by_a_caller() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Flora(5, SMALL).labels("train")[0] = 1
