"""The output of the commands, and the ``bundle`` commands; flags that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
