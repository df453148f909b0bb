"""Training a head on kept features, by the loop of every run."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from models.backbones import Network
from models.backbones.weights import read_weights
from training.checkpoint import Position, Trained
from training.config import TrainConfig
from training.device import choose
from training.frozen.features import HeadOnFeatures, threads_for
from training.frozen.store import Features
from training.loading import Sources
from training.loop import Run
from training.objective import Objective
from training.optimisation.averaging import averaged
from training.optimisation.optimiser import make_optimiser
from training.run_folder import RunFolder


def train_head(
    config: TrainConfig, network: Network, objective: Objective, train: Features, val: Features
) -> Mapping[str, Tensor]:
    """The weights that ``train --freeze backbone`` would keep, of the best epoch on ``val``.

    Args:
        config: All settings of the run; it is trained on the CPU.
        network: With the head as it starts. It is not changed.
        objective: Trains that head.
        train: Features with the labels to learn.
        val: Chooses the epoch.
    """
    compute, trainable = choose("cpu", "fp32"), HeadOnFeatures(network, train)
    decay = config.average.decay
    trained = Trained(
        trainable,
        make_optimiser(trainable, config.optimiser),
        objective.loss_fn,
        average=None if decay is None else averaged(trainable, decay),
    )
    with TemporaryDirectory() as scratch, threads_for(trainable, config.batch_size):
        folder = RunFolder(Path(scratch))
        run = Run(config, folder, network, compute, objective, trained, Position(), _mute)
        run.fit(Sources(train, val, workers=0))
        return read_weights(folder.best)


def _mute(_line: str) -> None:
    """In place of a run's ``say``."""
