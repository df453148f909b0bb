"""Train a head on stored features, with the loop of every run."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from florilege.models.backbones import Network
from florilege.models.backbones.weights import read_weights
from florilege.training.batches.data_loader import Sources
from florilege.training.config import TrainConfig
from florilege.training.device import choose
from florilege.training.frozen.feature_store import Features
from florilege.training.frozen.features import HeadOnFeatures, threads_for
from florilege.training.loop.checkpoint import Position, TrainingState
from florilege.training.loop.training_loop import Run, mute
from florilege.training.objective import Objective
from florilege.training.run_folder import RunFolder


def train_head(
    config: TrainConfig, network: Network, objective: Objective, train: Features, val: Features
) -> Mapping[str, Tensor]:
    """The weights of the best epoch on ``val``, as ``train --freeze backbone`` would save them.

    Args:
        config: All settings of the run, which trains on the CPU.
        network: A network with the initial head. It is not modified.
        objective: The loss for that head.
        train: Features with the labels to learn.
        val: Features with the labels that choose the epoch.
    """
    compute, trainable = choose("cpu", "fp32"), HeadOnFeatures(network, train)
    trained = TrainingState.before_training(trainable, objective.loss_fn, config, compute)
    with TemporaryDirectory() as scratch, threads_for(trainable, config.batch_size):
        folder = RunFolder(Path(scratch))
        run = Run(config, folder, network, compute, objective, trained, Position(), mute)
        run.fit(Sources(train, val, workers=0))
        return read_weights(folder.best)
