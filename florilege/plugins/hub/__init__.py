"""``hf://ORG/NAME`` wherever a bundle is named, and ``florilege push``: the Hugging Face Hub."""

from collections.abc import Mapping
from pathlib import Path

from florilege.hooks import Command, hookimpl


@hookimpl
def commands() -> Mapping[str, Command]:
    """``florilege push``, which is also a verb of ``florilege bundle``."""
    push = Command(
        module="florilege.plugins.hub.hub", about="Upload a bundle to the Hugging Face Hub."
    )
    return {"push": push, "bundle push": push}


@hookimpl
def local_bundle(address: str) -> Path | None:
    """The folder of a bundle on the Hub, fetched into the Hub's own cache."""
    if not address.startswith("hf:"):
        return None
    from florilege.plugins.hub import hub

    return hub.local_bundle(address)
