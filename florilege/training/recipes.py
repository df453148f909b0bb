"""Named settings, chosen with ``--recipe``: ours, and those of plugins.

Flags and files override single settings. ``docs/recipes.md`` lists the recipes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from florilege.hooks import Recipe as Recipe
from florilege.hooks import recipes

_OURS: Final[Mapping[str, Mapping[str, Any]]] = yaml.load(
    Path(__file__).with_name("recipes.yaml").read_text("utf-8"),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)
RECIPES: Final[Mapping[str, Recipe]] = {
    **{name: Recipe(**{"settings": {}, **fields}) for name, fields in _OURS.items()},
    **recipes(),
}
