"""The rows of [N] on long tails: Pl@ntNet-300K (tables 5 and 7) and ImageNet-LT.

[N] Garcin, Servajean, Joly and Salmon, "Stochastic smoothing of the top-K calibrated hinge loss for
deep imbalanced classification", ICML 2022, and its version 2 at arXiv (2202.02193).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from florilege.training.recipes.recipe import CROP, CROP_ONCE, DECAY, PLANTNET, Printed, Recipe

KS: Final = (1, 3, 5, 10)

# Macro-average top-K (table 5) and top-K accuracy (table 7) at K = 1, 3, 5, 10; 0.0 is "NA".
_PLANTNET: Final[Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "ce": ((35.91, 58.91, 69.05, 78.08), (79.93, 93.19, 95.75, 97.42)),
    "smooth": ((0.0, 50.41, 50.71, 46.23), (0.0, 93.20, 94.91, 95.46)),
    "noised": ((35.44, 59.06, 66.97, 76.08), (81.00, 93.56, 95.84, 97.52)),
    "focal": ((37.87, 59.96, 69.91, 78.88), (79.71, 93.56, 96.10, 97.72)),
    "ldam": ((40.54, 63.50, 72.23, 80.69), (79.49, 92.40, 95.22, 97.21)),
    "imbalanced": ((42.36, 64.77, 72.95, 80.85), (80.90, 93.45, 95.80, 97.52)),
}

_ROWS: Final = {
    "ce": "CE",
    "smooth": "Smoothed Hinge",
    "noised": "Noised bal.",
    "focal": "focal",
    "ldam": "LDAM",
    "imbalanced": "Noised imbal.",
}

_V1: Final = (
    "`pretrained` is torchvision's second set of weights (IMAGENET1K_V2), which the paper cannot "
    "have used; `--weights resnet50-0676ba61.pth` is the first"
)


def recipes() -> dict[str, Recipe]:
    """All of them by name."""
    return {**dict(plantnet()), **dict(imagenet_lt())}


def loss_of(method: str, k: int, *, ldam_scale: float, imbalanced_scale: float) -> dict[str, Any]:
    """The loss of a method with the hyperparameters of [N] 4.5 and of its command lines."""
    margins = {"max_margin": 0.2}
    losses: Mapping[str, dict[str, Any]] = {
        "ce": {"name": "cross_entropy"},
        "smooth": {"name": "smooth_top_k", "k": k, "tau": 0.1},
        "noised": {"name": "noised_top_k", "k": k, "epsilon": 1.0, "noise_samples": 5},
        "focal": {"name": "focal", "gamma": 2.0},
        "ldam": {"name": "ldam", **margins, "scale": ldam_scale},
        "imbalanced": {
            "name": "imbalanced_noised_top_k",
            "k": k,
            "epsilon": 0.01,
            "noise_samples": 5,
            **margins,
            "scale": imbalanced_scale,
        },
    }
    return losses[method]


def plantnet() -> Iterator[tuple[str, Recipe]]:
    """[N] tables 5 and 7: Pl@ntNet-300K, ResNet-50, macro-average top-K and top-K accuracy.

    Departures: torchvision's weights of today; epsilon = 1, 5 noise samples (balanced loss) and
    gamma = 2 (focal) are those of the published command lines, since print is silent; so are
    random squares without flips; weight decay is torch's.
    """
    for method, (macro, regular) in _PLANTNET.items():
        for k, *percents in zip(KS, macro, regular, strict=True):
            if not any(percents):
                continue
            row = f"row K = {k}, {_ROWS[method]}"
            figures = (
                Printed(
                    metric="macro_top_k", k=k, percent=percents[0], source=f"[N] table 5, {row}"
                ),
                Printed(metric="top_k", k=k, percent=percents[1], source=f"[N] table 7, {row}"),
            )
            departures = [
                _V1,
                "print is silent on augmentation: random squares of 224 px at a short side of 256 "
                "px and no flips are those of its code",
                CROP_ONCE,
                DECAY,
            ]
            if method == "noised":
                departures.append(
                    "print is silent on epsilon and the noise samples of the balanced loss: 1 and "
                    "5 are those of its command line for K = 5"
                )
            if method == "focal":
                departures.append(
                    "print is silent on gamma: 2 is that of its command line for K = 5"
                )
            yield (
                f"plantnet-macro-{method}-k{k}",
                Recipe(
                    about=f"{_ROWS[method]} loss, macro top-{k} accuracy, resnet50",
                    settings={
                        **PLANTNET,
                        "backbone": "resnet50",
                        "schedule": {"name": "step", "milestones": (20, 25), "factor": 0.1},
                        "loss": loss_of(method, k, ldam_scale=40.0, imbalanced_scale=60.0),
                        "validation": {"metric": "macro_top_k", "k": k},
                    },
                    data="plantnet_300K",
                    source=f"[N] tables 5 and 7, {row}",
                    printed=figures,
                    departures=tuple(departures),
                ),
            )


def imagenet_lt() -> Iterator[tuple[str, Recipe]]:
    """[N] 4.5.2 of version 2: ImageNet-LT, ResNet-34, 100 epochs, batches of 128, tenths at 60, 80.

    Departures: the copy of the text that we have lacks its formulas, so that learning rate, weight
    decay, the figures of table 6 and one of its five losses are missing: 0.1, 5e-4 and the losses'
    hyperparameters (those of Pl@ntNet, scales 30 and 50 of appendix E) are ours, and pictures are
    those of [B] on ImageNet.
    """
    for method in ("ce", "focal", "ldam", "imbalanced"):
        for k in (1, 3, 5):
            yield (
                f"imagenet-lt-{method}-k{k}",
                Recipe(
                    about=f"{_ROWS[method]} loss, top-{k} accuracy, resnet34",
                    settings={
                        "backbone": "resnet34",
                        "weights": None,
                        "image_size": 224,
                        "crop_fraction": 224 / 256,
                        "epochs": 100,
                        "batch_size": 128,
                        "precision": "fp32",
                        "optimiser": {
                            "learning_rate": 0.1,
                            "weight_decay": 5e-4,
                            "decay_all": True,
                        },
                        "schedule": {"name": "step", "milestones": (60, 80), "factor": 0.1},
                        "augment": {**CROP, "flip": 0.5},
                        "loss": loss_of(method, k, ldam_scale=30.0, imbalanced_scale=50.0),
                        "validation": {"metric": "top_k", "k": k},
                    },
                    data="ImageNet_LT",
                    source=f"[N] version 2, 4.5.2 and table 6, row K = {k}, {_ROWS[method]}",
                    departures=(
                        "figures, learning rate and weight decay are missing from the copy of the "
                        "text that we have, and so is the name of its fifth loss: 0.1 and 0.0005 "
                        "are ours",
                        "hyperparameters of the loss are those for Pl@ntNet-300K, scales those "
                        "that appendix E recommends",
                        "pictures are cropped and mirrored as [B] does on ImageNet",
                        CROP_ONCE,
                        DECAY,
                    ),
                ),
            )
