"""`florilege bundle`: the verbs of `calibration.commands.bundle_cli`, and ``set-thumbnails``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from florilege.calibration.commands import AsJson, BundlePath
from florilege.calibration.commands.bundle_cli import app as bundle_app
from florilege.data.layouts.class_file import read_pictures
from florilege.errors import first
from florilege.models.bundle import set_pictures
from florilege.models.reference_pictures import MOST
from florilege.terminal import conclude, say

app = typer.Typer(
    help="Inspect, verify, compare or name bundles.", no_args_is_help=True, add_completion=False
)
_pictures_app = typer.Typer()
app.add_typer(bundle_app)
app.add_typer(_pictures_app)


@_pictures_app.command()
def set_thumbnails(
    bundle: BundlePath,
    file: Annotated[Path, typer.Argument(metavar="PICTURES_CSV", help="A row for each picture.")],
    most: Annotated[int, typer.Option(min=1, max=MOST, help="Pictures of a class.")] = MOST,
    as_json: AsJson = False,
) -> None:
    """Give a bundle reference pictures, several of each class, which the page compares with.

    The file is a table with the columns class_id and path, and if known author, licence and organ;
    of a manifest, the training photos are used. Organs take turns. The first picture of a class is
    its thumbnail.
    """
    if not as_json:
        say(f"{bundle}: giving its classes the pictures of {file}")
    named = set_pictures(bundle, read_pictures(file), source=str(file), most=most)
    pictures = named.open_pictures()
    counts = {name: len(pictures.credits(name)) for name in named.classes.ids}
    without = [name for name, count in counts.items() if not count]
    content = {"bundle": str(named.path), "bundle_sha256": named.sha256, "without": without}
    total, pictured = sum(counts.values()), len(counts) - len(without)
    if as_json:
        typer.echo(json.dumps({**content, "pictures": total}, ensure_ascii=False))
        return
    typer.echo(f"{named.path}: {total:,} pictures of {pictured:,} of {len(counts):,} classes")
    if without:
        typer.echo(f"without a picture: {first(without)}")
    conclude(then=[("serve", bundle)])
