import math
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from florilege.errors import DataError, UsageError
from florilege.models.backbones import build
from florilege.models.classes import ClassTable
from florilege.models.heads import CosineHead, TwoHead
from florilege.training import losses
from florilege.training.batches import Batch
from florilege.training.configuration import _from_plain, resolve
from florilege.training.loop import Run
from florilege.training.losses import Loss, cross_entropy
from florilege.training.network import build_network
from florilege.training.preparation import notes_on_start, open_data
from florilege.training.train import TrainResult, train_run
from tests.training.small import (
    before_step,
    check_same_runs,
    checkpoint_of,
    last_weights,
    lines_of,
    rows_of,
    small_config,
    train_quietly,
    write_photos,
)

Finished = tuple[Path, TrainResult]
STILL = {"learning_rate": 1e-12}  # nothing changes but the running means of batch norm


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Finished:
    run = tmp_path_factory.mktemp("runs") / "run"
    lines: list[str] = []
    result = train_run(small_config(photos, epochs=6), run, say=lines.append)
    (run.parent / "said.txt").write_text("\n".join(lines))
    return run, result


def _losses(run: Path) -> list[str]:
    return [row["train_loss"] for row in rows_of(run)]


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[key], other[key]) for key in one) and one.keys() == other.keys()


# A whole run --------------------------------------------------------------------------------


def test_a_run_learns_three_colours(finished: Finished) -> None:
    _, result = finished
    assert result.epochs == 6
    assert result.accuracy is not None
    assert result.accuracy > 0.85  # a constant set of 1.5 of 3 classes reaches a half
    assert result.metric == "average-1.5 accuracy"


def test_a_run_leaves_the_documented_files(finished: Finished) -> None:
    run, _ = finished
    assert {path.name for path in run.iterdir()} == {
        "config.yaml",
        "classes.json",
        "last.pt",
        "best.safetensors",
        "photos.npz",
        "metrics.csv",
        "events",
        "report.html",
    }
    assert list((run / "events").glob("events.out.tfevents.*"))


def test_settings_and_classes_with_their_counts_can_be_read_back(
    finished: Finished, photos: Path
) -> None:
    run, _ = finished
    read = _from_plain(yaml.safe_load((run / "config.yaml").read_text()))
    assert read.to_plain() == small_config(photos, epochs=6).to_plain()
    classes = ClassTable.from_json((run / "classes.json").read_text())
    assert classes.ids == ("blue", "green", "red")
    assert classes.counts is not None
    assert classes.counts.tolist() == [12, 12, 12]


def test_one_line_per_epoch_is_printed(finished: Finished) -> None:
    run, _ = finished
    lines = (run.parent / "said.txt").read_text().splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [f"epoch {n}/6" for n in range(1, 7)]
    assert "best so far" in lines[1]


def test_the_metrics_hold_every_head_score_kind_and_k(finished: Finished) -> None:
    rows = rows_of(finished[0])
    for head in ("multi_label", "sccp"):
        assert 0 <= float(rows[-1][f"val_top_1_{head}"]) <= 1
        for kind in ("softmax", "sigmoid"):
            for k in ("1", "1.5", "2"):
                assert 0 <= float(rows[-1][f"val_average_{k}_{head}_{kind}"]) <= 1
    assert rows[-1]["step"] == str(6 * 5)  # 36 pictures in batches of 8
    assert [float(row["train_set_size"]) for row in rows] == [2.0] * 6  # its average_k
    rates = [float(row["learning_rate"]) for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] < 0.05
    assert rates[-1] == pytest.approx(0.05 * (1 + math.cos(29 / 30 * math.pi)) / 2)


