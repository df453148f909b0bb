"""``florilege export`` of a run or for devices, and ``florilege import`` of any network."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Final

import typer
from pydantic import Field
from rich.markup import escape

from florilege.data.layouts import read_classes
from florilege.data.records import SPLITS, split_name
from florilege.errors import UsageError, install_hint, suggestion
from florilege.hooks import MARKER, export_targets
from florilege.models.bundle import CALIBRATION, MANIFEST, reserved
from florilege.models.classes import ClassTable
from florilege.models.reference_pictures import pack_thumbnails, read_thumbnails
from florilege.settings import Flag, FlagSettings, flags_of
from florilege.terminal import Titled, new_table, say, show

if TYPE_CHECKING:
    from florilege.models.imported import ImportedModel
    from florilege.models.imported.signature import Description

app = typer.Typer(add_completion=False)
_TARGETS: Final = export_targets()
_NAMES: Final = ("bundle", *_TARGETS)


class _ExportSettings(FlagSettings):
    """What ``florilege export`` reads, writes and shows."""

    source: Annotated[Path, Flag(argument=True, metavar="RUN|BUNDLE")]
    """Run folder; for other targets a bundle."""
    out: Annotated[Path, Flag(metavar="FOLDER")]
    """Bundle or folder to write."""
    target: Annotated[str, Flag(metavar="|".join(_NAMES))] = Field(
        default="bundle",
        description=f"{'; '.join(['bundle', *(f'{k}: {v.about}' for k, v in _TARGETS.items())])}.",
    )
    runtime: Annotated[Path | None, Flag(metavar="FILE")] = None
    """For web: the npm package onnxruntime-web, as .tgz."""
    data: Annotated[str | None, Flag(metavar="DATA")] = None
    """For web and mobile: photos to calibrate 16-bit weights on; without them, weights keep 32 bits
    and the network is twice as large."""
    split: str = "val"
    """Split of these photos."""
    as_json: Annotated[bool, Flag(name="--json")] = False
    """One JSON object."""


@app.command("export")
@flags_of(_ExportSettings)
def _export_command(settings: _ExportSettings) -> None:
    """Export a run folder to a bundle, or a bundle to a folder for devices without a server.

    After a bundle, the next step is `florilege calibrate`.
    """
    out, target, as_json = settings.out, settings.target, settings.as_json
    if target == "bundle":
        _export_run(settings.source, out, as_json=as_json)
        return
    if target not in _TARGETS:
        near = suggestion(target, _NAMES)
        raise UsageError(f"--target: choose one of {', '.join(_NAMES)}, got {target!r}{near}")
    contents, sizes = _TARGETS[target].export(
        settings.source, settings.runtime, settings.data, settings.split
    )
    _write_folder(out, contents)
    megabytes = ", ".join(f"{name[:-6]} {size / 1e6:.1f} MB" for name, size in sizes.items())
    line = f"{out}: {len(contents)} files; a device fetches {megabytes}"
    show({"folder": str(out), "target": target, **sizes}, [line], as_json=as_json)


def _write_folder(out: Path, contents: Mapping[str, bytes]) -> None:
    """Write files, by relative path, to a new folder or in place of an earlier export: all or none.

    Raises:
        UsageError: ``out`` holds something else.
    """
    if out.exists() and not (out / MARKER).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is no earlier export: choose another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as name:
        new, old = Path(name) / "new", Path(name) / "old"
        for path, content in contents.items():
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            (new / path).write_bytes(content)
        if out.exists():
            out.rename(old)
        new.rename(out)


def _export_run(run: Path, out: Path, *, as_json: bool) -> None:
    if (run / MANIFEST).exists():
        raise UsageError(f"{run} is a bundle: choose what to make from it, --target web or mobile")
    # Here, because they need torch, and other targets do without.
    from florilege.training.configuration import RunFolder
    from florilege.training.run_export import export_run

    calibrated = (out / CALIBRATION).is_file()
    say(f"{run}: exporting its network and comparing it with the trained one")
    bundle = export_run(run, out)
    if calibrated:
        say(f"{out}: its calibration was removed: calibrate again")
    provenance = bundle.read_object("provenance.json")
    parity = provenance["parity"]
    line = (
        f"{out}: {len(bundle.classes)} classes; the exported network gives the scores of the "
        f"trained one, within {parity['max_difference']:.2g} (allowed {parity['tolerance']:.2g})"
    )
    skip = ["--skip-damaged"] if RunFolder(run).read_config().skip_damaged else []
    show(
        {"bundle": str(out), "bundle_sha256": bundle.sha256, "parity": parity},
        [line],
        as_json=as_json,
        then=[("calibrate", out, "--data", provenance["data"], *skip)],
    )


MOST_PICTURES: Final = 10  # rows of the printed table of best classes


class _ImportSettings(FlagSettings):
    """What ``florilege import`` reads, writes and shows."""

    model: Annotated[str, Flag(argument=True, metavar="MODEL")]
    """ONNX file; or a torchvision or timm network: NAME, timm:NAME, timm:hf-hub:ORG/MODEL,
    timm:local-dir:FOLDER."""
    out: Annotated[Path, Flag(metavar="BUNDLE")]
    """Bundle to write."""
    classes: Path | None = None
    """Table of classes, classes.csv: row i describes output i. By default the label_names in the
    config.json of a timm repository or folder."""
    preprocess: Path | None = None
    """JSON file of input settings that the graph lacks; see docs/import.md."""
    weights: Annotated[str | None, Flag(metavar="FILE")] = None
    """Checkpoint of the network, .safetensors or .pt; by default its pretrained weights, downloaded
    once."""
    chosen_on: Annotated[str | None, Flag(metavar="SPLIT")] = None
    """Split that this checkpoint was chosen on: val, test, or none. Without it, no calibration has
    a guarantee."""
    photos: Annotated[tuple[Path, ...], Flag(type=list[Path] | None, metavar="PATH")] = ()
    """Photos, or a folder of them, for comparing the bundle with the original; may be repeated. The
    default is made-up pictures."""
    as_json: Annotated[bool, Flag(name="--json")] = False
    """Print one JSON object."""

    @property
    def split(self) -> str | None:
        """The split of ``chosen_on`` by its usual name; None where unknown."""
        from florilege.models.imported import NO_SPLIT

        if self.chosen_on is None or self.chosen_on.strip().lower() == NO_SPLIT:
            return self.chosen_on and NO_SPLIT
        if (name := split_name(self.chosen_on)) is None:
            names = f"{', '.join(SPLITS)} or {NO_SPLIT}"
            raise UsageError(f"--chosen-on takes {names}, got {self.chosen_on!r}")
        return name


@app.command("import")
@flags_of(_ImportSettings)
def _import_command(settings: _ImportSettings) -> None:
    """Turn a classifier trained elsewhere into a bundle, checked against the original.

    An ONNX file needs no torch; a torchvision or timm checkpoint needs the extra `train`. Run
    `florilege calibrate` next.
    """
    # Here, because it needs the package onnx, which an export from a bundle does without.
    from florilege.models.imported.signature import Description

    model, out, split = settings.model, settings.out, settings.split
    replaces_calibration = (out / CALIBRATION).is_file()
    table, thumbnails = _read_classes(model, settings.classes)
    say(f"{model}: opening it and comparing the bundle with it")
    with reserved(out):
        imported = _import(settings, Description.read(settings.preprocess), len(table))
        bundle = imported.write(table, thumbnails, out, chosen_on=split)
    if replaces_calibration:
        say(f"{out}: its calibration was removed: calibrate again")
    if split is None:
        say(
            "the split that this checkpoint was chosen on is unknown, so no calibration has a "
            "guarantee: import it with --chosen-on SPLIT, or --chosen-on none"
        )
    best = [bundle.classes[int(index)].scientific_name for index in imported.logits.argmax(axis=1)]
    best_classes = dict(zip(imported.pictures, best, strict=True))
    pictures = new_table(("picture", "best class"), words=("picture", "best class"))
    for row in list(best_classes.items())[:MOST_PICTURES]:
        pictures.add_row(*map(escape, row))
    facts = (f"{name}: {fact}" for name, fact in imported.facts.items())
    title = f"{bundle.path}: {len(bundle.classes):,} classes"
    content = {
        "bundle": str(bundle.path),
        "bundle_sha256": bundle.sha256,
        "classes": len(bundle.classes),
        "imported_from": dict(imported.files),
        "facts": dict(imported.facts),
        "agreement": asdict(imported.agreement),
        "best": best_classes,
    }
    parts: list[str | Titled] = [title, *facts, ("", pictures), imported.agreement_text]
    calibrate = ("calibrate", bundle.path, "--data", "DATA", "--split", "val")
    show(content, parts, as_json=settings.as_json, then=[calibrate])


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


def _import(settings: _ImportSettings, description: "Description", classes: int) -> "ImportedModel":
    from florilege.models.imported import import_onnx

    model, weights, photos = settings.model, settings.weights, settings.photos
    if _is_onnx(model):
        if weights is not None:
            raise UsageError(f"{model} contains its weights: leave out --weights {weights}")
        return import_onnx(Path(model), description, classes=classes, photos=photos)
    imported: ImportedModel = _checkpoints(model).import_checkpoint(
        model, weights, description, classes=classes, photos=photos
    )
    return imported
