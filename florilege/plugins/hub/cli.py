"""``florilege push``."""

from typing import Annotated

import typer

from florilege.calibration.commands import BundlePath
from florilege.plugins.hub.hub import push_bundle
from florilege.terminal import conclude, say

app = typer.Typer(add_completion=False)


@app.command()
def push(
    bundle: BundlePath,
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
    say(f"{bundle}: uploading it to {repository}")
    typer.echo(push_bundle(bundle, repository, public=public, licence=licence))
    conclude(then=[("serve", f"hf://{repository}")])
