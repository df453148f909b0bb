"""Options after a source: parsing, refusals and additions."""

from pathlib import Path

import pytest

from florilege.data.options import FloraOptions, TrainingOptions, add_options, parse_options
from florilege.data.sources import open_dataset
from florilege.errors import DataError
from tests.data.pictures import write_folder

FLORA = "flora:train=1,val=1,test=1,"


@pytest.mark.parametrize(
    ("source", "base", "options"),
    [
        ("flora: train=40, noise=.5 ,seed=3,fraction=0.5", "flora",
         FloraOptions(train=40, seed=3, noise=0.5, fraction=0.5)),
        ("flora", "flora", FloraOptions()),
        ("photos.csv:imbalance=100,sample_seed=7", "photos.csv",
         TrainingOptions(imbalance=100, sample_seed=7)),
        ("photos:imbalance=1,fraction=1,noise=1", "photos", TrainingOptions(noise=1)),
        (r"C:\photos:labels=C:\Ann, Bob,noise=1", r"C:\photos",
         TrainingOptions(labels=r"C:\Ann, Bob", noise=1)),
        ("flora:labels=a, b/c,train=5,", "flora", FloraOptions(labels="a, b/c", train=5)),
        *((path, path, TrainingOptions()) for path in
          ("photos", "", r"C:\photos\a=b", "C:/photos/noise=1", "no:0.2", "a:b:c")),
    ],
)  # fmt: skip
def test_options_follow_any_source(source: str, base: str, options: TrainingOptions) -> None:
    assert parse_options(source) == (base, options)


@pytest.mark.parametrize("name", ["photos:noise=0.2", "a=b", "c:d", "x:y=1,z=2"])
def test_a_path_that_exists_wins_over_options(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path / name, {"train": {"Rosa alba": 30, "Rosa bella": 30}})
    path = str(tmp_path / name)
    assert parse_options(path) == (path, TrainingOptions())
    assert parse_options(f"{path}:noise=1") == (path, TrainingOptions(noise=1))
    clean, noisy = (open_dataset(each).split("train") for each in (path, f"{path}:noise=1"))
    assert (clean.labels != noisy.labels).any()
    assert add_options(path, "noise=0.2") == f"{path}:noise=0.2"


@pytest.mark.parametrize("source", ["nowhere:", FLORA])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("noise=0.2,noise=0.3", "noise is given twice"),
        ("noise=1.5", r"noise must be a number in \[0, 1\], got '1\.5'"),
        ("noise=nan", "noise must be"),
        ("noise=", "noise must be .* got ''"),
        ("fraction=0", r"fraction must be a number in \(0, 1\], got '0'"),
        ("imbalance=0.5", "imbalance must be a number >= 1"),
        ("imbalance=inf", "imbalance must be finite"),
        ("noise=0.1,noise_seed=-1", "noise_seed must be a whole number >= 0, got '-1'"),
        ("sample_seed=1.5", "sample_seed must be a whole number"),
        ("per_class=0", "per_class must be a whole number >= 1, got '0'"),
        ("hold_out=0", "hold_out must be a whole number >= 1, got '0'"),
        ("nois=0.2", "unknown setting nois; allowed: noise, .*; did you mean noise?"),
        ("noise=0.2,imbalanced=2", "did you mean imbalance"),
        ("size=3", "unknown setting size; allowed: noise, "),
    ],
)
def test_a_wrong_option_is_refused(source: str, options: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as refused:
        open_dataset(source + options)
    if "unknown" in str(refused.value):
        known = FloraOptions if source == FLORA else TrainingOptions
        assert f"allowed: {', '.join(known.model_fields)};" in f"{refused.value};"


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("photos", "photos:noise=0.2,hold_out=5"),
        ("photos:fraction=0.5", "photos:fraction=0.5,noise=0.2,hold_out=5"),
        ("photos: noise =0", "photos: noise =0,hold_out=5"),
        ("photos:hold_out=1,noise=1", "photos:hold_out=1,noise=1"),
        ("flora:train=4000", "flora:train=4000,noise=0.2,hold_out=5"),
        ("a:b/photos", "a:b/photos:noise=0.2,hold_out=5"),
        ("photos:labels=a, b,fraction=0.5", "photos:labels=a, b,fraction=0.5,noise=0.2,hold_out=5"),
        ("x" * 5000, "x" * 5000 + ":noise=0.2,hold_out=5"),
    ],
)
def test_options_are_added_but_for_those_that_are_named(source: str, result: str) -> None:
    assert add_options(source, "noise=0.2,hold_out=5") == result
    assert add_options(result, "noise=0.2,hold_out=5") == result
