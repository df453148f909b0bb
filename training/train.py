"""A training run from data to report: checks, network, loop, files."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from florilege.cores import cores
from florilege.data.dataset import Dataset
from florilege.data.records import count_of
from florilege.data.sources import open_dataset
from florilege.errors import DataError, UsageError
from florilege.models.backbones import Network, build, side_taken
from florilege.models.backbones.pretrained import megabytes
from florilege.models.backbones.weights import (
    PRETRAINED,
    Weights,
    load_into,
    open_weights,
    read_weights,
    warm_start,
)
from florilege.models.export import MOST_BYTES
from florilege.models.heads import CosineHead, TwoHead
from florilege.models.photo_hashes import PhotoHashes
from florilege.models.thumbnails import pack, read_thumbnails
from florilege.terminal import say
from florilege.training import checkpoint
from florilege.training.checkpoint import Position, Trained
from florilege.training.config import TrainConfig
from florilege.training.data_loader import Sources, open_sources
from florilege.training.device import Compute, choose, exhausted
from florilege.training.distributed import ALONE, Ranks, together
from florilege.training.frozen.blend import blend
from florilege.training.frozen.feature_store import Features, folder_name
from florilege.training.frozen.features import FrozenBackbone, HeadOnFeatures, threads_for
from florilege.training.loop import Run, Say
from florilege.training.losses import TwoHeadAverageK
from florilege.training.objective import Objective, make_objective
from florilege.training.optimisation.optimizer import make_optimiser
from florilege.training.optimisation.weight_average import averaged
from florilege.training.pictures import hash_photos, short_side
from florilege.training.rank_consistency import facts
from florilege.training.recipes import RECIPES
from florilege.training.run_folder import RunFolder
from florilege.training.run_report import write_report
from florilege.training.validation_metric import metric_of


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The outcome of a run; None for what a run of no epochs does not have."""

    run: str
    epochs: int
    best_epoch: int | None  # the one whose weights are in best.safetensors
    metric: str  # what chose it, such as "average-3 accuracy"
    accuracy: float | None  # that on val
    head: str | None  # the head that reached it
    score_kind: str | None
    seconds: float  # in the loop, over all sittings


def train_run(
    config: TrainConfig, out: Path, *, resume: bool = False, say: Say = say
) -> TrainResult:
    """Train a network and write everything about it to the run folder ``out``.

    Args:
        config: All settings.
        out: A new or empty folder, or with ``resume`` the folder of an interrupted run.
        resume: Continue from ``last.pt``, or start if there is none yet.
        say: Shows the user one line at a time.

    Raises:
        UsageError: Settings that do not fit together, or a folder that is not empty.
        DataError: Data that cannot be read or trained on.
        BundleError: A checkpoint or weights that do not fit, or a full disk.
        KeyboardInterrupt: The user stopped it; ``last.pt`` is up to date.
    """
    compute = choose(config.device, config.precision)
    with together(compute.device) as ranks, exhausted():
        return _train(config, RunFolder(out), resume, compute, ranks, say if ranks.first else _mute)


