"""Invented names of the flora's species.

The epithet and the common names give the trait in which a species differs from the type species of
its genus: *rubriflora* has red flowers, *maculata* spotted leaves.
"""

from functools import cache

from florilege.data.flora.species import GENERA, Genus
from florilege.models.classes import ClassInfo, ClassTable

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


def _species(genus: Genus, names: tuple[str, str, str]) -> ClassInfo:
    epithet, english, french = names
    plain = genus.name.lower()
    return ClassInfo(
        id=f"{plain}-{epithet}",
        scientific_name=f"{genus.name} {epithet}",
        genus=genus.name,
        family=FAMILIES[genus.petal_form],
        common_names={"en": (english.format(plain),), "fr": (french.format(plain),)},
    )
