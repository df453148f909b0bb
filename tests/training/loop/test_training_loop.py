"""What the loop does between epochs: reset, reorder, validate, keep the best weights, stop."""

import os
import signal
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from florilege.errors import UsageError
from florilege.models.backbones import Network, PictureNetwork
from florilege.training.batches import Batch, BatchLoader
from florilege.training.batches.augmentation import mixed
from florilege.training.config import TrainConfig
from florilege.training.loop import Run
from florilege.training.loop.training_state import Position, TrainingState
from florilege.training.losses import LOSSES
from florilege.training.machines import Compute, interruptible
from florilege.training.network import build_network
from florilege.training.train import train_run
from tests.training.small import (
    checkpoint_of,
    last_weights,
    lines_of,
    plain_network,
    rows_of,
    small_config,
    sources_of,
    train_quietly,
)

CONSTANT = {"schedule": {"name": "constant"}, "optimiser": {"learning_rate": 1e-12}}


def _network(config: TrainConfig, head: str) -> PictureNetwork:
    expected = config.preprocess
    return PictureNetwork(build_network(config, head, 3), expected.mean, expected.std)


def _check_log_losses(run: Path, network: PictureNetwork, config: TrainConfig) -> None:
    """The log-losses of the last epoch are those of ``network`` on the pictures of val."""
    pictures = sources_of(config).validation
    images = torch.stack([torch.from_numpy(pictures[row]) for row in range(len(pictures))])
    with torch.no_grad():
        outputs = network.eval()(images)
    for head, logits in zip(("multi_label", "sccp"), outputs, strict=True):
        expected = F.cross_entropy(logits, torch.from_numpy(pictures.split.labels)).item()
        output = float(rows_of(run)[-1][f"val_log_loss_{head}"])
        assert output == pytest.approx(expected, rel=1e-6)


def test_the_kept_weights_are_those_of_the_best_epoch_and_not_the_last(
    photos: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = CONSTANT | {"validation": {"k": 2}}
    best = train_quietly(small_config(photos, epochs=4, **settings), tmp_path / "all").best_epoch
    assert best is not None
    assert best < 4
    train_quietly(small_config(photos, epochs=best, **settings), tmp_path / "until")
    remaining, expected = (
        load_file(tmp_path / "all/best.safetensors"),
        last_weights(tmp_path / "until"),
    )
    assert remaining.keys() == expected.keys()
    assert all(torch.equal(remaining[key], expected[key]) for key in remaining)
    moving = "backbone.layers.0.1.running_mean"  # even so small a rate leaves batch norm counting
    assert not torch.equal(remaining[moving], last_weights(tmp_path / "all")[moving])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_validation_sees_the_network_as_the_server_will(
    precision: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends: Any = torch.backends  # torch's stubs lack these settings
    forward, precisions = PictureNetwork.forward, set[str]()

    def noted(network: PictureNetwork, images: Tensor) -> Any:
        if not network.training:
            precisions.add(backends.cudnn.conv.fp32_precision)
        return forward(network, images)

    monkeypatch.setattr(PictureNetwork, "forward", noted)
    means = {"mean": [0.1, 0.2, 0.3], "std": [0.3, 0.5, 0.7]}
    config = small_config(photos, precision=precision, **means)
    lines = lines_of(config, tmp_path / "run")
    assert precisions == {"ieee"}  # not TF32, to which a GPU rounds by default
    network = _network(config, "two_head")
    network.network.load_state_dict(last_weights(tmp_path / "run"))
    _check_log_losses(tmp_path / "run", network, config)
    note = "training in bf16; figures on val are in float32, as it is served"
    assert (note in lines) == (precision == "bf16")


def test_two_epochs_are_gradient_descent_by_hand(photos: Path, tmp_path: Path) -> None:
    config = small_config(
        photos,
        loss={"name": "cross_entropy"},
        optimiser={"learning_rate": 0.05, "clip_norm": 0.5, "decay_all": True},
        schedule={"name": "step", "milestones": [1.0], "factor": 0.5},
    )
    train_quietly(config, tmp_path / "run")
    torch.manual_seed(config.seed)
    network = _network(config, "linear")
    sources = sources_of(config)
    optimiser = torch.optim.SGD(
        network.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4
    )
    for epoch in (0, 1):
        network.train()
        optimiser.param_groups[0]["lr"] = 0.05 * 0.5**epoch
        for batch in BatchLoader(sources, config).training(epoch):
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(network(batch.images), batch.labels))
            torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimiser.step()
    result = last_weights(tmp_path / "run")
    for name, expected in network.network.state_dict().items():
        torch.testing.assert_close(result[name], expected, rtol=1e-3, atol=1e-5)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the loop: ``now`` in seconds."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(
        "florilege.training.loop.time", SimpleNamespace(monotonic=lambda: clock.now)
    )
    return clock


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> list[Batch]:
    """Every batch trained on; each takes a second, and its loss is its number of pictures."""
    calls: list[Batch] = []

    def step(_run: Run, group: list[Batch], _steps: int) -> Tensor:
        (batch,) = group
        calls.append(batch)
        clock.now += 1
        return torch.tensor(float(len(batch.labels)))

    monkeypatch.setattr(Run, "train_step", step)
    return calls


