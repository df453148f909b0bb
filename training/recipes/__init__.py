"""Named starting points, chosen with ``--recipe``: ours, and one for each row of three papers.

Flags and files override single settings. ``docs/recipes.md`` lists them with the figures that were
printed and every way in which a recipe departs from print.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from florilege.training.recipes import average_k, imagenet, long_tails, noisy_labels, ours
from florilege.training.recipes.recipe import OF_LOSS, Printed, Recipe

_PUBLISHED: Final[Mapping[str, Recipe]] = {
    **average_k.recipes(),
    **noisy_labels.recipes(),
    **long_tails.recipes(),
    **imagenet.recipes(),
}
RECIPES: Final[Mapping[str, Recipe]] = {
    **ours.RECIPES,
    **{
        name: replace(each, departures=each.departures + OF_LOSS.get(each.loss, ()))
        for name, each in _PUBLISHED.items()
    },
}

__all__ = ["RECIPES", "Printed", "Recipe"]
