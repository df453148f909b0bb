"""Export a finished run to a bundle, the folder that is calibrated and served."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from florilege.errors import BundleError, installed
from florilege.models.backbones import PRETRAINED, Provenance, load_into, read_weights
from florilege.models.bundle import Bundle, reserved, write_bundle
from florilege.models.classes import ClassTable
from florilege.models.export import export_onnx
from florilege.models.heads import output_names
from florilege.models.photo_hashes import PHOTOS
from florilege.training.config import Metric, TrainConfig
from florilege.training.configuration import RunFolder, to_yaml
from florilege.training.frozen.head_solver import WIDER, decays_of
from florilege.training.loop.evaluation import merit
from florilege.training.network import build_network, head_of

_LIBRARIES: Final = (
    *("florilege", "torch", "torchvision", "timm"),
    *("onnx", "onnxruntime", "numpy", "pillow"),
)


def export_run(run: Path, out: Path) -> Bundle:
    """Export the best weights of a run folder to a bundle that is not calibrated yet.

    ``out`` is a new or empty folder, or a bundle to replace. The result is opened and verified.

    Raises:
        BundleError: No run folder, weights of another architecture, an exported graph that
            differs from torch, or a folder that cannot be written. ``out`` stays as it was.
        UsageError: Another process is changing the bundle ``out``.
    """
    folder = RunFolder(run)
    config, classes = folder.read_config(), folder.read_classes()
    head = head_of(config.loss_name, config.head)
    network = build_network(config, head, len(classes))
    if not folder.best.is_file():
        raise BundleError(f"{run} has no best.safetensors: train it, or continue with --resume")
    load_into(network, read_weights(folder.best), origin=str(folder.best))
    preprocess, row = config.preprocess, _best_row(folder)
    facts = _RunFacts(config, classes, row, folder.read_provenance())
    with reserved(out):
        model, parity = export_onnx(network, preprocess)
        files: dict[str, bytes | Path] = {
            "metrics.json": _json(row),
            "MODEL_CARD.md": _model_card(_name_of(run), facts).encode(),
            "provenance.json": _json(_provenance(facts, parity)),
            "config.yaml": to_yaml(config).encode(),
            "weights.safetensors": folder.best,
        }
        if folder.photos.is_file():
            files[PHOTOS] = folder.photos
        if any(item.thumbnail for item in classes):
            files["thumbnails.zip"] = folder.thumbnails
        return write_bundle(
            out,
            name=_name_of(run),
            heads=output_names(head),
            model=model,
            classes=classes,
            preprocess=preprocess,
            files=files,
        )


def _best_row(folder: RunFolder) -> dict[str, Any]:
    """The figures of the best epoch by column, if there is one; ``BundleError`` if damaged."""
    if not folder.metrics.is_file():
        return {}
    try:
        with folder.metrics.open(encoding="utf-8", newline="") as file:
            rows = [
                {key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)
            ]
        return max(rows, key=merit) if rows else {}
    except (OSError, csv.Error, KeyError, ValueError, TypeError) as error:
        raise BundleError(f"{folder.metrics} cannot be read: {error!r}") from error


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _name_of(run: Path) -> str:
    """The name of its folder, or of the one around a folder that is only called ``run``."""
    folder = run.resolve()
    return folder.parent.name if folder.name == "run" else folder.name


class _RunFacts(NamedTuple):
    """What a bundle tells about the run that it comes from."""

    config: TrainConfig
    classes: ClassTable
    row: Mapping[str, Any]  # figures of the exported epoch; empty if none was trained
    started_from: Provenance | None  # the weights that the run started from


def _provenance(run: _RunFacts, parity: dict[str, Any]) -> dict[str, Any]:
    config, classes, row, started_from = run
    counts = classes.counts
    return {
        "data": config.data,
        "training_pictures": None if counts is None else int(counts.sum()),
        "checkpoint_chosen_on": "val" if row else None,
        "networks_compared": _networks_compared(run) if row else None,
        "checkpoint_chosen_by": str(Metric.of(row)) if row else None,
        "epoch": row.get("epoch"),
        "weight_decay": row.get("weight_decay"),
        "recipe": config.recipe,
        "backbone": config.backbone,
        "weights": config.weights,
        "starting_weights": None if started_from is None else asdict(started_from),
        "loss": dict(config.loss),
        "seed": config.seed,
        "parity": {**parity, "between": f"torch {torch.__version__} and ONNX Runtime, on the CPU"},
        "libraries": {name: installed(name) for name in _LIBRARIES},
    }


def _networks_compared(run: _RunFacts) -> int | None:
    """Among how many networks `val` chose, for promises to allow for; None if they are not counted.

    All epochs count, also those after an early stop, or all weight decays that might have been
    compared for a head. Weights from a file may have been chosen on the same photos.
    """
    config = run.config
    if config.weights not in (None, PRETRAINED):
        return None
    solved_for = config.optimiser.name == "lbfgs"
    return len(decays_of(config.optimiser, grid=WIDER)) if solved_for else config.epochs


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _model_card(name: str, run: _RunFacts) -> str:
    """The card in Markdown."""
    config, classes, row, started_from = run
    counts, preprocess, size = classes.counts, config.preprocess, config.preprocess.image_size
    pictures = "" if counts is None else f" on {int(counts.sum())} pictures"
    spread = "" if counts is None else f", {counts.min()} to {counts.max()} training pictures each"
    mean, deviation = _numbers(preprocess.mean), _numbers(preprocess.std)
    return f"""# {name}

A `{config.backbone}` network that distinguishes {len(classes)} classes{spread}. For a photo it
returns a set of classes: those whose score reaches a threshold calibrated for a mean set size K.

## Training

- Data: `{config.data}`, split `train`{pictures}.
- Loss: `{config.loss_name}`; recipe `{config.recipe}`; seed {config.seed}.
- Starting weights: {_starting_weights(config, started_from)}.
- Input: {size} x {size} pixels, RGB, {preprocess.resample}, from the centre
  square of {preprocess.crop_fraction:.4g} of the short side; mean {mean}, standard
  deviation {deviation}.

## Figures

{_figures(row)}

## Limits

- Sets hold K classes on average on photos like those of the calibration, not on others.
- A photo of something that belongs to none of the classes still gets a set, unless the server
  rejects it.
- Compare scores only with the threshold calibrated for them; they guarantee nothing about a
  single photo.
"""


def _starting_weights(config: TrainConfig, started_from: Provenance | None) -> str:
    if started_from is None:
        return config.weights or "random"
    licence = f"licence: {started_from.licence or 'unknown'}"
    source = f" from <{started_from.source}>" if started_from.source else ""
    return f"`{started_from.file}`{source}, {licence}, sha256 `{started_from.sha256}`"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _figures(row: Mapping[str, Any]) -> str:
    if not row:
        return "No epoch was trained: these are initial weights, for speed tests."
    how = f"Epoch {row['epoch']} was chosen on `val` by its {Metric.of(row)}: "
    if "weight_decay" in row:
        metric = str(Metric.of(row)).capitalize()
        how = f"Weight decay {row['weight_decay']:g} was chosen on `val`. {metric}: "
    return (
        f"{how}"
        f"{float(row['val_score']) * 100:.2f} % ({row['val_best_head']} head, "
        f"{row['val_best_score_kind']} scores).\nThis figure is optimistic, because the same "
        "pictures chose the checkpoint and the threshold;\n`florilege evaluate` on `test` gives "
        "the fair one. All figures of the epoch are in `metrics.json`."
    )
