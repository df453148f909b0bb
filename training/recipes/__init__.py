"""Named starting points, chosen with ``--recipe``: ours, and one for each row of three papers.

Flags and files override single settings. ``docs/recipes.md`` lists them with the published
figures and every way in which a recipe departs from its paper.
"""

from collections.abc import Mapping
from typing import Final

from florilege.training.recipes.recipe import PublishedFigure, Recipe
from florilege.training.recipes.recipe_table import read_recipes

RECIPES: Final[Mapping[str, Recipe]] = read_recipes()

__all__ = ["RECIPES", "PublishedFigure", "Recipe"]