def _train(
    config: TrainConfig, folder: RunFolder, resume: bool, compute: Compute, ranks: Ranks, say: Say
) -> TrainResult:
    """What each of the processes does that train together."""
    begun = resume and folder.config.is_file()
    restored = begun and folder.last.is_file()
    with ranks.agreeing():
        dataset = open_data(config, ["train", "val"] if config.epochs else ["train"])
        ranks.check_same(facts(config, dataset, folder if begun else None))
        if ranks.first and begun:
            folder.check_resumable(config, dataset.classes)
        elif ranks.first:
            folder.check_free()
        thumbnails = _thumbnails(dataset) if ranks.first else None  # a missing one is noticed now
        objective, network = seeded(config, dataset, ranks)
        notes = [*objective.notes, *_unfreeze(network, config), *_lowered_k(config, dataset)]
        notes += _shared_plants(dataset)
    weights, fresh = None, not restored or (config.freeze and not folder.best.is_file())
    if fresh and config.weights is not None:
        weights = ranks.in_turn(partial(open_weights, config.weights, config.backbone))
    with ranks.agreeing():
        if fresh:
            notes += start(network, config, objective, dataset, weights)
            notes += [*_enlarged(dataset, config), *_untaught(config)]
        elif config.freeze:
            load_into(network, read_weights(folder.best), origin=str(folder.best))
    network = network.to(compute.device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack this form
    loss_fn = objective.loss_fn.to(compute.device)
    sources: Sources | None = None
    frozen: tuple[Features, Features] | None = None  # of train and val
    trainable: nn.Module = network
    if config.freeze and config.epochs:
        make = partial(_features, dataset, config, network, folder.path, compute, say)
        frozen = ranks.in_turn(make)
        sources, trainable = Sources(*frozen, workers=0), HeadOnFeatures(network, frozen[0])
    decay = config.average.decay
    trained = Trained(
        trainable,
        make_optimiser(trainable, config.optimiser),
        loss_fn,
        average=None if decay is None else averaged(trainable, decay),
        scaler=compute.scaler(),
    )
    with ranks.agreeing():
        position = checkpoint.load(folder.last, trained, ranks) if restored else Position()
    ranks.check_same({"checkpoint": f"of step {position.step}, batch {position.batch}"})
    with ranks.agreeing(patiently=True):  # machines may decode at very different speeds
        if position.epoch < config.epochs and sources is None:
            sources = open_sources(dataset, config, ranks, on_gpu=compute.on_gpu)
        photos = None
        if ranks.first and not folder.photos.is_file():
            photos = _photos(dataset, config, frozen) | _photos_before(config, weights)
    notes += _continued(position, ranks) if restored else []
    position.processes = ranks.count
    with ExitStack() as stack:
        with ranks.agreeing():
            if ranks.first:
                stack.enter_context(folder.held())
                if not begun:
                    folder.check_free()  # again: another run may have begun in it meanwhile
                folder.write_settings(config, dataset.classes, thumbnails)
                if weights is not None:
                    folder.write_provenance(weights.provenance)
                if photos is not None:
                    folder.write_photos(photos)
        for note in notes:
            say(note)
        run = Run(config, folder, network, compute, objective, trained, position, say, ranks)
        if sources is not None:
            with threads_for(trainable, config.batch_size):
                run.fit(sources)
        elif not restored:
            run.save()
        with ranks.agreeing(patiently=True):
            if ranks.first:
                _finish(run, frozen)
    return _result(config, folder, position)


def _thumbnails(dataset: Dataset) -> bytes | None:
    """The reference pictures of the classes in one file; None where there are none."""
    files = {item.id: dataset.thumbnails[item.id] for item in dataset.classes if item.thumbnail}
    return pack(dataset.classes, read_thumbnails(dataset.source, files)) if files else None


def _mute(_line: str) -> None:
    """In place of ``say`` in all processes but the first."""


def _continued(position: Position, ranks: Ranks) -> list[str]:
    """What to tell the user about a run that goes on."""
    notes = [f"continuing after {position.epoch} epochs and {position.step} steps"]
    if position.processes != ranks.count:
        notes.append(
            f"it was trained by {position.processes} processes so far and is by {ranks.count} now: "
            "the result is as good, but not the same to the last bit"
        )
    return notes


def _finish(run: Run, frozen: tuple[Features, Features] | None) -> None:
    """Write what stands at the end of a run."""
    config, folder = run.config, run.folder
    if not folder.best.is_file():
        checkpoint.save_weights(folder.best, run.state())
    if config.blend and frozen is not None and run.objective.head == "linear":
        run.say(blend(folder.best, *frozen, config))
    write_report(folder, config, run.position.history)


def _unfreeze(network: Network, config: TrainConfig) -> list[str]:
    """Leave the blocks alone that are not to be trained; returns what to tell the user."""
    if config.unfreeze is not None:
        network.keep_statistics()
    if not isinstance(config.unfreeze, int):
        return []
    try:
        network.train_only(config.unfreeze)
    except ValueError as error:
        raise UsageError(f"unfreeze: {error}") from error
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in network.parameters()]
    trained, every = sum(size for size, learns in sizes if learns), sum(size for size, _ in sizes)
    last = {0: "alone, nothing", 1: "and the last block"}
    said = last.get(config.unfreeze, f"and the last {config.unfreeze} blocks")
    return [
        f"training the head {said} of {config.backbone}: "
        f"{trained / 1e6:.3g} of {every / 1e6:.3g} million weights"
    ]


