"""The species of the flora: the traits and frequency of each.

Every plant and every name here is invented. A pair of petal form and leaf form identifies a genus.
The type species of a genus has a flower colour, a leaf pattern and a fruit colour. Each other
species differs from it in exactly one of these three, which its epithet names.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from florilege.models.classes import ClassInfo, ClassTable

PETAL_FORMS = ("rosette", "star", "daisy", "cross", "bell", "trumpet")
LEAF_FORMS = ("ovate", "lance", "heart", "lobed", "pinnate")
FLOWER_COLOURS = ("white", "yellow", "red", "pink", "violet", "blue")
LEAF_PATTERNS = ("plain", "margined", "spotted", "red-veined")
FRUIT_COLOURS = ("red", "orange", "yellow", "black", "white")


@dataclass(frozen=True)
class _Genus:
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
    _Genus("Aldovera", "bell", "lance", "blue", "plain", "yellow",
          ("fruit orange", "fruit black", "fruit white", "flower violet",
           "flower white", "leaf red-veined", "leaf spotted"),
          (41, 69, 58, 36, 67, 13, 40, 24)),
    _Genus("Brevelia", "cross", "lance", "yellow", "spotted", "white",
          ("fruit red", "leaf plain", "fruit yellow",
           "flower blue", "flower white", "leaf red-veined"),
          (7, 49, 61, 52, 10, 42, 75)),
    _Genus("Calverisa", "star", "heart", "red", "red-veined", "orange",
          ("fruit red", "flower white", "flower yellow",
           "flower blue", "fruit yellow", "flower pink"),
          (56, 27, 80, 35, 11, 54, 22)),
    _Genus("Dorvilanthe", "rosette", "lance", "violet", "red-veined", "orange",
          ("flower pink", "fruit white", "fruit black", "fruit red", "leaf plain"),
          (79, 39, 38, 25, 9, 43)),
    _Genus("Eskerina", "rosette", "lobed", "white", "spotted", "black",
          ("fruit orange", "fruit red", "flower violet", "flower pink", "fruit white"),
          (46, 60, 48, 21, 63, 6)),
    _Genus("Fauvelora", "trumpet", "lobed", "red", "spotted", "orange",
          ("flower blue", "leaf red-veined", "flower pink", "leaf margined", "fruit yellow"),
          (19, 59, 53, 50, 44, 76)),
    _Genus("Gramblea", "cross", "ovate", "white", "plain", "yellow",
          ("fruit white", "flower blue", "fruit black", "fruit orange", "leaf spotted"),
          (34, 71, 30, 78, 37, 23)),
    _Genus("Hestrinia", "daisy", "lance", "violet", "red-veined", "white",
          ("leaf margined", "leaf spotted", "flower pink", "leaf plain"),
          (3, 66, 8, 77, 18)),
    _Genus("Islanthera", "trumpet", "ovate", "yellow", "plain", "black",
          ("flower white", "leaf spotted", "flower blue", "fruit yellow"),
          (81, 70, 29, 83, 2)),
    _Genus("Jorvenia", "bell", "ovate", "white", "spotted", "yellow",
          ("leaf plain", "flower blue", "leaf red-veined", "fruit red"),
          (57, 82, 85, 17, 65)),
    _Genus("Kelmoria", "bell", "pinnate", "blue", "plain", "black",
          ("flower pink", "leaf margined", "fruit red", "leaf spotted"),
          (14, 1, 68, 73, 45)),
    _Genus("Luthrema", "trumpet", "pinnate", "white", "plain", "orange",
          ("leaf margined", "flower blue", "fruit black"),
          (33, 51, 72, 74)),
    _Genus("Mirabrena", "trumpet", "lance", "red", "margined", "yellow",
          ("flower yellow", "flower pink", "leaf plain"),
          (47, 20, 84, 15)),
    _Genus("Nolvanda", "bell", "lobed", "blue", "red-veined", "black",
          ("flower violet", "flower yellow", "leaf margined"),
          (64, 28, 5, 55)),
    _Genus("Ostrelma", "rosette", "heart", "red", "spotted", "orange",
          ("leaf margined", "fruit white", "flower yellow"),
          (32, 31, 16, 26)),
    _Genus("Pelvaria", "cross", "heart", "blue", "margined", "yellow",
          ("fruit white", "leaf plain"),
          (4, 62, 12)),
)
# fmt: on

SPECIES = sum(len(genus.ranks) for genus in GENERA)


@dataclass(frozen=True)
class _Traits:
    """The true traits of every species, as indices of the values above, int64 ``(species,)``."""

    genus: NDArray[np.int64]  # index of GENERA
    petal_form: NDArray[np.int64]
    leaf_form: NDArray[np.int64]
    flower: NDArray[np.int64]
    leaf: NDArray[np.int64]
    fruit: NDArray[np.int64]


@cache
def species_traits() -> _Traits:
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
    return _Traits(*columns)


@cache
def prior() -> NDArray[np.float64]:
    """P(species), shape ``(species,)``: Zipf's law, proportional to 1/rank, .199 to .0023."""
    ranks = np.array([rank for genus in GENERA for rank in genus.ranks], dtype=np.float64)
    weights = 1.0 / ranks
    weights /= weights.sum()
    weights.setflags(write=False)
    return weights


