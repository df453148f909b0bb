"""The output of the commands, and the ``bundle`` commands."""

from pathlib import Path
from typing import Annotated

import typer

BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.")]
WrongLabels = Annotated[
    str | None,
    typer.Option(
        "--label-noise",
        metavar="[KIND:]RATE|REVIEW.csv",
        help="Wrong labels among these photos, as for calibrate; hit rates allow for them.",
    ),
]
OutputCache = Annotated[
    str | None,
    typer.Option(
        "--output-cache",
        metavar="FOLDER|none",
        help="Keeps what the network says of each photo, so that the next command with these "
        "photos takes seconds; by default in the user's cache folder, 8 GB at most.",
        rich_help_panel="Computing",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
