"""The benchmark of fine-tuning: what is cut fits together, and only what is behind it moves."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import fine_tuning, head_bench
from benchmarks.fine_tuning import Head, Photos, Tails, Tuning, cut, tables
from benchmarks.head_bench import FIRST_SEED, SIZES, Rows, Setting
from models.backbones import Network, build
from models.backbones.small_networks import tiny
from tests.benchmarks.small import NOISE, bench, rows
from training.config import OptimiserConfig
from training.optimisation.optimiser import make_optimiser

HEAD = Head("cross_entropy", Setting(1e-3, 0.1, {}), ("linear", "softmax"))


def test_a_backbone_in_two_gives_what_it_gave_in_one() -> None:
    pytest.importorskip("timm", exc_type=ImportError)
    whole = build("timm:tf_efficientnet_lite0", 3, "linear", image_size=32).backbone.eval()
    pictures = torch.randn(2, 3, 32, 32)
    for last, channels in ((1, 320), (2, 192)):
        front, tail, shape = cut(whole, last, 32)
        assert shape == (channels, 1, 1)
        with torch.inference_mode():
            maps = front(pictures)
            assert maps.shape == (2, channels)
            torch.testing.assert_close(tail(maps.reshape(2, *shape)), whole(pictures))
        network = Network(tail, nn.Linear(1280, 3), head_name="linear")
        optimiser = make_optimiser(network, OptimiserConfig(layer_decay=0.5))
        rates = {group["multiplier"] for group in optimiser.param_groups}
        assert rates == {0.5**depth for depth in range(last + 1)}  # as in the whole network


def test_a_backbone_that_is_no_chain_is_refused() -> None:
    with pytest.raises(ValueError, match="no global_pool to cut before"):
        cut(tiny()[0], 1, 32)


def _photos(features: Rows) -> Photos:
    maps = features.features[:, :, None, None].expand(-1, -1, 2, 2).contiguous()
    return Photos(features, Rows(maps, features.labels))


def _tails() -> Tails:
    """Blocks that give at first what they are given."""
    convolution = nn.Conv2d(6, 6, 1)
    nn.init.dirac_(convolution.weight)
    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]  # it has one
    blocks = nn.Sequential(convolution, nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    ours, none = bench(), (torch.zeros(6), torch.ones(6))
    return Tails(ours, _photos(ours.train), _photos(rows(120, 1)), blocks, none, epochs=2)


def test_head_and_blocks_move_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_bench, "BATCH", 32)
    tails = _tails()
    before = copy.deepcopy(tails.blocks.state_dict())
    start = tails.start(HEAD, tails.train, seed=0)
    first = copy.deepcopy(start.state_dict())
    trained = tails.trained(HEAD, start, 0.01, tails.train, seed=0)
    after = trained.backbone.state_dict()
    assert not torch.equal(after["0.weight"], before["0.weight"])
    assert torch.equal(after["1.running_mean"], before["1.running_mean"])
    assert not torch.equal(trained.head.state_dict()["weight"], first["head.weight"])
    for kept, now in ((before, tails.blocks.state_dict()), (first, start.state_dict())):
        assert all(torch.equal(now[name], value) for name, value in kept.items())


def test_what_is_measured_stands_in_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_bench, "BATCH", 32)
    monkeypatch.setattr(fine_tuning, "RATES", (0.003, 0.01))
    tails, measured = _tails(), []
    tuning = tails.choose(HEAD, NOISE)
    assert tuning.rate in (0.003, 0.01)
    for seed in (FIRST_SEED, FIRST_SEED + 1):
        found = tails.measure(HEAD, tuning, NOISE, seed)
        assert all(len(values) == len(SIZES) for values in found.values())
        measured.append({"loss": "cross_entropy", "noise": NOISE, "seed": seed, **found})
        measured[-1] |= tuning._asdict()
    means = np.mean([row["tuned"] for row in measured], axis=0)
    line = next(line for line in tables(measured).splitlines() if "`cross_entropy`" in line)
    assert " / ".join(f"{value:.1f}" for value in means) in line


def test_no_tuning_is_no_gain() -> None:
    tails = _tails()
    found = tails.measure(HEAD, Tuning(1e-12, HEAD.served), 0.0, FIRST_SEED)
    assert found["head"] == pytest.approx(found["tuned"], abs=1.0)
    assert found["head_top_k"] == pytest.approx(found["tuned_top_k"], abs=1.0)
