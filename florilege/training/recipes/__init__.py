"""Named settings, chosen with ``--recipe``: ours, and one for each row of three papers.

Flags and files override single settings. ``docs/recipes.md`` lists the recipes with the published
figures and every departure from a paper.
"""

from collections.abc import Mapping
from typing import Final

from florilege.training.recipes.recipe import PublishedFigure, Recipe, read_recipes

RECIPES: Final[Mapping[str, Recipe]] = read_recipes()

__all__ = ["RECIPES", "PublishedFigure", "Recipe"]
