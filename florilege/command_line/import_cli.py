"""``florilege import``."""

from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from florilege.data.layouts.table_files import read_classes
from florilege.data.records import SPLITS, split_name
from florilege.errors import UsageError, install_hint
from florilege.models.bundle import CALIBRATION, Bundle, reserved
from florilege.models.classes import ClassTable
from florilege.models.imported.imported_model import (
    NO_SPLIT,
    ImportedModel,
    import_onnx,
    write_imported,
)
from florilege.models.imported.signature import Description, read_description
from florilege.models.reference_pictures import pack_thumbnails, read_thumbnails
from florilege.terminal import Console, LineTable, print_json, say

app = typer.Typer(add_completion=False, help="Make a bundle from a network trained elsewhere.")

MOST_PICTURES: Final = 10  # rows of the printed table of best classes


@app.command("import")
def _import_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="ONNX file; or a torchvision or timm network: NAME, timm:NAME, "
            "timm:hf-hub:ORG/MODEL, timm:local-dir:FOLDER.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="BUNDLE", help="Bundle to write.")],
    classes: Annotated[
        Path | None,
        typer.Option(
            help="Table of classes, classes.csv: row i describes output i. By default the "
            "label_names in the config.json of a timm repository or folder.",
        ),
    ] = None,
    preprocess: Annotated[
        Path | None,
        typer.Option(help="JSON file of input settings that the graph lacks; see docs/import.md."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="FILE",
            help="Checkpoint of the network, .safetensors or .pt; by default its pretrained "
            "weights, downloaded once.",
        ),
    ] = None,
    chosen_on: Annotated[
        str | None,
        typer.Option(
            "--chosen-on",
            metavar="SPLIT",
            help="Split that this checkpoint was chosen on: val, test, or none. Without it, no "
            "calibration has a guarantee.",
        ),
    ] = None,
    photos: Annotated[
        list[Path] | None,
        typer.Option(
            "--photos",
            metavar="PATH",
            help="Photos, or a folder of them, for comparing the bundle with the original; may be "
            "repeated. The default is made-up pictures.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Turn a classifier trained elsewhere into a bundle, checked against the original.

    An ONNX file needs no torch; a torchvision or timm checkpoint needs the extra `train`. Run
    `florilege calibrate` next.
    """
    replaces_calibration = (out / CALIBRATION).is_file()
    table, thumbnails = _read_classes(model, classes)
    description = read_description(preprocess)
    split = chosen_on
    if chosen_on is not None:
        split = NO_SPLIT if chosen_on.strip().lower() == NO_SPLIT else split_name(chosen_on)
        if split is None:
            names = f"{', '.join(SPLITS)} or {NO_SPLIT}"
            raise UsageError(f"--chosen-on takes {names}, got {chosen_on!r}")
    say(f"{model}: opening it and comparing the bundle with it")
    with reserved(out):
        imported = _import(model, weights, description, len(table), photos or [])
        bundle = write_imported(imported, table, thumbnails, out, chosen_on=split)
    if replaces_calibration:
        say(f"{out}: its calibration was removed: calibrate again")
    if split is None:
        say(
            "the split that this checkpoint was chosen on is unknown, so no calibration has a "
            "guarantee: import it with --chosen-on SPLIT, or --chosen-on none"
        )
    if as_json:
        result = {
            "bundle": str(bundle.path),
            "bundle_sha256": bundle.sha256,
            "classes": len(bundle.classes),
            "imported_from": dict(imported.files),
            "facts": dict(imported.facts),
            "agreement": asdict(imported.agreement),
            "best": _best_classes(imported, bundle),
        }
        print_json(result)
    else:
        _print_tables(imported, bundle)


def _read_classes(model: str, path: Path | None) -> tuple[ClassTable, bytes]:
    """The classes of the table, or those that the model names, and their ``thumbnails.zip``."""
    if path is None:
        return _checkpoints(model).own_classes(model), b""
    class_file = read_classes(path)
    table = ClassTable(tuple(class_file.classes.values()))
    pictures = read_thumbnails(str(path), class_file.thumbnails)
    return table, pack_thumbnails(table, pictures) if pictures else b""


def _is_onnx(model: str) -> bool:
    return Path(model).is_file() or Path(model).suffix == ".onnx"


def _checkpoints(model: str) -> ModuleType:
    """The module that needs torch."""
    if _is_onnx(model):
        raise UsageError(f"{model} does not name its classes: add --classes, row i for output i")
    try:
        from florilege.models.imported import torch_checkpoint
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{model} is not an ONNX file; a checkpoint of a network needs {error.name}: "
            f"{install_hint('train')}"
        ) from error
    return torch_checkpoint


def _import(
    model: str, weights: str | None, description: Description, classes: int, photos: list[Path]
) -> ImportedModel:
    if _is_onnx(model):
        if weights is not None:
            raise UsageError(f"{model} contains its weights: leave out --weights {weights}")
        return import_onnx(Path(model), description, classes=classes, photos=photos)
    imported: ImportedModel = _checkpoints(model).import_checkpoint(
        model, weights, description, classes=classes, photos=photos
    )
    return imported


def _best_classes(imported: ImportedModel, bundle: Bundle) -> dict[str, str]:
    """The name of the best class of each compared picture."""
    best = imported.logits.argmax(axis=1)
    names = [bundle.classes[int(index)].scientific_name for index in best]
    return dict(zip(imported.pictures, names, strict=True))


def _print_tables(imported: ImportedModel, bundle: Bundle) -> None:
    console = Console()
    title = escape(f"{bundle.path}: {len(bundle.classes):,} classes")
    facts = Table(title=title, title_justify="left", show_header=False)
    for name, fact in imported.facts.items():
        facts.add_row(name, escape(fact))
    console.print(facts)
    pictures = LineTable("picture", "best class")
    for name, best in list(_best_classes(imported, bundle).items())[:MOST_PICTURES]:
        pictures.add_row(escape(name), escape(best))
    console.print(pictures)
    command = f"florilege calibrate {bundle.path} --data DATA --split val"
    typer.echo(f"{imported.agreement_text}; next: {command}")
