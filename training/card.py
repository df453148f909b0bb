"""``MODEL_CARD.md``: what a model is, what it learned from, and how good it was."""

from collections.abc import Mapping
from typing import Any

from models.classes import ClassTable
from training.config import TrainConfig


def model_card(name: str, config: TrainConfig, classes: ClassTable, row: Mapping[str, Any]) -> str:
    """The card in Markdown.

    Args:
        name: Of the model.
        config: Settings of its training.
        classes: What it tells apart.
        row: Figures of the exported epoch; empty where none was trained.
    """
    counts = classes.counts
    pictures = "" if counts is None else f" on {int(counts.sum())} pictures"
    spread = "" if counts is None else f", {counts.min()} to {counts.max()} training pictures each"
    return f"""# {name}

A `{config.backbone}` network that tells {len(classes)} classes apart{spread}. It answers a
photo with a set of classes: the ones whose score reaches a threshold calibrated for a mean set
size K.

## Training

- Data: `{config.data}`, split `train`{pictures}.
- Loss: `{config.loss_name}`; recipe `{config.recipe}`; seed {config.seed}; starting weights:
  {config.weights or "random"}.
- Input: {config.image_size} x {config.image_size} pixels, RGB.

## Figures

{_figures(row)}

## Limits

- The sets are K classes on average on photos like those of the calibration, not on others.
- A photo of something that is none of the classes gets a set all the same, unless the server
  rejects it.
- Scores are comparable with the threshold they were calibrated for; they are no promise about
  one photo.
"""


def _figures(row: Mapping[str, Any]) -> str:
    if not row:
        return "No epoch was trained: these are initial weights, for tests of speed."
    return (
        f"Epoch {row['epoch']} was chosen on `val` by its average-{row['val_average_k']:g} "
        f"accuracy: {float(row['val_score']) * 100:.2f} % ({row['val_best_head']} head, "
        f"{row['val_best_score_kind']} scores).\nThis figure is optimistic, because the same "
        "pictures chose the checkpoint and the threshold;\n`florilege evaluate` on `test` gives "
        "the fair one. All figures of the epoch are in `metrics.json`."
    )
