"""Named starting points, chosen with ``--recipe``: ours, and one for each row of three papers.

Flags and files override single settings. ``docs/recipes.md`` lists them with the figures that were
printed and every way in which a recipe departs from print.
"""

from collections.abc import Mapping
from typing import Final

from training.recipes import average_k, imagenet, long_tails, noisy_labels, ours
from training.recipes.recipe import Printed, Recipe

RECIPES: Final[Mapping[str, Recipe]] = {
    **ours.RECIPES,
    **average_k.recipes(),
    **noisy_labels.recipes(),
    **long_tails.recipes(),
    **imagenet.recipes(),
}

__all__ = ["RECIPES", "Printed", "Recipe"]
