"""The benchmark of heads trains what the product trains, and chooses on val alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.sets import head_methods
from benchmarks.sets.head_methods import DECAY, FIRST_SEED, SHARPNESS, Bench
from florilege.tables import write_table
from florilege.training.train import train_run
from tests.training.small import small_config, write_photos

NOISE = 0.5


SIZES = (1, 2, 3)  # three classes


@pytest.fixture(autouse=True)
def _sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_methods, "SIZES", SIZES)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small photos of three classes of one group, in a manifest, and a network to freeze."""
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder, train=16, val=12)
    columns: dict[str, list[str]] = {"path": [], "class_id": [], "split": [], "group": []}
    for path in sorted(folder.rglob("*.png")):
        split, name = path.parts[-3:-1]
        half = int(path.stem) % 2 and split == "val"  # every other photo of val is one of test
        cells = (str(path.relative_to(folder)), name, "test" if half else split, "colours")
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    write_table(folder / "photos.csv", columns)
    config = small_config(folder / "photos.csv", epochs=0)
    train_run(config, folder / "start", say=lambda _: None)
    state = load_file(str(folder / "start" / "best.safetensors"))
    backbone = {key: value for key, value in state.items() if key.startswith("backbone.")}
    save_file(backbone, str(folder / "start.safetensors"))
    return folder


@pytest.fixture(scope="module")
def bench(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    flags = {"data": str(photos / "photos.csv"), "backbone": "tiny", "image_size": 16}
    flags |= {"weights": str(photos / "start.safetensors"), "features": str(photos / "features")}
    return Bench.open({**flags, "epochs": 3}, tmp_path_factory.mktemp("heads"))


@pytest.mark.parametrize("loss", ["generalised_cross_entropy", "two_head_average_k", "ldam"])
def test_a_head_is_that_of_the_product_to_the_last_bit(
    bench: Bench, loss: str, tmp_path: Path
) -> None:
    fit = bench.fit(loss, DECAY, NOISE, FIRST_SEED)
    data = f"{bench.dataset.source}:noise={NOISE},noise_seed={FIRST_SEED}"
    config = bench.config(loss, DECAY, FIRST_SEED)
    config = config.model_copy(update={"data": data})
    train_run(config, tmp_path / "run", say=lambda _: None)
    theirs = load_file(str(tmp_path / "run" / "best.safetensors"))
    ours = fit.network.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert any(key.startswith("head.") for key in ours)


def test_what_is_trained_once_is_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.fit("focal", DECAY, 0.0, FIRST_SEED)
    monkeypatch.setattr("benchmarks.sets.head_methods.train_head", None)  # it would fail
    again = bench.fit("focal", DECAY, 0.0, FIRST_SEED)
    ours, theirs = (fit.network.state_dict()["head.weight"] for fit in (first, again))
    assert torch.equal(ours, theirs)
    assert again.seconds == first.seconds > 0


def test_val_chooses_and_test_does_not(bench: Bench) -> None:
    fits = [bench.fit("assume_negative", decay, 0.0, FIRST_SEED) for decay in (DECAY, 0.1)]
    poor = fits[0]._replace(network=bench.network("linear"))
    weights = fits[0].network.state_dict()
    poor.network.load_state_dict({key: -value for key, value in weights.items()})
    labels = {name: each.split.labels for name, each in bench.features.items()}
    for part in ("val", "test"):  # a set of photos on which the poor head alone is right
        labels[part] = bench.logits(poor, part)["linear"].argmax(1)

    def with_labels(part: str) -> Bench:
        split = replace(bench.features[part].split, labels=labels[part])
        changed = replace(bench.features[part], split=split)
        return replace(bench, features={**bench.features, part: changed})

    assert with_labels("val").choose([fits[0], poor], (1.0,))[0].fit is poor
    assert with_labels("test").choose([fits[0], poor], (1.0,))[0].fit is fits[0]


def test_a_factor_is_offered_to_every_method_alike(bench: Bench) -> None:
    for method in ("cross_entropy", "ldam"):
        fits = bench.fits(method, [DECAY], NOISE, FIRST_SEED)
        single = [bench.choose(fits, [factor]) for factor in SHARPNESS]
        assert {choice.sharpness for choice, _ in single} <= set(SHARPNESS)
        assert bench.choose(fits, SHARPNESS)[1] == max(value for _, value in single)