def test_of_equally_good_epochs_the_one_with_the_smallest_log_loss_is_kept(
    photos: Path, tmp_path: Path
) -> None:
    config = small_config(photos, epochs=3, validation={"average_k": 2}, optimiser=STILL)
    result = train_quietly(config, tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    scores = [float(row["val_score"]) for row in rows]
    assert scores[1] == scores[2] == max(scores) == result.accuracy
    losses = [float(row[f"val_log_loss_{row['val_best_head']}"]) for row in rows]
    tied = [row for row, score in enumerate(scores) if score == max(scores)]
    assert result.best_epoch == 1 + min(tied, key=losses.__getitem__)


# Repeating ----------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_curve_and_weights(photos: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_quietly(small_config(photos), tmp_path / name)
    check_same_runs(tmp_path / "a", tmp_path / "b")


def test_another_seed_gives_another_curve(photos: Path, tmp_path: Path) -> None:
    train_quietly(small_config(photos, epochs=1), tmp_path / "a")
    train_quietly(small_config(photos, epochs=1, seed=1), tmp_path / "b")
    assert _losses(tmp_path / "a") != _losses(tmp_path / "b")


def test_no_epochs_write_the_initial_weights(photos: Path, tmp_path: Path) -> None:
    result = train_quietly(small_config(photos, epochs=0), tmp_path / "run")
    assert (result.epochs, result.accuracy, result.best_epoch) == (0, None, None)
    torch.manual_seed(0)
    fresh = build("tiny", 3, "two_head")
    assert isinstance(fresh.head, TwoHead)
    fresh.head.start_multi_label_at(2)
    assert _same(load_file(tmp_path / "run" / "best.safetensors"), fresh.state_dict())
    assert (tmp_path / "run" / "report.html").is_file()


# Losses and heads ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", losses.LOSSES)
def test_every_loss_trains_by_its_name_alone(photos: Path, tmp_path: Path, name: str) -> None:
    config = small_config(photos, loss={"name": name}, epochs=1)
    result, head = train_quietly(config, tmp_path / "run"), losses.LOSSES[name].head
    assert result.accuracy is not None
    assert result.head in (("multi_label", "sccp") if head == "two_head" else (head,))
    assert math.isfinite(float(rows_of(tmp_path / "run")[0]["train_loss"]))
    torch.manual_seed(0)
    start = build_network(config, head, 3).state_dict()
    assert not torch.equal(
        start["backbone.layers.0.0.weight"],
        last_weights(tmp_path / "run")["backbone.layers.0.0.weight"],
    )


def test_a_loss_that_wants_rows_gets_those_of_the_batch(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    class WithRows(Loss, function=cross_entropy):
        takes_rows = True

        def forward(self, logits: Tensor, labels: Tensor, row_index: Tensor) -> Tensor:  # type: ignore[override]  # as role does
            calls.extend(row_index.tolist())
            assert torch.equal(labels, torch.arange(36).div(12, rounding_mode="floor")[row_index])
            return super().forward(logits, labels)

    monkeypatch.setattr(losses, "LOSSES", {"with_rows": WithRows})
    monkeypatch.setattr(losses, "build", lambda _name, **parameters: WithRows(**parameters))
    config = small_config(photos, loss={"name": "with_rows"}, epochs=1)
    train_quietly(config, tmp_path / "run")
    assert sorted(calls) == list(range(36))


def test_a_cosine_head_takes_the_scale_of_its_loss_or_of_the_settings(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Margin(Loss, function=cross_entropy):
        head = "cosine"
        scale: float

        def __init__(self, *, scale: float = 30.0) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
            assert logits.abs().max() <= 1.001  # cosines
            return super().forward(self.scale * logits, labels)

    margin: dict[str, Any] = {"loss": {"name": "margin", "scale": 20.0}}
    other: dict[str, Any] = {"loss": {"name": "top_k_hinge", "k": 1}, "head": "cosine"}
    for changes, scale in ((other | {"head_scale": 4.0}, 4.0), (margin, 20.0)):
        if changes is margin:
            monkeypatch.setattr(losses, "LOSSES", {"margin": Margin})
            monkeypatch.setattr(losses, "build", lambda _name, **parameters: Margin(**parameters))
        config = small_config(photos, **changes, epochs=1)
        train_quietly(config, tmp_path / str(scale))
        network = build_network(config, "cosine", 3)
        network.load_state_dict(last_weights(tmp_path / str(scale)))
        assert isinstance(network.head, CosineHead)
        assert network.head.scale.item() == scale


# Initial weights ----------------------------------------------------------------------------


def _said(out: Path, photos: Path, **changes: Any) -> list[str]:
    return lines_of(small_config(photos, **{"epochs": 0, **changes}), out)


@pytest.mark.parametrize(
    ("prior", "bias", "line"),
    [
        (None, math.log(2), "probability 0.667, bias 0.69; --set multi_label_prior=0.5 for bias 0"),
        (0.5, 0.0, "probability 0.5, bias 0.00"),
        (0.01, -math.log(99), "probability 0.01, bias -4.60"),
    ],
)
def test_the_initial_bias_of_the_multi_label_head_is_a_setting_and_noted(
    photos: Path, tmp_path: Path, prior: float | None, bias: float, line: str
) -> None:
    (answer,) = _said(tmp_path / "run", photos, multi_label_prior=prior)
    assert answer.startswith("multi-label head: a fresh class starts at ")
    assert line in answer
    biases = load_file(tmp_path / "run" / "best.safetensors")["head.multi_label.bias"]
    torch.testing.assert_close(biases, torch.full((3,), bias))


def test_a_prior_that_nothing_would_use_is_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cross_entropy"):
        _said(tmp_path / "run", photos, loss={"name": "cross_entropy"}, multi_label_prior=0.5)


def test_a_warm_start_keeps_what_was_learnt_of_each_class(
    photos: Path, finished: Finished, tmp_path: Path
) -> None:
    run, _ = finished
    answer = _said(tmp_path / "warm", photos, weights=str(run))
    assert answer[-1] == (
        f"{run / 'best.safetensors'}: the backbone is loaded, and the last layer for 3 of 3 classes"
    )
    one, other = (load_file(path / "best.safetensors") for path in (run, tmp_path / "warm"))
    assert _same(one, other)


def test_a_warm_start_on_other_classes_starts_theirs_at_the_prior(
    finished: Finished, tmp_path: Path
) -> None:
    run, _ = finished
    data = write_photos(tmp_path / "photos")
    for split in ("train", "val"):
        (data / split / "green").rename(data / split / "amber")
    answer = _said(tmp_path / "warm", data, weights=str(run))
    assert answer[-1].endswith(
        "the last layer for 2 of 3 classes; the others start from scratch: 'amber'; classes you do "
        "not have are left out: 'green'"
    )
    old, new = (
        load_file(path / "best.safetensors")["head.multi_label.bias"]
        for path in (run, tmp_path / "warm")
    )
    assert new[0].item() == pytest.approx(math.log(2))  # amber
    assert torch.equal(new[1:], old[[0, 2]])  # blue, red


@pytest.mark.parametrize(
    ("backbone", "given", "warned"),
    [
        ("timm:test_efficientnet", {}, True),
        ("resnet18", {}, True),
        ("timm:test_efficientnet", {"weights": "none"}, False),
        ("tiny", {}, False),  # there are none to start from
    ],
)
def test_random_weights_by_default_give_a_warning(
    photos: Path, tmp_path: Path, backbone: str, given: dict[str, str], warned: bool
) -> None:
    changes = {"loss": {"name": "cross_entropy"}, "epochs": 1, "image_size": 32, **given}
    start = f"warning: {backbone} starts from random weights"
    answer = _said(tmp_path / "run", photos, backbone=backbone, **changes)
    lines = [line for line in answer if line.startswith(start)]
    assert len(lines) == warned
    assert all("--weights pretrained downloads" in line for line in lines)


def test_enlarged_pictures_give_a_note_with_a_faster_size_unless_the_network_needs_them_larger(
    photos: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"epochs": 1, "loss": {"name": "cross_entropy"}}
    line = "pictures of 20 px are enlarged to 50 px: --image-size 20 is about 6.2 times less work"
    assert line in _said(tmp_path / "large", photos, image_size=50, **changes)
    needy: dict[str, Any] = {
        "backbone": "squeezenet1_0",
        "image_size": 21,
        "batch_size": 18,
        "weights": None,
    }
    for name, more in {"same": {"image_size": 20}, "needy": needy}.items():
        (only,) = _said(tmp_path / name, photos, **changes, **more)
        assert only.startswith("epoch 1/1")


# Stopping -----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["two_head_average_k", "noised_top_k", "role"])
def test_an_interrupted_run_saves_first_and_resumes_to_the_same_weights(
    photos: Path, tmp_path: Path, loss: str
) -> None:
    # noised_top_k draws from torch's random state, role has a state of its own
    config = small_config(photos, loss={"name": loss})
    train_quietly(config, tmp_path / "whole")
    lines: list[str] = []
    third_of_epoch_two = before_step(7, lambda _run: os.kill(os.getpid(), signal.SIGINT))
    with third_of_epoch_two, pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "cut", say=lines.append)
    assert lines[-1] == f"stopped; continue with: florilege train --resume --out {tmp_path / 'cut'}"
    saved = checkpoint_of(tmp_path / "cut")["position"]
    assert (saved["epoch"], saved["batch"], saved["step"]) == (1, 3, 8)
    train_quietly(config, tmp_path / "cut", resume=True)
    check_same_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_run_interrupted_during_validation_resumes_with_the_validation(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_quietly(small_config(photos), tmp_path / "whole")
    validate = Run.validate

    def interrupted(self: Run, *args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return validate(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "validate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_quietly(small_config(photos), tmp_path / "cut")
    saved = checkpoint_of(tmp_path / "cut")["position"]
    assert (saved["epoch"], saved["batch"]) == (0, 5)
    train_quietly(small_config(photos), tmp_path / "cut", resume=True)
    check_same_runs(tmp_path / "whole", tmp_path / "cut")


def test_resuming_a_finished_run_changes_nothing(photos: Path, tmp_path: Path) -> None:
    config = small_config(photos, epochs=1)
    first = train_quietly(config, tmp_path / "run")
    before = (tmp_path / "run" / "last.pt").read_bytes()
    assert train_quietly(config, tmp_path / "run", resume=True) == first
    assert (tmp_path / "run" / "last.pt").read_bytes() == before


# Bad input ----------------------------------------------------------------------------------


def test_a_folder_with_something_in_it_is_refused_and_left_alone(
    photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="resume"):
        train_run(small_config(photos), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("settings", "broken", "message"),
    [
        ({}, ["red/3", "blue/0"], r"(?s)2 pictures of train.*blue/0\.png.*red/3\.png"),
        ({"cache_mb": 0, "workers": 0}, ["red/3"], r"(?s)1 picture of train.*red/3\.png"),
        ({"cache_mb": 0, "workers": 1}, ["red/3"], r"(?s)1 picture of train.*red/3\.png"),
    ],
)
def test_unreadable_pictures_are_named_before_or_during_training(
    tmp_path: Path, settings: dict[str, Any], broken: list[str], message: str
) -> None:
    data = write_photos(tmp_path / "photos")
    for size, name in enumerate(broken):
        (data / "train" / f"{name}.png").write_bytes(b"" if size else b"no picture")
    with pytest.raises(DataError, match=message):
        train_quietly(small_config(data, **settings), tmp_path / "run")


@pytest.mark.parametrize(
    ("on_gpu", "optimiser", "warns"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"weight_decay": 1e-4}, False),
        (True, {"name": "adamw"}, False),
    ],
)
def test_few_photos_on_a_gpu_ask_for_more_than_the_default_decay(
    photos: Path, on_gpu: bool, optimiser: dict[str, Any], warns: bool
) -> None:
    config = small_config(photos, optimiser=optimiser)
    notes = notes_on_start(config, open_data(config, ["train", "val"]), on_gpu=on_gpu)
    assert any("weight decay 0.0001 is made for many photos" in note for note in notes) == warns


@pytest.mark.parametrize(("shared", "plants"), [(1, "1 plant"), (6, "6 plants")])
def test_plants_shared_by_val_and_train_give_a_note(
    photos: Path, tmp_path: Path, shared: int, plants: str
) -> None:
    rows = ["path,class_id,split,observation_id"]
    for row, path in enumerate(sorted(photos.glob("train/*/*"))):
        split = "val" if row % 3 == 0 else "train"
        plant = row // 6 if row < 6 * shared else path.name + split
        rows.append(f"{path.relative_to(photos)},{path.parent.name},{split},{plant}")
    manifest = photos / "shared.csv"
    manifest.write_text("\n".join(rows) + "\n")
    lines = lines_of(small_config(manifest, epochs=0), tmp_path / "none")
    assert not any("with train" in line for line in lines)  # nothing is measured
    train_run(small_config(manifest, epochs=1), tmp_path / "run", say=lines.append)
    manifest.unlink()
    (line,) = [line for line in lines if "with train" in line]
    assert line.startswith(f"val shares {plants} with train, ")


BESIDE_BLUE = ("train/red", "train/green", "val/red", "val/green")


@pytest.mark.parametrize(
    ("moves", "named"),
    [
        ({"val/red": "val/violet"}, "violet"),
        ({"val": "../elsewhere"}, "val"),
        ({each: f"../{each.replace('/', ' ')}" for each in BESIDE_BLUE}, "class"),
    ],
)
def test_data_of_one_class_or_with_another_val_or_none_are_refused(
    tmp_path: Path, moves: dict[str, str], named: str
) -> None:
    data = write_photos(tmp_path / "photos")
    for old, new in moves.items():
        (data / old).rename(data / new)
    with pytest.raises(DataError, match=named):
        train_quietly(small_config(data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_reference_picture_that_is_missing_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    photos = write_photos(tmp_path / "photos", train=2, val=1)
    (photos / "classes.csv").write_text("class_id,thumbnail\nred,gone.png\n")
    with pytest.raises(DataError, match="such"):
        train_quietly(small_config(photos), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_picture_size_the_backbone_cannot_take_is_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"one that fits, such as 63, for alexnet, got 16"):
        train_run(small_config(photos, backbone="alexnet"), tmp_path / "run")
    with pytest.raises(UsageError, match=r"one that fits, such as 64, for vit_b_16, got 50"):
        train_run(small_config(photos, backbone="vit_b_16", image_size=50), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_network_too_large_for_one_file_is_refused_before_it_is_trained(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(photos)
    network = build_network(config, "linear", 3)
    size = sum(value.nbytes for value in network.state_dict().values())
    monkeypatch.setattr("florilege.training.network._MOST_BYTES", size + 1)
    build_network(config, "linear", 3)
    monkeypatch.setattr("florilege.training.network._MOST_BYTES", size)
    with pytest.raises(UsageError, match="backbone"):
        build_network(config, "linear", 3)
    monkeypatch.setattr("florilege.training.network._MOST_BYTES", 2**20)
    with pytest.raises(UsageError, match=r"tiny has 0\.0 GiB of weights.*choose a smaller back"):
        train_run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("batch_size", "message"),
    [
        (8, r"became NaN by step .*learning_rate.*no checkpoint has"),
        (36, r"logits on val .* after step 1: lower .*learning_rate"),  # the last step
    ],
)
def test_a_run_that_diverges_stops_with_advice(
    photos: Path, tmp_path: Path, batch_size: int, message: str
) -> None:
    config = small_config(photos, optimiser={"learning_rate": 1e30}, batch_size=batch_size)
    with pytest.raises(UsageError, match=message):
        train_quietly(config, tmp_path / "run")


@pytest.mark.parametrize(
    "loss", [key for key, kind in losses.LOSSES.items() if kind.head != "cosine"]
)
def test_every_loss_stops_with_advice_on_a_run_that_diverges(loss: str, tmp_path: Path) -> None:
    flags = {"backbone": "tiny", "image_size": 16, "batch_size": 32, "workers": 0, "epochs": 3}
    rate = ["optimiser.learning_rate=1e30"]
    config = resolve({"data": "flora:train=64,val=16", "loss": loss, **flags}, overrides=rate)
    with pytest.raises(UsageError, match=r"lower --set optimiser\.learning_rate"):
        train_quietly(config, tmp_path / "run")


def test_a_network_without_normalisation_learns_at_the_default_rate(tmp_path: Path) -> None:
    data = "flora:train=256,val=64,test=1"
    flags = {"data": data, "backbone": "squeezenet1_1", "image_size": 64, "workers": 0}
    config = resolve({**flags, "loss": "two_head_average_k", "batch_size": 32, "seed": 3})
    run = tmp_path / "run"
    train_quietly(config.model_copy(update={"epochs": 1}), run)
    assert float(_losses(run)[0]) < 10.2  # that of the first step


def test_a_loss_of_nan_leaves_the_last_checkpoint_and_says_of_which_step(
    photos: Path, tmp_path: Path
) -> None:
    def fail(run: Run) -> None:
        with torch.no_grad():
            next(run.trained.network.parameters()).fill_(torch.nan)

    config = small_config(photos, checkpoint={"every_steps": 2})
    with (
        before_step(3, fail),
        pytest.raises(UsageError, match=r"NaN by step 4: .*last\.pt is still that of step 2$"),
    ):
        train_quietly(config, tmp_path / "run")
    last = checkpoint_of(tmp_path / "run")
    assert last["position"]["step"] == 2
    assert all(torch.isfinite(value).all() for value in last["network"].values())


def test_weights_that_are_not_finite_are_never_written(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Run.train_step

    def failing(self: Run, group: Sequence[Batch], steps: int) -> torch.Tensor:
        value = step(self, group, steps)
        with torch.no_grad():
            next(self.trained.network.parameters()).fill_(torch.inf)
        return value

    monkeypatch.setattr(Run, "train_step", failing)
    config = small_config(photos, checkpoint={"every_steps": 1})
    with pytest.raises(UsageError, match=r"weights are no longer finite after step 1: lower"):
        train_quietly(config, tmp_path / "run")
    assert not (tmp_path / "run/last.pt").exists()


def test_a_k_too_large_for_the_classes_is_lowered_with_a_note(photos: Path, tmp_path: Path) -> None:
    answer = _said(tmp_path / "run", photos, validation={"k": 5})
    assert "validation.k is 2, the largest for 3 classes" in answer


def test_a_rate_that_rises_again_on_resuming_is_named(photos: Path, tmp_path: Path) -> None:
    rises = "rises from 0 to 0.5 of its peak"
    for epochs, expected in ((2, []), (2, []), (4, [rises])):
        config = small_config(photos, epochs=epochs)
        lines = "\n".join(lines_of(config, tmp_path / "run", resume=True))
        assert re.findall("rises from .* of its peak", lines) == expected
