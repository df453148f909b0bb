"""The rows of [A] and of its supplement [S]: average-K accuracy.

[A] Garcin, Servajean, Salmon and Joly, "A two-head loss function for deep average-K
classification", 2023 (hal-04204318); [S] its supplement.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from florilege.training.recipes.recipe import (
    CIFAR_100,
    CROP_ONCE,
    DECAY,
    PLANTNET,
    SCORES,
    VAL_CIFAR,
    Printed,
    Recipe,
)

# The methods: their word in our names, and how their rows are called in print.
METHODS: Final = {
    "ce": "CE",
    "top": "TOP-K",
    "avg": "AVG-K",
    "an": "AN",
    "epr": "EPR",
    "role": "ROLE",
}

_TWO_HEADS: Final = (
    "the multi-label head starts at bias 0; print is silent",
    "the head that serves is the better one on val; print gives both, first the multi-label one",
)

# Average-K accuracy of the SCCP head, by data and K ([S] tables 3 and 4).
_SCCP: Final[Mapping[str, Mapping[int, tuple[float, float]]]] = {
    "cifar-100-python": {5: (96.93, 0.06)},
    "plantnet_300K": {2: (90.77, 0.16), 3: (94.05, 0.11), 5: (96.39, 0.07), 10: (98.17, 0.06)},
}


def recipes() -> dict[str, Recipe]:
    """All of them by name."""
    return {**dict(cifar100()), **dict(plantnet()), **dict(plantnet_backbones())}


def cifar100() -> Iterator[tuple[str, Recipe]]:
    """[A] table 1: CIFAR-100, DenseNet 40-40, average-5 accuracy; hyperparameters of table 3.

    Departures: those of every recipe here (:func:`_row`); and pictures are cropped, mirrored and
    normalised as in [B], whom [A] follows, since it says nothing of them.
    """
    printed = {
        "ce": (96.83, 0.16),
        "avg": (97.35, 0.06),
        "role": (96.12, 0.11),
        "an": (96.71, 0.02),
        "epr": (95.88, 0.05),
        "top": (96.32, 0.05),
    }
    silent = (
        VAL_CIFAR,
        "print is silent on augmentation and normalisation: shifts of 4 black pixels, flips and "
        "mean and deviation are those of the code of [B]",
    )
    for method, (percent, interval) in printed.items():
        loss = loss_of(method, 5, alpha=0.3, epsilon=0.2, beta=0.01, noise_samples=10)
        yield _row(
            f"cifar100-{method}-k5",
            method,
            Printed(metric="average_k", k=5, percent=percent, interval=interval, source="table 1"),
            settings={**CIFAR_100, "loss": loss},
            paper="[A]",
            data="cifar-100-python",
            departures=silent,
        )


def plantnet() -> Iterator[tuple[str, Recipe]]:
    """[A] table 2: Pl@ntNet-300K, ResNet-18, average-K accuracy; hyperparameters of table 4.

    Departures: those of every recipe here (:func:`_row`), and those of :func:`_plantnet`.
    """
    printed = {
        "ce": {2: (89.63, 0.08), 3: (92.64, 0.17), 5: (95.11, 0.18), 10: (97.11, 0.09)},
        "top": {2: (90.48, 0.05), 3: (93.60, 0.09), 5: (95.75, 0.07), 10: (97.26, 0.03)},
        "avg": {2: (90.34, 0.06), 3: (93.81, 0.10), 5: (96.42, 0.09), 10: (98.23, 0.03)},
        "an": {2: (85.41, 0.15), 3: (90.15, 0.17), 5: (93.88, 0.12), 10: (96.86, 0.06)},
        "epr": {2: (86.30, 0.17), 3: (90.49, 0.14), 5: (93.63, 0.04), 10: (95.99, 0.04)},
    }
    for method, by_k in printed.items():
        for k, (percent, interval) in by_k.items():
            figure = Printed(
                metric="average_k", k=k, percent=percent, interval=interval, source="table 2"
            )
            yield _plantnet(f"plantnet-{method}-k{k}", method, figure, "resnet18", "[A]")


def plantnet_backbones() -> Iterator[tuple[str, Recipe]]:
    """[S] table 7: Pl@ntNet-300K, other networks, average-5 accuracy, "exactly the same setting".

    Departures: those of :func:`plantnet`; and "ViT-16" is taken to be torchvision's `vit_b_16`.
    """
    printed = {
        "ce": (96.75, 95.62, 96.74),
        "top": (97.21, 96.25, 96.77),
        "avg": (97.49, 96.80, 96.88),
        "an": (96.36, 95.28, 95.05),
        "epr": (96.08, 94.79, 94.82),
    }
    networks = ("densenet169", "resnet34", "vit_b_16")
    for method, percents in printed.items():
        for network, percent in zip(networks, percents, strict=True):
            figure = Printed(metric="average_k", k=5, percent=percent, source="table 7")
            name = f"plantnet-{network.replace('_', '')}-{method}-k5"
            yield _plantnet(name, method, figure, network, "[S]")


def loss_of(
    method: str, k: int, *, alpha: float, epsilon: float, beta: float, noise_samples: int
) -> Mapping[str, Any]:
    """The loss of a method at the hyperparameters of [A] tables 3 and 4."""
    losses: Mapping[str, Mapping[str, Any]] = {
        "ce": {"name": "cross_entropy"},
        "top": {
            "name": "noised_top_k",
            "k": k,
            "epsilon": epsilon,
            "noise_samples": noise_samples,
        },
        "avg": {"name": "two_head_average_k", "average_k": k, "alpha": alpha},
        "an": {"name": "assume_negative"},
        "epr": {"name": "expected_positive", "average_k": k, "beta": beta},
        "role": {"name": "role", "average_k": k, "reg_weight": 0.0, "theta_lr": 0.016},
    }
    return losses[method]


def _plantnet(
    name: str, method: str, figure: Printed, backbone: str, paper: str
) -> tuple[str, Recipe]:
    """[A] 6.3: 30 epochs at 0.002, a tenth of it after 25.

    Departures: no flips, and random squares of 224 px at a short side of 256 px, as in the data
    set's own code, since print is silent.
    """
    loss = loss_of(method, figure.k, alpha=5.0, epsilon=1.0, beta=0.001, noise_samples=5)
    schedule = {"name": "step", "milestones": (25,), "factor": 0.1}
    silent = [
        "print is silent on augmentation: random squares of 224 px at a short side of 256 px and "
        "no flips are those of the data set's own code",
        CROP_ONCE,
    ]
    if backbone == "vit_b_16":
        silent.append('"ViT-16" is taken to be vit_b_16')
    settings = {**PLANTNET, "backbone": backbone, "schedule": schedule, "loss": loss}
    return _row(
        name,
        method,
        figure,
        settings=settings,
        paper=paper,
        data="plantnet_300K",
        departures=tuple(silent),
    )


def _row(
    name: str,
    method: str,
    figure: Printed,
    *,
    settings: Mapping[str, Any],
    paper: str,
    data: str,
    departures: tuple[str, ...],
) -> tuple[str, Recipe]:
    """A recipe whose checkpoint is chosen by average-K accuracy on val, at the K of the row.

    Departures: weight decay is torch's, on which print is silent; softmax or sigmoid scores are
    chosen on val; of two heads the better on val serves, and the multi-label one starts at bias 0;
    the noise samples of TOP-K are those of [N] for the same data, as print does not say.
    """
    row, ours = METHODS[method].replace("K", str(figure.k)), dict(settings)
    ours["validation"] = {"metric": "average_k", "k": figure.k}
    silent = (*departures, DECAY, SCORES)
    if method == "avg":
        ours["multi_label_prior"] = 0.5
        silent += _TWO_HEADS
    if method == "top":
        samples = settings["loss"]["noise_samples"]
        silent += (f"print is silent on the noise samples: {samples}, as in [N] for these data",)
    network = f", {settings['backbone']}" if paper == "[S]" else ""
    source = f"{paper} {figure.source}, row {row}{network}"
    figures = [replace(figure, source=source)]
    if method == "avg" and paper == "[A]":
        percent, interval = _SCCP[data][figure.k]
        table = 3 if data == "cifar-100-python" else 4
        told = f"[S] table {table}, SCCP head"
        figures.append(replace(figure, percent=percent, interval=interval, source=told))
    recipe = Recipe(
        about=f"{row} loss, average-{figure.k} accuracy, {settings['backbone']}",
        settings=ours,
        data=data,
        source=source,
        printed=tuple(figures),
        departures=silent,
    )
    return name, recipe
