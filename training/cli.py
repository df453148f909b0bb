"""``florilege train`` and ``florilege export``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from models.bundle.bundle import CALIBRATION
from training.export import export_run
from training.run_folder import RunFolder
from training.settings import resolve
from training.train import train_run

app = typer.Typer(no_args_is_help=True, help="Train a network and export it as a bundle.")


@app.command("train")
def train_command(
    out: Annotated[
        Path, typer.Option("--out", metavar="RUN", help="New run folder, or with --resume its own.")
    ],
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="ImageFolder, manifest, CIFAR-100 folder, or flora."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Named starting point of settings.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Network. [default: resnet18]")] = None,
    loss: Annotated[str | None, typer.Option(help="[default: two_head_average_k]")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting, such as loss.alpha=1.0."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="0 writes the initial weights.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pictures a step.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the input, pixels.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order, augmentation.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="To start from: imagenet, a file of weights, or a run or bundle."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file of settings; the config.yaml of a run will do."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object at the end.")] = False,
) -> None:
    """Train a network on labelled photos.

    The run folder gets the best weights by validation average-K accuracy, curves and a report.
    Ctrl-C leaves a run that --resume finishes as if nothing had happened.
    """
    flags: dict[str, Any] = {
        "data": data,
        "recipe": recipe,
        "backbone": backbone,
        "loss": loss,
        "epochs": epochs,
        "batch_size": batch_size,
        "image_size": image_size,
        "seed": seed,
        "device": device,
        "weights": weights,
    }
    folder = RunFolder(out)
    begun = resume and folder.config.is_file()
    settings = resolve(
        flags, overrides=overrides or [], config=config or (folder.config if begun else None)
    )
    result = train_run(settings, out, resume=resume)
    if as_json:
        typer.echo(json.dumps(result.to_plain()))
    elif result.accuracy is None:
        typer.echo(f"{out}: initial weights written")
    else:
        typer.echo(
            f"{out}: epoch {result.best_epoch} is best, average-{result.average_k:g} accuracy "
            f"{result.accuracy * 100:.2f} % on val; next: florilege export {out} --out BUNDLE"
        )


@app.command("export")
def export_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    out: Annotated[Path, typer.Option("--out", metavar="BUNDLE", help="Bundle to write.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Turn a run folder into a bundle: one ONNX file, checked against torch, and its papers.

    Next comes `florilege calibrate`.
    """
    calibrated = (out / CALIBRATION).is_file()
    bundle = export_run(run, out)
    if calibrated:
        typer.echo(f"{out}: the calibration that stood there is gone: calibrate again", err=True)
    parity = json.loads(bundle.read("provenance.json"))["parity"]
    if as_json:
        plain = {"bundle": str(out), "bundle_sha256": bundle.sha256, "parity": parity}
        typer.echo(json.dumps(plain))
    else:
        typer.echo(
            f"{out}: {len(bundle.classes)} classes, heads {', '.join(bundle.heads)}; torch and "
            f"ONNX Runtime differ by at most {parity['max_difference']:.2g} (allowed "
            f"{parity['tolerance']:.2g}); next: florilege calibrate {out} --data DATA --split val"
        )
