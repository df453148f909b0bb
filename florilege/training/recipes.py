"""Named settings, chosen with ``--recipe``: ours, and those of plugins.

Flags and files override single settings. ``docs/recipes.md`` lists the recipes.
"""

from collections.abc import Mapping
from typing import Final

from florilege.hooks import recipes
from florilege.training.recipe import Recipe, own_recipes

RECIPES: Final[Mapping[str, Recipe]] = {**own_recipes(), **recipes()}

__all__ = ["RECIPES", "Recipe"]