@pytest.mark.usefixtures("batches")
def test_each_epoch_counts_its_own_loss(photos: Path, tmp_path: Path) -> None:
    train_quietly(small_config(photos, epochs=3), tmp_path / "run")
    mean = (4 * 8 * 8 + 4 * 4) / 36  # 36 pictures in batches of 8: the last has 4
    results = [float(row["train_loss"]) for row in rows_of(tmp_path / "run")]
    assert results == pytest.approx([mean] * 3)


def test_each_epoch_goes_through_all_rows_in_an_order_of_its_own(
    photos: Path, tmp_path: Path, batches: list[Batch]
) -> None:
    train_quietly(small_config(photos, epochs=3), tmp_path / "run")
    rows = torch.cat([batch.rows for batch in batches]).reshape(3, 36)
    assert all(sorted(epoch) == list(range(36)) for epoch in rows.tolist())
    assert len({tuple(epoch) for epoch in rows.tolist()}) == 3


@pytest.mark.usefixtures("batches")
def test_the_seconds_of_a_run_continue_after_a_resume(
    photos: Path, tmp_path: Path, clock: SimpleNamespace
) -> None:
    train_quietly(small_config(photos, epochs=2), tmp_path / "run")
    clock.now += 1000  # nobody trained
    resumed = small_config(photos, epochs=3)
    assert train_quietly(resumed, tmp_path / "run", resume=True).seconds == 15
    assert [float(row["seconds"]) for row in rows_of(tmp_path / "run")] == [5, 10, 15]


@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize(
    ("due", "saved"),
    [
        ({"every_seconds": 100}, [5]),
        ({"every_seconds": 2}, [2, 4, 5]),
        ({"every_seconds": 100, "every_steps": 2}, [2, 4, 5]),
        ({"every_seconds": 100, "every_steps": 5}, [5, 5]),  # not again while it validates
    ],
)
def test_a_checkpoint_is_written_when_its_time_or_step_has_come_and_after_the_epoch(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    due: dict[str, float],
    saved: list[int],
) -> None:
    results: list[int] = []
    save = TrainingState.save

    def watched(trained: TrainingState, path: Path, position: Position, sums: Any) -> None:
        results.append(position.step)
        save(trained, path, position, sums)

    monkeypatch.setattr(TrainingState, "save", watched)
    train_quietly(small_config(photos, epochs=1, checkpoint=due), tmp_path / "run")
    assert results == saved


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_request_sets_a_flag_and_the_second_stops(number: signal.Signals) -> None:
    calls: list[bool] = []
    with interruptible() as stop:
        calls.append(stop.is_set())
        os.kill(os.getpid(), number)
        calls.append(stop.is_set())
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert calls == [False, True]


