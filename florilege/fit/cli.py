"""``florilege fit``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from florilege.data.options import parse_options
from florilege.errors import BundleError, UsageError, did_you_mean, nearest_paths
from florilege.fit.fit_plan import FitPlan, training_words
from florilege.terminal import command, conclude, say

app = typer.Typer(add_completion=False, help="Photos to a calibrated bundle in one command.")


@app.command("fit")
def _fit_command(
    photos: Annotated[
        str,
        typer.Argument(
            metavar="PHOTOS",
            help="Folder with one folder for each species, or any data set that --data takes.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for everything that is made; by default runs/ and their name."),
    ] = None,
    ks: Annotated[
        str | None,
        typer.Option(
            "--k", metavar="K1,K2", help="Mean set sizes; by default 1,2,3,5, up to the species."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and of training.")] = 0,
    backbone: Annotated[
        str | None,
        typer.Option(help="Network; by default timm:tf_efficientnet_lite0, pretrained."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="FILE|none",
            help="File of its pretrained weights, which are downloaded otherwise; none trains a "
            "small network on these photos alone.",
        ),
    ] = None,
) -> None:
    """Do everything from photos to sets: check, split, train, export, calibrate, evaluate, report.

    The photos are split if they are not, by plant where the data say which plant they show. A
    pretrained network stays as it is and a head is trained on it: about a minute for 2,000 photos
    on two cores. Every step is one of the other commands and is printed whole. The same command
    again continues, or says what is there.
    """
    # Training reports it too, but only after every photo has been read.
    if weights not in (None, "none", "pretrained") and not Path(weights).is_file():
        near = did_you_mean(nearest_paths(Path(weights)))
        raise UsageError(f"--weights {weights}: no such file{near}")
    folder = out or _folder_of(photos)
    say(
        f"from {photos} to prediction sets in {folder}: check, train, export, calibrate, evaluate. "
        "About a minute for 2,000 photos on two cores. Ctrl-C stops; the same command continues"
    )
    started = time.monotonic()
    plan = FitPlan(
        source=photos,
        out=folder,
        ks=ks,
        seed=seed,
        training=training_words(photos, backbone, weights),
    )
    try:
        plan.carry_out()
    except BundleError:
        if weights is None and not (plan.run / "config.yaml").exists():
            _explain_weights(photos)
        raise
    say(f"{time.monotonic() - started:.0f} s; everything is in {folder}, report: {plan.report}")
    conclude(then=[("serve", folder), ("predict", folder, "PHOTO")])


def _folder_of(photos: str) -> Path:
    """The folder for what is made of a data set: ``runs/alps`` for ``data/alps`` or ``alps.csv``.

    Example:
        >>> str(_folder_of("data/alps.csv")), str(_folder_of("flora:train=100"))
        ('runs/alps', 'runs/flora')
    """
    base, _ = parse_options(photos)
    return Path("runs") / (Path(base).resolve().stem or "photos")


def _explain_weights(photos: str) -> None:
    """Say what can be done where weights could not be fetched."""
    mine, none = (command("fit", photos, "--weights", value) for value in ("FILE", "none"))
    say(
        "if the pretrained weights could not be downloaded: fetch that file where there is a "
        f"network, then {mine}. Without any, a small network learns from your photos alone, which "
        f"takes minutes and does much worse: {none}"
    )