def _lowered_k(config: TrainConfig, dataset: Dataset) -> list[str]:
    """What to tell the user where the data have too few classes for ``validation.k``."""
    largest = len(dataset.classes) - 1
    if config.validation.k <= largest:
        return []
    return [f"validation.k is {largest}, the largest for {len(dataset.classes)} classes"]


def _shared_plants(dataset: Dataset) -> list[str]:
    """What to tell the user where val shows plants that are learnt from."""
    learnt, val = (dataset.splits.get(name) for name in ("train", "val"))
    if learnt is None or val is None or learnt.observations is None or val.observations is None:
        return []
    shared = len({*learnt.observations} & {*val.observations})
    if not shared:
        return []
    return [
        f"{count_of(shared, 'plant', 'plants')} of val also in train, which makes accuracy on val "
        "too good: `florilege data split --keep` writes a manifest with such plants in train alone"
    ]


def _features(
    dataset: Dataset, config: TrainConfig, network: Network, run: Path, compute: Compute, say: Say
) -> tuple[Features, Features]:
    """Features of `train` and `val`, kept beside the run or where the settings say."""
    preprocess = config.preprocess
    kept = Path(config.features) if config.features else run.resolve().parent / "features"
    backbone = FrozenBackbone(
        network,
        preprocess,
        kept / folder_name(config.backbone, network.backbone, preprocess),
        compute,
        cores() if config.workers is None else config.workers,
        say,
    )
    return backbone.features(dataset.split("train")), backbone.features(dataset.split("val"))


def _photos(
    dataset: Dataset, config: TrainConfig, frozen: tuple[Features, Features] | None
) -> PhotoHashes:
    """The photos that this run trains on and chooses its checkpoint on."""
    if not config.epochs:
        return PhotoHashes.of()
    if frozen is not None:
        train, val = (features.hashes for features in frozen)
    else:
        workers = cores() if config.workers is None else config.workers
        train, val = (
            hash_photos(dataset.split(name), workers=workers) for name in ("train", "val")
        )
    return PhotoHashes.of(train, val)


def _photos_before(config: TrainConfig, weights: Weights | None) -> PhotoHashes:
    """The photos of the run that this one began with, as far as it is one of ours."""
    unread = weights is None and config.weights not in (None, PRETRAINED)  # of an older version
    before = None if weights is None else weights.photos
    return PhotoHashes.of(complete=not unread) if before is None else before


def open_data(config: TrainConfig, splits: Sequence[str]) -> Dataset:
    """The data of a run; where they cannot be opened, also where those of its recipe are.

    Raises:
        DataError: They cannot be opened.
    """
    try:
        return open_dataset(config.data, splits=splits)
    except DataError as error:
        place = RECIPES[config.recipe].place
        told = not place or place.partition(": ")[2] in str(error)
        raise DataError(str(error) if told else f"{error}; {place}") from error


def objective_of(config: TrainConfig, dataset: Dataset, ranks: Ranks = ALONE) -> Objective:
    """The loss of a run on its data.

    Raises:
        UsageError: A loss or a batch size that cannot be, or does not fit the data.
        DataError: There are too few pictures.
    """
    labels, fewest = dataset.split("train").labels, 2 * ranks.count
    if len(labels) < fewest:
        raise DataError(
            f"{config.data} has {len(labels)} training pictures, at least {fewest} are needed"
        )
    if config.batch_size < fewest:
        raise UsageError(
            f"batch_size must be at least {fewest}, two pictures for each of {ranks.count} "
            f"processes, got {config.batch_size}: it counts those of all processes"
        )
    objective = make_objective(
        config.loss_name,
        config.loss_parameters,
        head=config.head,
        head_scale=config.head_scale,
        accumulate=config.accumulate,
        class_weight_power=config.class_weight_power,
        mixup=config.mixup > 0,
        class_counts=np.bincount(labels, minlength=len(dataset.classes)).tolist(),
    )
    loss_fn = objective.loss_fn
    keeps_own = isinstance(loss_fn, TwoHeadAverageK) and loss_fn.recent_batches
    if keeps_own and not (ranks.alone or loss_fn.spans_ranks):
        raise UsageError(
            "loss.candidates=local with recent batches differs from process to process, which no "
            "checkpoint holds: leave loss.candidates at global, or set loss.recent_batches=0"
        )
    return objective


