"""Several processes train one network like a single one, with one writer, and survive a death."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from florilege.errors import DataError, UsageError
from florilege.models.backbones import PictureNetwork
from florilege.models.photo_hashes import PHOTOS, PhotoHashes, photo_hash
from florilege.training.batches import Batch, BatchLoader, Sources
from florilege.training.batches.run_photos import _numbers_of
from florilege.training.config import TrainConfig
from florilege.training.configuration import RunFolder, _from_plain
from florilege.training.machines import ALONE, Ranks, SharedFlags, together
from florilege.training.network import build_network
from florilege.training.run_export import _best_row
from florilege.training.train import train_run
from tests.training.losses.ranks import RANKS, cases, gradients
from tests.training.several import LOADING, LOSSES, even, random, single
from tests.training.small import (
    check_same_runs,
    checkpoint_of,
    lines_of,
    plain_network,
    rows_of,
    small_config,
    small_objective,
    sources_of,
    train_quietly,
    write_photos,
)

ROOT = Path(__file__).parents[3]

# The runs take 17 s of processor time, and other programs may leave little of it. So there is no
# time for all of them together: they hang if none of them writes a file for this long.
QUIET_S = 100
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of ``tests.training.several``."""
    folder = tmp_path_factory.mktemp("several")
    command = [sys.executable, "-m", "tests.training.several", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        files = -1
        while process.poll() is None and files < len(list(folder.iterdir())):
            files = len(list(folder.iterdir()))
            with suppress(subprocess.TimeoutExpired):
                process.wait(QUIET_S)
        if process.poll() is None:  # end the ranks too, which wait for each other
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0
    return folder


def _said(several: Path, name: str, rank: int) -> str:
    return (several / f"{name}.{rank}.txt").read_text()


def _codes(several: Path, name: str) -> list[int]:
    return [int(code) for code in (several / f"{name}.codes").read_text().split()]


def _metrics(run: Path) -> list[list[float | str]]:
    words = ("val_best_head", "val_best_score_kind")
    return [
        [v if k in words else float(v) for k, v in row.items() if k != "seconds"]
        for row in rows_of(run)
    ]


@pytest.mark.parametrize("name", cases())
def test_the_mean_over_ranks_is_the_loss_of_the_whole_batch(several: Path, name: str) -> None:
    """The two-head loss of 4 x 64 rows in four processes is that of 256 rows in one."""
    assert _codes(several, "ranks") == [0] * RANKS
    parts = [torch.load(several / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]
    whole = gradients(cases()[name], slice(0, 256))
    for key in ("value", "mean"):
        over_ranks = torch.stack([part[name][key] for part in parts]).mean()
        torch.testing.assert_close(over_ranks, whole[key], rtol=1e-12, atol=1e-12)
    for head in ("z", "sccp"):
        # a data-parallel wrapper averages the gradients of the ranks
        together = torch.cat([part[name][head] for part in parts]) / RANKS
        torch.testing.assert_close(together, whole[head], rtol=1e-10, atol=1e-14)
    assert {part[name]["size"].item() for part in parts} == {whole["size"].item()}


@pytest.mark.parametrize("loss", LOSSES)
def test_four_processes_train_what_one_does(
    several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    monkeypatch.setattr("florilege.training.network.build_network", plain_network)
    train_quietly(even(several / "photos", loss), tmp_path / "alone")
    alone, four = checkpoint_of(tmp_path / "alone"), checkpoint_of(several / loss)
    for part in ("network", "average", "loss"):
        torch.testing.assert_close(four[part], alone[part], rtol=0, atol=1e-6)
    for ours, theirs in zip(_metrics(several / loss), _metrics(tmp_path / "alone"), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    assert alone["position"]["processes"] == 1
    assert four["position"]["processes"] == 4


def test_only_the_first_process_speaks_and_writes(several: Path) -> None:
    assert _codes(several, "role") == [0, 0, 0, 0]
    assert "epoch 2/2" in _said(several, "role", 0)
    assert [_said(several, "role", rank) for rank in (1, 2, 3)] == ["", "", ""]
    assert len(list((several / "role/events").iterdir())) == 1


def test_when_a_process_dies_the_others_report_it_and_a_resumed_run_has_the_same_bits(
    several: Path,
) -> None:
    first, killed, last = _codes(several, "killed")
    assert (first, killed, last) == (1, -signal.SIGKILL, 1)
    for rank in (0, 2):
        assert f"error: process {rank} has lost the others of its run" in _said(
            several, "killed", rank
        )
    assert float((several / "killed.seconds").read_text()) < 60
    assert "continuing after epoch 1 and step 6" in _said(several, "resumed", 0)
    check_same_runs(several / "whole", several / "cut")


@pytest.mark.parametrize("name", LOADING)
def test_a_run_of_one_process_killed_mid_epoch_resumes_to_the_same_bits(
    several: Path, tmp_path: Path, name: str
) -> None:
    assert _codes(several, name) == [-signal.SIGKILL]
    config = single(several / "photos", name)
    train_quietly(config, tmp_path / "whole")
    lines = lines_of(config, several / name, resume=True)
    assert lines[0] == "continuing after epoch 1 and step 6"
    check_same_runs(tmp_path / "whole", several / name)


def test_all_validate_with_the_batch_norms_that_are_kept(several: Path) -> None:
    config = random(several / "photos")
    network = build_network(config, "linear", 3)
    network.load_state_dict(load_file(several / "whole/best.safetensors"))
    result = sources_of(config).validation
    images = torch.stack([torch.from_numpy(result[row]) for row in range(len(result))])
    outcome = config.preprocess
    with torch.no_grad():
        logits = PictureNetwork(network, outcome.mean, outcome.std).eval()(images)
    expected = F.cross_entropy(logits, torch.from_numpy(result.split.labels)).item()
    row = _best_row(RunFolder(several / "whole"))
    assert row["val_log_loss_linear"] == pytest.approx(expected, rel=1e-5)


def test_the_first_process_records_the_photos_that_all_have_read_also_after_a_death(
    several: Path,
) -> None:
    for run in ("whole", "cut"):
        record = PhotoHashes.from_bytes((several / run / PHOTOS).read_bytes())
        for split, hashes in {"train": record.train, "val": record.selection}.items():
            files = (several / "photos" / split).rglob("*.png")
            photos = [photo_hash(file.read_bytes()) for file in files]
            assert sorted(_numbers_of(photos)) == hashes.tolist()


def test_processes_given_different_things_end_with_one_message(several: Path) -> None:
    assert _codes(several, "differing") == [2, 2]
    answer = _said(several, "differing", 0)
    assert answer.startswith(
        "error: in process 1 loss is {'name': 'noised_top_k', 'k': 1}, in process"
    )
    assert "; batch_size is 7, in process 0 10; " in answer
    assert _said(several, "differing", 1) == ""
    assert not (several / "differing/config.yaml").exists()


def test_another_number_of_processes_continues_with_a_note(
    several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.training.network.build_network", plain_network)
    shutil.copytree(several / "role", tmp_path / "run")
    config = _from_plain(even(several / "photos", "role").to_plain() | {"epochs": 3})
    lines = lines_of(config, tmp_path / "run", resume=True)
    assert lines[1].startswith("the run had 4 processes and now has 1: the result is")
    assert checkpoint_of(tmp_path / "run")["position"]["processes"] == 1


# Without a second process ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), train=7, val=3)


def test_parts_of_batches_are_the_batches_of_one_process(photos: Path) -> None:
    config = small_config(photos, batch_size=9)  # 9 and 12: a rest of 3 is too few for 4 processes
    sources = sources_of(config)
    parts = [_batches(sources, config, Ranks(rank, 4)) for rank in range(4)]
    assert [[len(batch.rows) for batch in part] for part in parts] == [[3, 3], [2, 3]] + [
        [2, 3]
    ] * 2
    together = [torch.cat([part[n].rows for part in parts]) for n in range(2)]
    alone = _batches(sources, config, ALONE)
    assert torch.equal(torch.cat(together), torch.cat([batch.rows for batch in alone]))
    labels = sources.training.split.labels
    assert all(part[1].whole.tolist() == labels[together[1]].tolist() for part in parts)


def _batches(sources: Sources, config: TrainConfig, ranks: Ranks) -> list[Batch]:
    return list(BatchLoader(sources, config, ranks).training(epoch=0))


@pytest.mark.parametrize("batch_size", [2, 7, 12, 40])
def test_every_validation_picture_is_taken_once(photos: Path, batch_size: int) -> None:
    config = small_config(photos, batch_size=batch_size)
    sources = sources_of(config)
    loaders = [BatchLoader(sources, config, Ranks(rank, 3)) for rank in range(3)]
    parts = [[batch.rows for batch in loader.validation()] for loader in loaders]
    rounds = {loader.validation_rounds for loader in loaders}
    assert rounds == {max(map(len, parts))}
    turns = [part[n] for n in range(rounds.pop()) for part in parts if n < len(part)]
    assert torch.cat(turns).tolist() == list(range(9))


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_the_mean_over_processes_of_weighted_losses_is_the_loss_of_the_step(power: float) -> None:
    objective = small_objective(
        "focal", {"ignore_index": 2}, class_counts=[5, 1, 2], class_weight_power=power
    )
    logits = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.tensor([0, 0, 1, 1, 0, 2, 2, 0, 1])
    batches, rows = (labels[:5], labels[5:]), torch.arange(9)
    result = torch.zeros(())
    for rank in range(3):
        shares = objective.shares(batches, soft=False, ranks=Ranks(rank, 3))
        for share, batch in zip(shares, (rows[:5], rows[5:]), strict=True):
            part = batch.tensor_split(3)[rank]
            result = result + share * objective.loss_fn(logits[part], labels[part]) / 3
    torch.testing.assert_close(result, objective.loss_fn(logits, labels))


def test_sums_are_multiplied_by_the_processes_whose_mean_is_taken() -> None:
    ranks, counts = Ranks(1, 4), [2, 2]
    total = {"reduction": "sum"}
    plain = small_objective("cross_entropy", total, class_counts=counts)
    coupled = small_objective("expected_positive", total, class_counts=counts)
    labels = [torch.tensor([0, 1, 0, 1])] * 2
    assert plain.shares(labels, soft=False, ranks=ranks) == [4, 4]
    assert coupled.shares(labels, soft=False, ranks=ranks) == [1, 1]


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (5, UsageError, "batch_size must be at least 10, two pictures for each of 5 proc"),
        (12, DataError, "has 21 training pictures; at least 24 are needed"),
    ],
)
def test_what_does_not_go_with_several_processes_is_refused(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr(
        "florilege.training.train.together", lambda _: nullcontext(_Pretended(0, count))
    )
    with pytest.raises(error, match=message):
        train_run(small_config(photos), tmp_path / "run")


class _Pretended(Ranks):
    """The first of several processes; the others do not exist."""

    def _exchange(self, value: Any, error: Exception | None, _group: Any = None) -> list[Any]:
        if error is not None:
            raise error
        return [value] * self.count


def test_the_first_process_that_differs_is_named_with_what_differs() -> None:
    ranks = _Reporting(0, 3)
    with pytest.raises(UsageError, match=r"in process 2 seed is 7, in process 0 0\. Start every"):
        ranks.check_same({"seed": 0, "epochs": 2})


class _Reporting(Ranks):
    """A group whose processes report given values."""

    def all(self, value: Any) -> list[Any]:
        return [value, dict(value), {**value, "seed": 7}]


def test_a_process_without_a_gpu_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with (
        pytest.raises(UsageError, match="has 1, and --nproc-per-node must not be larger"),
        together(torch.device("cuda")),
    ):
        pass


def test_processes_that_cannot_reach_each_other_name_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UsageError, match="others"), together(torch.device("cpu")):
        pass


def test_alone_nothing_waits_and_errors_are_as_ever() -> None:
    assert (ALONE.all(3), ALONE.gather(3), ALONE.in_turn(lambda: 4)) == ([3], [3], 4)
    assert list(SharedFlags(ALONE).any_set(True, False)) == [True, False]
    with pytest.raises(KeyError), ALONE.agreeing():
        raise KeyError
