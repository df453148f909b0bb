"""The papers: a recipe for each row of their tables, their data sets, and sweeps over settings."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from florilege.hooks import Command, Recipe, hookimpl

if TYPE_CHECKING:
    from florilege.data.sources import DataLayout


@hookimpl
def commands() -> Mapping[str, Command]:
    """``florilege recipes`` and ``florilege sweep``."""
    return {
        "recipes": Command(
            module="florilege.plugins.papers.published",
            about="List the recipes, including one for each row of the papers.",
        ),
        "sweep": Command(
            module="florilege.plugins.papers.cli",
            about="Train a recipe over a grid of settings and seeds, and compare.",
            if_stopped="stopped; repeat the command with --resume to continue\n",
            loads_torch=True,
        ),
    }


@hookimpl
def data_layouts() -> "Sequence[DataLayout]":
    """Pl@ntNet-300K and CIFAR-100."""
    from florilege.plugins.papers.data_sets import LAYOUTS

    return LAYOUTS


@hookimpl
def recipes() -> Mapping[str, Recipe]:
    """A recipe for each row of the tables."""
    from florilege.plugins.papers.published import PAPERS

    return PAPERS