def seeded(
    config: TrainConfig, dataset: Dataset, ranks: Ranks = ALONE
) -> tuple[Objective, Network]:
    """The loss of a run and its network, drawn from the seed of the run; see `start`."""
    torch.manual_seed(config.seed)
    objective = objective_of(config, dataset, ranks)
    return objective, build_network(config, objective.head, len(dataset.classes))


def start(
    network: Network,
    config: TrainConfig,
    objective: Objective,
    dataset: Dataset,
    weights: Weights | None,
) -> list[str]:
    """Give a new network its first weights; returns notes on them for the user."""
    classes, notes = dataset.classes, list[str]()
    prior = config.multi_label_prior
    if prior is not None and objective.head != "two_head":
        raise UsageError(
            f"multi_label_prior is for a two_head head; {config.loss_name} trains a "
            f"{objective.head} head"
        )
    average_k = objective.loss_fn.average_k if prior is None else prior * len(classes)
    if isinstance(network.head, TwoHead) and average_k is not None and average_k < len(classes):
        network.head.start_multi_label_at(average_k)
        notes.append(
            f"multi-label head: a fresh class starts at probability {average_k / len(classes):.3g},"
            f" bias {network.head.multi_label.bias[0]:.2f}; --set multi_label_prior=0.5 for bias 0"
        )
    if isinstance(network.head, CosineHead) and objective.scale is not None:
        network.head.scale.fill_(objective.scale)
    if weights is not None:
        notes.append(warm_start(network, weights, classes.ids))
    return notes


def _enlarged(dataset: Dataset, config: TrainConfig) -> list[str]:
    """A note for the user if pictures are smaller than the input they are resized to."""
    wanted = config.preprocess.image_size
    side = short_side(dataset.split("train")) or wanted
    enough = side_taken(config.backbone, max(side, 8)) if side < wanted else wanted
    if enough >= wanted:
        return []
    work = (wanted / enough) ** 2
    return [
        f"pictures of {side} px are enlarged to {wanted} px: --image-size {enough} is "
        f"about {work:.1f} times less work"
    ]


def _untaught(config: TrainConfig) -> list[str]:
    """A warning if nobody chose random weights for a network that has pretrained ones."""
    size = megabytes(config.backbone)
    if size is None or "weights" in config.model_fields_set or not config.epochs:
        return []
    return [
        f"warning: {config.backbone} starts from random weights and needs many photos; --weights "
        f"pretrained downloads what it has learnt from others (about {size:.0f} MB), --weights "
        "FILE takes it from a file, --weights none starts from nothing without this warning"
    ]


def build_network(config: TrainConfig, head: str, classes: int) -> Network:
    """The network that the settings describe, its weights drawn from torch's random state.

    Raises:
        UsageError: There is no such backbone, it takes no pictures of this size, or it is too
            large to be exported.
    """
    try:
        network = build(config.backbone, classes, head, image_size=config.preprocess.image_size)
    except ValueError as error:
        raise UsageError(str(error)) from error
    size = sum(value.nbytes for value in network.state_dict().values())
    if size >= MOST_BYTES:
        raise UsageError(
            f"{config.backbone} has {size / 2**30:.1f} GiB of weights, and an ONNX file holds less "
            f"than {MOST_BYTES / 2**30:.0f}: choose a smaller backbone"
        )
    return network


def _result(config: TrainConfig, folder: RunFolder, position: Position) -> TrainResult:
    best = position.best_epoch
    row = position.history[best - 1] if best else {}
    return TrainResult(
        run=str(folder.path),
        epochs=position.epoch,
        best_epoch=best,
        metric=str(metric_of(row) if row else config.validation.chosen_by),
        accuracy=position.best_score,
        head=str(row["val_best_head"]) if row else None,
        score_kind=str(row["val_best_score_kind"]) if row else None,
        seconds=position.seconds,
    )
