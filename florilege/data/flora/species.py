"""The species of the flora: the traits, frequency and names of each, from ``species.csv``.

Every plant and every name is invented. A pair of petal form and leaf form identifies a genus. The
first species of a genus is its type; each other one differs from it in exactly one of flower
colour, leaf pattern and fruit colour, which its epithet names. A family shares a petal form.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from florilege.models.classes import ClassInfo, ClassTable
from florilege.tables import Table, read_table

SPECIES = 85
TRAITS = {  # the values of each trait that a picture can show
    "petal_form": ("rosette", "star", "daisy", "cross", "bell", "trumpet"),
    "flower": ("white", "yellow", "red", "pink", "violet", "blue"),
    "leaf_form": ("ovate", "lance", "heart", "lobed", "pinnate"),
    "leaf": ("plain", "margined", "spotted", "red-veined"),
    "fruit": ("red", "orange", "yellow", "black", "white"),
}


@cache
def _table() -> Table:
    return read_table(Path(__file__).with_name("species.csv"))


@cache
def species_traits() -> Mapping[str, NDArray[np.int64]]:
    """The number of the ``genus``, and the true traits as indices of `TRAITS`, ``(species,)`` each.

    Species are in class order: genus by genus, the type species first.
    """
    genera = [name.split()[0] for name in _table()["scientific_name"]]
    numbers = {genus: number for number, genus in enumerate(dict.fromkeys(genera))}
    traits = [[values.index(cell) for cell in _table()[name]] for name, values in TRAITS.items()]
    columns = np.array([[numbers[genus] for genus in genera], *traits], dtype=np.int64)
    columns.setflags(write=False)
    return dict(zip(("genus", *TRAITS), columns, strict=True))


@cache
def prior() -> NDArray[np.float64]:
    """P(species), shape ``(species,)``: Zipf's law, proportional to 1/rank, .199 to .0023."""
    weights = 1.0 / np.array(_table()["rank"], dtype=np.float64)
    weights /= weights.sum()
    weights.setflags(write=False)
    return weights


@cache
def flora_classes() -> ClassTable:
    """The 85 species in class order, without training counts; ids such as ``aldovera-prima``."""
    columns = ("scientific_name", "family", "common_name:en", "common_name:fr")
    return ClassTable(
        tuple(
            ClassInfo(
                id=name.lower().replace(" ", "-"),
                scientific_name=name,
                genus=name.split()[0],
                family=family,
                common_names={"en": (english,), "fr": (french,)},
            )
            for name, family, english, french in zip(
                *(_table()[column] for column in columns), strict=True
            )
        )
    )
