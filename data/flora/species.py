"""The species of the flora: the traits and frequency of each.

Every plant and every name here is invented. A pair of petal form and leaf form identifies a genus.
The type species of a genus has a flower colour, a leaf pattern and a fruit colour. Each other
species differs from it in exactly one of these three, which its epithet names.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

PETAL_FORMS = ("rosette", "star", "daisy", "cross", "bell", "trumpet")
LEAF_FORMS = ("ovate", "lance", "heart", "lobed", "pinnate")
FLOWER_COLOURS = ("white", "yellow", "red", "pink", "violet", "blue")
LEAF_PATTERNS = ("plain", "margined", "spotted", "red-veined")
FRUIT_COLOURS = ("red", "orange", "yellow", "black", "white")


@dataclass(frozen=True)
class Genus:
    """One genus: its forms, the traits of its type species, and how its other species differ."""

    name: str
    petal_form: str  # all species of the genus share this and the leaf form
    leaf_form: str
    flower: str
    leaf: str
    fruit: str
    variants: tuple[str, ...]  # "<organ> <value>" for each further species
    ranks: tuple[int, ...]  # frequency rank of each species among all, 1 for the most common


# For each genus: forms, type species, differences of the others, ranks.
# fmt: off
GENERA = (
    Genus("Aldovera", "bell", "lance", "blue", "plain", "yellow",
          ("fruit orange", "fruit black", "fruit white", "flower violet",
           "flower white", "leaf red-veined", "leaf spotted"),
          (41, 69, 58, 36, 67, 13, 40, 24)),
    Genus("Brevelia", "cross", "lance", "yellow", "spotted", "white",
          ("fruit red", "leaf plain", "fruit yellow",
           "flower blue", "flower white", "leaf red-veined"),
          (7, 49, 61, 52, 10, 42, 75)),
    Genus("Calverisa", "star", "heart", "red", "red-veined", "orange",
          ("fruit red", "flower white", "flower yellow",
           "flower blue", "fruit yellow", "flower pink"),
          (56, 27, 80, 35, 11, 54, 22)),
    Genus("Dorvilanthe", "rosette", "lance", "violet", "red-veined", "orange",
          ("flower pink", "fruit white", "fruit black", "fruit red", "leaf plain"),
          (79, 39, 38, 25, 9, 43)),
    Genus("Eskerina", "rosette", "lobed", "white", "spotted", "black",
          ("fruit orange", "fruit red", "flower violet", "flower pink", "fruit white"),
          (46, 60, 48, 21, 63, 6)),
    Genus("Fauvelora", "trumpet", "lobed", "red", "spotted", "orange",
          ("flower blue", "leaf red-veined", "flower pink", "leaf margined", "fruit yellow"),
          (19, 59, 53, 50, 44, 76)),
    Genus("Gramblea", "cross", "ovate", "white", "plain", "yellow",
          ("fruit white", "flower blue", "fruit black", "fruit orange", "leaf spotted"),
          (34, 71, 30, 78, 37, 23)),
    Genus("Hestrinia", "daisy", "lance", "violet", "red-veined", "white",
          ("leaf margined", "leaf spotted", "flower pink", "leaf plain"),
          (3, 66, 8, 77, 18)),
    Genus("Islanthera", "trumpet", "ovate", "yellow", "plain", "black",
          ("flower white", "leaf spotted", "flower blue", "fruit yellow"),
          (81, 70, 29, 83, 2)),
    Genus("Jorvenia", "bell", "ovate", "white", "spotted", "yellow",
          ("leaf plain", "flower blue", "leaf red-veined", "fruit red"),
          (57, 82, 85, 17, 65)),
    Genus("Kelmoria", "bell", "pinnate", "blue", "plain", "black",
          ("flower pink", "leaf margined", "fruit red", "leaf spotted"),
          (14, 1, 68, 73, 45)),
    Genus("Luthrema", "trumpet", "pinnate", "white", "plain", "orange",
          ("leaf margined", "flower blue", "fruit black"),
          (33, 51, 72, 74)),
    Genus("Mirabrena", "trumpet", "lance", "red", "margined", "yellow",
          ("flower yellow", "flower pink", "leaf plain"),
          (47, 20, 84, 15)),
    Genus("Nolvanda", "bell", "lobed", "blue", "red-veined", "black",
          ("flower violet", "flower yellow", "leaf margined"),
          (64, 28, 5, 55)),
    Genus("Ostrelma", "rosette", "heart", "red", "spotted", "orange",
          ("leaf margined", "fruit white", "flower yellow"),
          (32, 31, 16, 26)),
    Genus("Pelvaria", "cross", "heart", "blue", "margined", "yellow",
          ("fruit white", "leaf plain"),
          (4, 62, 12)),
)
# fmt: on

SPECIES = sum(len(genus.ranks) for genus in GENERA)


@dataclass(frozen=True)
class Traits:
    """The true traits of every species, as indices into the tuples of values above.

    Each array has shape ``(species,)``, int64; ``genus`` indexes ``GENERA``.
    """

    genus: NDArray[np.int64]
    petal_form: NDArray[np.int64]
    leaf_form: NDArray[np.int64]
    flower: NDArray[np.int64]
    leaf: NDArray[np.int64]
    fruit: NDArray[np.int64]


@cache
def species_traits() -> Traits:
    """The traits of all species, in class order: genus by genus, the type species first."""
    rows = []
    for index, genus in enumerate(GENERA):
        forms = PETAL_FORMS.index(genus.petal_form), LEAF_FORMS.index(genus.leaf_form)
        for variant in ("", *genus.variants):
            organ, _, value = variant.partition(" ")
            kind = {"flower": genus.flower, "leaf": genus.leaf, "fruit": genus.fruit, organ: value}
            flower, leaf = FLOWER_COLOURS.index(kind["flower"]), LEAF_PATTERNS.index(kind["leaf"])
            rows.append((index, *forms, flower, leaf, FRUIT_COLOURS.index(kind["fruit"])))
    columns = np.array(rows, dtype=np.int64).T  # (6, species)
    columns.setflags(write=False)
    return Traits(*columns)


@cache
def prior() -> NDArray[np.float64]:
    """P(species), shape ``(species,)``: Zipf's law, proportional to 1/rank, .199 to .0023."""
    ranks = np.array([rank for genus in GENERA for rank in genus.ranks], dtype=np.float64)
    weights = 1.0 / ranks
    weights /= weights.sum()
    weights.setflags(write=False)
    return weights