def test_the_handlers_from_before_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="inside"), interruptible():
        raise ValueError("inside")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_another_thread_may_train_without_handlers() -> None:
    calls: list[bool] = []

    def work() -> None:
        with interruptible() as stop:
            calls.append(stop.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert calls == [False]


# Several batches a step, averaged weights, the last blocks ------------------------------------


@pytest.mark.parametrize("power", [0.0, 1.0])
@pytest.mark.parametrize(("batch_size", "accumulate"), [(4, 3), (4, 4)])  # 4: the last has 1 of 9
def test_batches_of_a_step_are_one_large_batch(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    power: float,
    batch_size: int,
    accumulate: int,
) -> None:
    monkeypatch.setattr("florilege.training.network.build_network", plain_network)
    common: dict[str, Any] = {
        "loss": {"name": "cross_entropy"},
        "class_weight_power": power,
        "optimiser": {"clip_norm": 0.5},
        "validation": {"k": 2},
    }
    small = small_config(photos, batch_size=batch_size, accumulate=accumulate, **common)
    large = small_config(photos, batch_size=batch_size * accumulate, **common)
    results = [train_quietly(config, tmp_path / str(n)) for n, config in enumerate((small, large))]
    assert results[0].epochs == results[1].epochs
    one, other = (last_weights(tmp_path / str(n)) for n in (0, 1))
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=1e-6)
    losses = [[float(row["train_loss"]) for row in rows_of(tmp_path / str(n))] for n in (0, 1)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    steps = [[row["step"] for row in rows_of(tmp_path / str(n))] for n in (0, 1)]
    assert steps[0] == steps[1]


def test_the_averaged_weights_are_validated_and_kept(photos: Path, tmp_path: Path) -> None:
    config = small_config(photos, epochs=1, average={"decay": 0.9}, schedule={"name": "constant"})
    train_quietly(config, tmp_path / "run")
    last = checkpoint_of(tmp_path / "run")
    remaining = load_file(tmp_path / "run/best.safetensors")
    for name, value in remaining.items():
        assert torch.equal(value, last["average"][f"module.{name}"]), name
    assert not torch.equal(remaining["head.sccp.weight"], last["network"]["head.sccp.weight"])
    network = _network(config, "two_head")
    network.network.load_state_dict(remaining)
    _check_log_losses(tmp_path / "run", network, config)


def test_training_continues_from_a_run_with_only_the_last_blocks(
    photos: Path, tmp_path: Path
) -> None:
    train_quietly(small_config(photos), tmp_path / "first")
    settings: dict[str, Any] = {"weights": str(tmp_path / "first"), "unfreeze": 1}
    config = small_config(photos, **settings, optimiser={"layer_decay": 0.5})
    lines = lines_of(config, tmp_path / "second")
    before, after = (
        load_file(tmp_path / "first/best.safetensors"),
        last_weights(tmp_path / "second"),
    )
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert {name[: len("backbone.layers.4")] for name in moved if name.startswith("backbone")} == {
        "backbone.layers.4"
    }
    assert "head.sccp.weight" in moved
    assert "training the head and the last block of tiny: 0.187 of 0.374 million weights" in lines


def test_more_blocks_than_the_network_has_are_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unfreeze: must be in \[0, 5\], the blocks of the netw"):
        train_quietly(small_config(photos, weights="w", unfreeze=6), tmp_path / "run")


def test_a_compiled_run_is_the_same_but_for_rounding(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = partial(torch.compile, backend="eager")  # traced, then run as usual
    monkeypatch.setattr("florilege.training.loop.torch.compile", compiled)
    for name, expected in {"plain": False, "compiled": True}.items():
        train_quietly(small_config(photos, epochs=1, compile=expected), tmp_path / name)
    one, other = last_weights(tmp_path / "plain"), last_weights(tmp_path / "compiled")
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("metric", ["top_k", "macro_average_k", "macro_top_k"])
def test_every_metric_chooses_stops_and_is_named(photos: Path, tmp_path: Path, metric: str) -> None:
    lines: list[str] = []
    validation = {"metric": metric, "k": 1, "patience": 2}
    config = small_config(photos, epochs=9, validation=validation, **CONSTANT)
    result = train_run(config, tmp_path / "run", say=lines.append)
    words = str(config.validation.chosen_by)
    assert result.metric == words
    assert any(f"(size {config.validation.chosen_by.sets})" in line for line in lines)
    assert result.best_epoch == result.epochs - 2 < 7
    rows = rows_of(tmp_path / "run")
    column = config.validation.chosen_by.column_of(str(result.head), str(result.score_kind))
    assert float(rows[result.epochs - 3][column]) == result.accuracy
    report = (tmp_path / "run/report.html").read_text()
    assert f"set size {config.validation.chosen_by.sets}" in report


def test_every_batch_of_a_run_draws_a_mixture_of_its_own(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws: list[tuple[int, int]] = []

    def mix(*arguments: Any, seed: tuple[int, int, int], **options: Any) -> Any:
        draws.append(seed[1:])
        return mixed(*arguments, seed=seed, **options)

    monkeypatch.setattr("florilege.training.loop.mixed", mix)
    train_quietly(small_config(photos, mixup=0.4, accumulate=2), tmp_path / "run")
    assert draws == [(epoch, batch) for epoch in range(2) for batch in range(5)]


class _Numbers(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Counts the numbers copied from a tensor to the host, as by ``float``."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mask = func is torch.ops.aten._local_scalar_dense.default
        self.count += mask and args[0].is_floating_point()  # labels are read on a CPU
        return func(*args, **kwargs or {})


def test_no_step_waits_for_the_device_but_those_that_show_the_loss(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_at, read = list[int](), Run.read_sums

    def reading(self: Run) -> None:
        read_at.append(self.position.step)
        read(self)

    monkeypatch.setattr(Run, "read_sums", reading)
    monkeypatch.setattr(Compute, "steps_between_reads", 4)
    monkeypatch.setattr(Run, "end_epoch", lambda *_: pytest.exit("trained"))
    loss = {"name": "focal"}
    config = small_config(photos, batch_size=4, loss=loss, class_weight_power=0.5, epochs=1)
    numbers = _Numbers()  # type: ignore[no-untyped-call]  # torch's own
    with numbers, pytest.raises(pytest.exit.Exception, match="trained"):
        train_quietly(config, tmp_path / "run")
    assert numbers.count == 0
    assert read_at == [4, 8, 9]


class _Elsewhere(Compute):
    """Torch's meta device, which like a GPU has no values that the host could read."""

    def autocast(self) -> AbstractContextManager[object]:
        return nullcontext()


@pytest.mark.parametrize("name", sorted({*LOSSES} - {"role"}))  # whose estimates stay on the host
def test_nothing_in_a_step_asks_the_device_for_a_value(
    name: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = _Elsewhere(torch.device("meta"), "fp32")
    monkeypatch.setattr("florilege.training.machines.Compute.of", lambda *_: compute)
    monkeypatch.setattr(Run, "read_sums", lambda _: pytest.exit("the end of the epoch"))
    monkeypatch.setattr(Compute, "steps_between_reads", 10**6)
    more = {"accumulate": 2, "average": {"decay": 0.9}, "optimiser": {"clip_norm": 1.0}}
    config = small_config(photos, batch_size=12, loss={"name": name}, epochs=1, **more)
    with pytest.raises(pytest.exit.Exception, match="epoch"):
        train_quietly(config, tmp_path / "run")


class _Scaling(Compute):
    """fp16's scaled gradients in fp32, where a power of two changes no bit."""

    def scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=2.0**10)


def test_gradients_are_clipped_by_their_own_norm_and_not_by_that_of_the_scaled_ones(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, kind in {"plain": Compute, "scaled": _Scaling}.items():
        compute = kind(torch.device("cpu"), "fp32")
        monkeypatch.setattr(
            "florilege.training.machines.Compute.of", lambda *_, compute=compute: compute
        )
        train_quietly(small_config(photos, optimiser={"clip_norm": 0.5}), tmp_path / name)
    one, other = last_weights(tmp_path / "plain"), last_weights(tmp_path / "scaled")
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_weights_are_averaged_after_the_step(photos: Path, tmp_path: Path) -> None:
    config = small_config(photos, epochs=1, batch_size=36, average={"decay": 0.9})
    train_quietly(config, tmp_path / "run")  # one step: the average is of its weights alone
    averaged = load_file(tmp_path / "run/best.safetensors")
    torch.testing.assert_close(averaged, last_weights(tmp_path / "run"), rtol=0, atol=0)


def test_validation_computes_in_the_precision_that_is_served(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = dict[bool, set[torch.dtype]]()

    def watched(config: TrainConfig, head: str, classes: int) -> Network:
        network = build_network(config, head, classes)
        network.backbone.register_forward_hook(
            lambda module, _, output: modes.setdefault(module.training, set()).add(output.dtype)
        )
        return network

    monkeypatch.setattr("florilege.training.network.build_network", watched)
    train_quietly(small_config(photos, precision="bf16"), tmp_path / "run")
    assert modes == {True: {torch.bfloat16}, False: {torch.float32}}
    assert last_weights(tmp_path / "run")["head.sccp.weight"].dtype == torch.float32
