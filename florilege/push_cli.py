"""``florilege push``."""

from pathlib import Path
from typing import Annotated

import typer

from florilege.models.bundle.hub import push_bundle
from florilege.terminal import conclude

app = typer.Typer(add_completion=False, help="Upload a bundle to the Hugging Face Hub.")


@app.command("push")
def _push_command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.")],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Repository on the Hub.")],
    public: Annotated[
        bool, typer.Option("--public", help="Let everybody see a new repository.")
    ] = False,
    licence: Annotated[
        str | None, typer.Option("--license", help="Identifier of the licence, such as cc-by-4.0.")
    ] = None,
) -> None:
    """Upload a bundle to the Hugging Face Hub, with a model card; the repository is made.

    The account is that of `hf auth login` or HF_TOKEN. The files name the paths of your data.
    """
    typer.echo(push_bundle(bundle, repository, public=public, licence=licence))
    conclude(then=[("serve", f"hf://{repository}")])
