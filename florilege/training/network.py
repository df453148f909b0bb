"""Build the loss and the network of a run, and load the initial weights."""

import numpy as np
import torch

from florilege.data.dataset import Dataset
from florilege.errors import DataError, UsageError
from florilege.models.backbones import Network, build
from florilege.models.backbones.weights import Weights, warm_start
from florilege.models.export import MOST_BYTES
from florilege.models.heads import CosineHead, TwoHead
from florilege.training.config import TrainConfig
from florilege.training.loop.distributed import ALONE, Ranks
from florilege.training.objective import Objective, make_objective


def objective_of(config: TrainConfig, dataset: Dataset, ranks: Ranks = ALONE) -> Objective:
    """The loss of a run on its data."""
    labels, fewest = dataset.split("train").labels, 2 * ranks.count
    if len(labels) < fewest:
        raise DataError(
            f"{config.data} has {len(labels)} training pictures; at least {fewest} are needed"
        )
    if config.batch_size < fewest:
        raise UsageError(
            f"batch_size must be at least {fewest}, two pictures for each of {ranks.count} "
            f"processes, got {config.batch_size}: it counts those of all processes"
        )
    counts = np.bincount(labels, minlength=len(dataset.classes)).tolist()
    return make_objective(config, counts)


def build_network(config: TrainConfig, head: str, classes: int) -> Network:
    """The network that the settings describe, with weights drawn from torch's random state."""
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


def seeded(
    config: TrainConfig, dataset: Dataset, ranks: Ranks = ALONE
) -> tuple[Objective, Network]:
    """The loss and the network of a run, with random weights from its seed; see `start`."""
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
    """Give a new network its initial weights; returns notes for the user."""
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


def unfreeze(network: Network, config: TrainConfig) -> list[str]:
    """Freeze all blocks but the last ``config.unfreeze``; returns notes for the user."""
    if config.unfreeze is not None:
        network.keep_statistics()
    if not isinstance(config.unfreeze, int):
        return []
    try:
        network.train_only(config.unfreeze)
    except ValueError as error:
        raise UsageError(f"unfreeze: {error}") from error
    total = sum(parameter.numel() for parameter in network.parameters())
    trainable = sum(
        parameter.numel() for parameter in network.parameters() if parameter.requires_grad
    )
    few_blocks = {0: "alone, nothing", 1: "and the last block"}
    blocks = few_blocks.get(config.unfreeze, f"and the last {config.unfreeze} blocks")
    return [
        f"training the head {blocks} of {config.backbone}: "
        f"{trainable / 1e6:.3g} of {total / 1e6:.3g} million weights"
    ]
