"""A recipe: settings under a name, and the data that they are for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings under a name."""

    about: str  # what it is for
    settings: Mapping[str, Any]
    data: str = ""  # the data set it is for, as its folder may be called
    options: str = ""  # of the data, such as ``noise=0.2``: added unless ``--data`` has others
    data_place: str = ""  # where to get them, such as "... is at Zenodo, DOI ..."
    cost: str = ""  # of a run, in words

    @property
    def place(self) -> str:
        """The data it is for and where to get them; empty for your own data."""
        return f"this recipe is for {self.data}: {self.data_place}" if self.data else ""

    @property
    def example(self) -> str:
        """An example of ``--data``; the options may be left out."""
        return f"{self.data}:{self.options}" if self.options else self.data


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of our own."""
    text = path.read_text("utf-8")
    content: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return content


def own_recipes() -> dict[str, Recipe]:
    """Our recipes by name, in the order of ``recipes.yaml``."""
    plain = read_yaml(Path(__file__).with_name("recipes.yaml"))
    return {name: Recipe(**{"settings": {}, **fields}) for name, fields in plain.items()}
