"""``florilege import``."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from florilege.data.dataset import SPLITS, split_name
from florilege.errors import UsageError
from florilege.extras import install_hint
from florilege.models.bundle import Bundle, reserved
from florilege.models.bundle.bundle import CALIBRATION
from florilege.models.imported.description import Description, read_description
from florilege.training.imported.bundle import NO_SPLIT, Imported, read_class_table, write_imported
from florilege.training.imported.onnx_file import import_onnx

app = typer.Typer(add_completion=False, help="Make a bundle of a network trained elsewhere.")

SHOWN: Final = 10  # pictures with their best class, in the table for people


@app.command("import")
def import_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="ONNX file; or a network of torchvision or timm (timm:NAME), for a checkpoint.",
        ),
    ],
    classes: Annotated[
        Path,
        typer.Option(help="Table of classes, classes.csv: row i is what output i stands for."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="BUNDLE", help="Bundle to write.")],
    preprocess: Annotated[
        Path | None,
        typer.Option(help="JSON file of what the graph does not say; see docs/import.md."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Checkpoint of the network, .safetensors or .pt; without it, its pretrained "
            "weights, downloaded once.",
        ),
    ] = None,
    chosen_on: Annotated[
        str | None,
        typer.Option(
            metavar="SPLIT",
            help="Split whose photos chose this checkpoint: val, test, or none if they had no part "
            "in it. Without it nothing can be guaranteed.",
        ),
    ] = None,
    photos: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Photos, or a folder of them, on which bundle and original are compared; may be "
            "repeated. Without any, on made-up pictures.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Turn a classifier trained elsewhere into a bundle, checked against the original.

    An ONNX file needs no torch; a checkpoint of torchvision or timm needs the extra `train`. Next
    comes `florilege calibrate`.
    """
    calibrated = (out / CALIBRATION).is_file()
    (table, thumbnails), said = read_class_table(classes), read_description(preprocess)
    chosen = None if chosen_on is None else _split_chosen_on(chosen_on)
    with reserved(out):
        found = _import(model, weights, said, len(table), photos or [])
        bundle = write_imported(found, table, thumbnails, out, chosen_on=chosen)
    if calibrated:
        typer.echo(f"{out}: the calibration it held is gone: calibrate again", err=True)
    if chosen is None:
        typer.echo(
            "not said which photos chose this checkpoint, so no calibration is guaranteed: import "
            "it with --chosen-on SPLIT, or --chosen-on none",
            err=True,
        )
    if as_json:
        typer.echo(json.dumps(_plain(found, bundle), ensure_ascii=False))
    else:
        _show(found, bundle)


def _split_chosen_on(text: str) -> str:
    """The name of the split as data sets have it, or ``none``."""
    name = NO_SPLIT if text.strip().lower() == NO_SPLIT else split_name(text)
    if name is None:
        raise UsageError(f"--chosen-on takes {', '.join(SPLITS)} or {NO_SPLIT}, got {text!r}")
    return name


def _import(
    model: str, weights: str | None, said: Description, classes: int, photos: list[Path]
) -> Imported:
    if Path(model).is_file() or Path(model).suffix == ".onnx":
        if weights is not None:
            raise UsageError(f"{model} holds its weights: leave out --weights {weights}")
        return import_onnx(Path(model), said, classes=classes, photos=photos)
    try:
        from florilege.training.imported.checkpoint import import_checkpoint
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{model} is no ONNX file; a checkpoint of a network needs {error.name}: "
            f"{install_hint('train')}"
        ) from error
    return import_checkpoint(model, weights, said, classes=classes, photos=photos)


def _plain(found: Imported, bundle: Bundle) -> dict[str, Any]:
    return {
        "bundle": str(bundle.path),
        "bundle_sha256": bundle.sha256,
        "classes": len(bundle.classes),
        "imported_from": dict(found.files),
        "facts": dict(found.facts),
        "agreement": asdict(found.agreement),
        "best": dict(_best(found, bundle)),
    }


def _best(found: Imported, bundle: Bundle) -> Mapping[str, str]:
    """The name of the best class of each picture compared."""
    best = found.logits.argmax(axis=1)
    names = [bundle.classes[int(index)].scientific_name for index in best]
    return dict(zip(found.pictures, names, strict=True))


def _show(found: Imported, bundle: Bundle) -> None:
    console = Console()
    facts = Table(
        title=escape(f"{bundle.path}: {len(bundle.classes):,} classes"),
        title_justify="left",
        show_header=False,
    )
    for name, fact in found.facts.items():
        facts.add_row(name, escape(fact))
    console.print(facts)
    pictures = Table("picture", "best class")
    for name, best in list(_best(found, bundle).items())[:SHOWN]:
        pictures.add_row(escape(name), escape(best))
    console.print(pictures)
    typer.echo(f"{found.agreed}; next: florilege calibrate {bundle.path} --data DATA --split val")
