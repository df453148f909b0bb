"""Level sets of every loss over the scores of three classes, as in [N] figures 1 and 6.

``python -m benchmarks.figures.loss_level_sets --out docs/images`` draws one picture for k = 1 and
one for k = 2. The scores lie in the triangle ``s >= 0, sum(s) = 2``; its upper corner is the true
class. Each loss is rescaled to run from 0 to 1 and has margin 1 where it has one, in units of the
scores; for the imbalanced loss the true class is 16 times as frequent as the others, which halves
it.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from florilege.training import losses

STEPS = 60  # points along an edge of the triangle
LABEL = 1
LEVELS = [level / 12 for level in range(13)]
NOISE_SAMPLES = 400  # enough to see the expectation instead of the samples

Values = Callable[[Tensor, Tensor], Tensor]


def main() -> None:
    """Read the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    folder: Path = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for k in (1, 2):
        draw(k, folder / f"loss-level-sets-k{k}.png")


def triangle(steps: int = STEPS) -> Tensor:
    """Scores ``(points, 3)`` on a grid over the triangle, float64."""
    edge = range(steps + 1)
    corners = [(i, j, steps - i - j) for i in edge for j in edge if i + j <= steps]
    return 2 * torch.tensor(corners, dtype=torch.float64) / steps


def panels(k: int) -> Mapping[str, Values]:
    """What is drawn, by title: the error itself and the fifteen losses."""
    generator = torch.Generator().manual_seed(0)
    even = {"class_counts": [1, 1, 1], "max_margin": 1.0, "scale": 1.0}
    noise = {"noise_samples": NOISE_SAMPLES, "generator": generator, "sharing": "shared"}
    return {
        f"top-{k} error": lambda s, y: (s[:, LABEL] < s.topk(k).values[:, -1]).double(),
        "cross_entropy": losses.cross_entropy,
        "focal, gamma 2": losses.focal,
        "generalised_cross_entropy, q 0.7": _with(losses.generalised_cross_entropy, q=0.7),
        "ldam": _with(losses.ldam, **even),
        "top_k_hinge": _with(losses.top_k_hinge, k=k),
        "convex_top_k_hinge": _with(losses.convex_top_k_hinge, k=k),
        "calibrated_top_k_hinge": _with(losses.calibrated_top_k_hinge, k=k),
        "smooth_top_k, tau 0.1": _with(losses.smooth_top_k, k=k, tau=0.1, margin=1 / k),
        "noised_top_k, epsilon 0.3": _with(losses.noised_top_k, k=k, epsilon=0.3, **noise),
        "imbalanced_noised_top_k, m 0.5": _with(
            losses.imbalanced_noised_top_k,
            k=k,
            epsilon=0.3,
            **noise,
            **{**even, "class_counts": [1, 16, 1]},
        ),
        "assume_negative": losses.assume_negative,
        "positive_bce": losses.positive_bce,
        f"expected_positive, K {k}": _one_by_one(
            _with(losses.expected_positive, average_k=k, beta=1.0)
        ),
        f"role, K {k}": _one_by_one(_role(k)),
        f"two_head_average_k, K {k}": _one_by_one(_two_heads(k)),
    }


def heights(values: Tensor) -> Tensor:
    """Values from 0 to just below 1; the last level does not hold its upper edge.

    Rounded, so that a plateau on a level, apart by rounding only, lies on one side of it.
    """
    rescaled = (values - values.min()) / (values.max() - values.min())
    return rescaled.clamp_max(1 - 1e-6).round(decimals=9)


def draw(k: int, path: Path) -> None:
    """Draw all panels for this k into one PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scores = triangle()
    labels = torch.full((len(scores),), LABEL)
    across = ((scores[:, 2] - scores[:, 0]) / 2).numpy()
    up = scores[:, LABEL].numpy()
    figure = Figure(figsize=(10, 8.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, values) in zip(figure.subplots(4, 4).flat, panels(k).items(), strict=True):
        height = heights(values(scores, labels)).numpy()
        colours = axes.tricontourf(
            across, up, height, levels=LEVELS, cmap="viridis", vmin=0, vmax=1
        )
        axes.plot([0], [2.08], marker="o", color="crimson", clip_on=False, markersize=5)
        axes.set_title(title, fontsize=9, pad=12)
        axes.set_aspect(0.866)
        axes.axis("off")
    bar = figure.colorbar(colours, ax=figure.axes, shrink=0.6, aspect=40, ticks=[0, 0.5, 1])
    bar.set_label("loss, rescaled")
    figure.savefig(path, dpi=80)


def _with(loss: Callable[..., Tensor], **parameters: Any) -> Values:
    return lambda scores, labels: loss(scores, labels, **parameters)


def _one_by_one(loss: Values) -> Values:
    """A loss of the whole batch, of batches of one."""
    return lambda scores, labels: torch.stack(
        [loss(s, y) for s, y in zip(torch.split(scores, 1), torch.split(labels, 1), strict=True)]
    )


def _two_heads(k: int) -> Values:
    """Both heads see the same scores."""
    return lambda scores, labels: losses.two_head_average_k(scores, scores, labels, average_k=k)


def _role(k: int) -> Values:
    """With the estimates that an image starts with."""
    start = torch.zeros(1, 3, dtype=torch.float64)
    start[0, LABEL] = 5.3
    return lambda scores, labels: losses.role(scores, labels, estimates=start, average_k=k)


if __name__ == "__main__":
    main()