_TYPE_SPECIES = ("prima", "common {}", "{} ordinaire")

# "<organ> <value>" -> epithet, English name, French name; {} is the genus in lower case
_DIFFERENCES = {
    "flower white": ("albiflora", "white-flowered {}", "{} à fleurs blanches"),
    "flower yellow": ("luteiflora", "yellow-flowered {}", "{} à fleurs jaunes"),
    "flower red": ("rubriflora", "red-flowered {}", "{} à fleurs rouges"),
    "flower pink": ("roseiflora", "pink-flowered {}", "{} à fleurs roses"),
    "flower violet": ("violiflora", "violet-flowered {}", "{} à fleurs violettes"),
    "flower blue": ("cyaniflora", "blue-flowered {}", "{} à fleurs bleues"),
    "leaf plain": ("viridifolia", "green-leaved {}", "{} à feuilles vertes"),
    "leaf margined": ("marginata", "cream-edged {}", "{} à feuilles bordées"),
    "leaf spotted": ("maculata", "spotted {}", "{} à feuilles tachetées"),
    "leaf red-veined": ("rubrinervis", "red-veined {}", "{} à nervures rouges"),
    "fruit red": ("rubricarpa", "red-berried {}", "{} à baies rouges"),
    "fruit orange": ("auranticarpa", "orange-berried {}", "{} à baies orange"),
    "fruit yellow": ("xanthocarpa", "yellow-berried {}", "{} à baies jaunes"),
    "fruit black": ("melanocarpa", "black-berried {}", "{} à baies noires"),
    "fruit white": ("leucocarpa", "white-berried {}", "{} à baies blanches"),
}

# One family per petal form.
FAMILIES = {
    "rosette": "Dorvilanthaceae",
    "star": "Calverisaceae",
    "daisy": "Hestriniaceae",
    "cross": "Breveliaceae",
    "bell": "Aldoveraceae",
    "trumpet": "Fauveloraceae",
}


@cache
def flora_classes() -> ClassTable:
    """The 85 species in class order, without training counts; ids such as ``aldovera-prima``."""
    return ClassTable(
        tuple(
            _species(genus, names)
            for genus in GENERA
            for names in (_TYPE_SPECIES, *(_DIFFERENCES[variant] for variant in genus.variants))
        )
    )


def _species(genus: _Genus, names: tuple[str, str, str]) -> ClassInfo:
    epithet, english, french = names
    plain = genus.name.lower()
    return ClassInfo(
        id=f"{plain}-{epithet}",
        scientific_name=f"{genus.name} {epithet}",
        genus=genus.name,
        family=FAMILIES[genus.petal_form],
        common_names={"en": (english.format(plain),), "fr": (french.format(plain),)},
    )
