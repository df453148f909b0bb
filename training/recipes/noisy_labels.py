"""The rows of [B] table 1 and [N] table 4: CIFAR-100 with noisy labels, top-5 accuracy.

[B] Berrada, Zisserman and Kumar, "Smooth loss functions for deep top-k classification", ICLR 2018.
[N] Garcin, Servajean, Joly and Salmon, "Stochastic smoothing of the top-K calibrated hinge loss for
deep imbalanced classification", ICML 2022. [N] repeats the experiment of [B] with its
hyperparameters, so that rows of the same loss and noise are one recipe with two figures.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from florilege.training.recipes.recipe import CIFAR_100, DECAY, VAL_CIFAR, Printed, Recipe

_B: Final[Mapping[str, Mapping[float, tuple[float, float]]]] = {  # top-1, top-5 by noise
    "ce": {
        0.0: (76.68, 94.34),
        0.2: (68.20, 87.89),
        0.4: (61.18, 83.04),
        0.6: (52.50, 79.59),
        0.8: (35.53, 74.80),
        1.0: (14.06, 67.70),
    },
    "smooth": {
        0.0: (69.33, 94.29),
        0.2: (71.30, 90.59),
        0.4: (70.02, 87.39),
        0.6: (67.97, 83.86),
        0.8: (55.85, 79.32),
        1.0: (15.28, 72.93),
    },
}

_DEVIATIONS: Final[Mapping[str, Mapping[float, tuple[float, float]]]] = {  # of _B, [B] table 9
    "ce": {
        0.0: (0.38, 0.09),
        0.2: (0.50, 0.08),
        0.4: (0.97, 0.38),
        0.6: (0.27, 0.36),
        0.8: (0.79, 0.15),
        1.0: (0.13, 0.16),
    },
    "smooth": {
        0.0: (0.27, 0.10),
        0.2: (0.79, 0.08),
        0.4: (0.40, 0.23),
        0.6: (0.51, 0.39),
        0.8: (0.80, 0.25),
        1.0: (0.39, 0.25),
    },
}

_N: Final[Mapping[str, Mapping[float, tuple[float, float]]]] = {  # the top-1 of table 6
    "ce": {
        0.0: (76.56, 94.24),
        0.1: (71.01, 90.39),
        0.2: (68.19, 87.67),
        0.3: (65.61, 85.93),
        0.4: (61.90, 83.74),
    },
    "smooth": {
        0.0: (69.23, 94.34),
        0.1: (71.52, 92.08),
        0.2: (71.59, 90.22),
        0.3: (70.44, 88.82),
        0.4: (70.42, 87.40),
    },
    "noised": {
        0.0: (68.74, 94.35),
        0.1: (68.43, 92.03),
        0.2: (69.34, 90.68),
        0.3: (69.11, 89.58),
        0.4: (69.44, 87.48),
    },
}

_LOSSES: Final[Mapping[str, Mapping[str, Any]]] = {
    "ce": {"name": "cross_entropy"},
    "smooth": {"name": "smooth_top_k", "k": 5, "tau": 1.0},
    "noised": {"name": "noised_top_k", "k": 5, "epsilon": 0.2, "noise_samples": 10},
}

_ROWS: Final = {"ce": ("CE", "CE"), "smooth": ("L5,1", "Smoothed Hinge"), "noised": ("", "Noised")}
"""How a loss is called in [B] and in [N]."""

_NAMES: Final = {"ce": "CE", "smooth": "smooth", "noised": "noised"}

_EPOCH_SECONDS: Final = {"ce": 65, "smooth": 81, "noised": 68}  # [N] 4.3, at 3 noise samples

_COST: Final = (
    "300 epochs of 65 s (CE), 81 s (smooth) or 68 s (noised, with 3 noise samples; here 10), on a "
    "GPU that [N] 4.3 does not name"
)

_DEPARTURES: Final = (
    VAL_CIFAR + "; the code of print draws it from all 50,000 at random",
    "the learning rate falls after 150 and 225 epochs, as printed; the command lines of [N] say "
    "151 and 226",
    "pictures are mirrored and normalised as in the code of both papers",
    DECAY,
)
_OF_NOISE: Final = (
    "the wrong labels are the same for every seed; `noise_seed` draws others",
    "labels are drawn within the coarse class, as printed; the code of both papers draws among "
    "five classes that follow each other in the alphabet",
)


def recipes() -> dict[str, Recipe]:
    """All of them by name."""
    return dict(cifar100())


def cifar100() -> Iterator[tuple[str, Recipe]]:
    """[B] table 1 (rows 0.0 to 1.0) and [N] tables 4 and 6 (rows 0.0 to 0.4): DenseNet 40-40.

    Deviations over three seeds are those of [B] table 9. Departures: val is balanced; the noise is
    the same for every seed, and follows print where the code of both papers differs; weight decay,
    on which print is silent, is torch's.
    """
    for loss in _LOSSES:
        for noise in sorted({*_B.get(loss, {}), *_N[loss]}):
            figures = (*_figures(loss, noise, "[B]"), *_figures(loss, noise, "[N]"))
            told = f"with {noise:.0%} noisy labels" if noise else "with clean labels"
            yield (
                f"cifar100-noise{noise:g}-{loss}-k5",
                Recipe(
                    about=f"{_ROWS[loss][1]} loss {told}, top-5 accuracy, densenet40_40",
                    settings={
                        **CIFAR_100,
                        "loss": _LOSSES[loss],
                        "validation": {"metric": "top_k", "k": 5},
                    },
                    data="cifar-100-python",
                    options=f"noise={noise:g}" if noise else "",
                    source=f"[B] table 1, [N] tables 4 and 6, row {noise:.1f}, {_NAMES[loss]}",
                    printed=figures,
                    departures=_DEPARTURES + (_OF_NOISE if noise else ()),
                    gpu_hours=CIFAR_100["epochs"] * _EPOCH_SECONDS[loss] / 3600,
                    cost=_COST,
                ),
            )


def _figures(loss: str, noise: float, paper: str) -> Iterator[Printed]:
    """Top-5 and top-1 accuracy of a row, as far as a paper has it."""
    by_noise = (_B if paper == "[B]" else _N).get(loss, {})
    if noise not in by_noise:
        return
    name = _ROWS[loss][paper == "[N]"]
    top_1, top_5 = by_noise[noise]
    spread_1, spread_5 = _DEVIATIONS[loss][noise] if paper == "[B]" else (None, None)
    tables = (1, 1) if paper == "[B]" else (4, 6)
    figures = ((5, top_5, spread_5), (1, top_1, spread_1))
    for table, (k, percent, spread) in zip(tables, figures, strict=True):
        source = f"{paper} table {table}, row {noise:.1f}, {name}"
        yield Printed(metric="top_k", k=k, percent=percent, deviation=spread, source=source)
