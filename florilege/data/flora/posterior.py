"""The species of the flora, the exact P(species | picture), and the best hit rate of any sets.

The traits, frequency and names of each species are in ``species.csv``; every plant and every name
is invented. A pair of petal form and leaf form identifies a genus. The first species of a genus is
its type; each other one differs from it in exactly one of flower colour, leaf pattern and fruit
colour, which its epithet names. A family shares a petal form.

A picture shows its observed traits clearly, and everything else in it is independent of the
species. So P(species | picture) = P(species | observed traits), which follows from Bayes' rule on
a small table. The observed traits have only 2,646 combinations; summing over them gives the
optimum exactly, without drawing anything.
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


VISIBLE = (0.70, 0.65, 0.40)  # P(flower), P(leaf), P(fruit) in the picture, whatever the species
MISREAD = 0.10  # P(a visible colour or pattern is not that of the species), independently
HIDDEN = -1

Observed = NDArray[np.int64]  # (rows, 5), columns as TRAITS, HIDDEN if the organ is missing


def posterior_of(observed: Observed) -> NDArray[np.float64]:
    """P(species | observed traits), shape ``(rows, species)``; each row sums to 1.

    ``observed`` has shape ``(rows, 5)``: indices of the values of `TRAITS` in this order,
    -1 for a hidden organ. Raises `ValueError` if the shape is wrong, an organ is half hidden, or no
    species can show the traits.
    """
    joint = _joint(_checked(observed))
    total = joint.sum(axis=1, keepdims=True)
    if not np.all(total > 0):
        row = int(np.argmin(total))
        raise ValueError(f"no species shows row {row} of observed, {observed[row].tolist()}")
    return joint / total  # type: ignore[no-any-return]  # numpy types the quotient loosely


def expected_hit_rate(sets: NDArray[np.bool_], posterior: NDArray[np.float64]) -> float:
    """Probability that the true species is in the set, averaged over the rows.

    Unlike the share of hits among drawn labels, it has no sampling noise. ``sets`` is bool,
    ``posterior`` is `posterior_of` the same pictures, both of shape ``(rows, species)``. Raises
    `ValueError` if the shapes differ or there is no row.
    """
    if sets.shape != posterior.shape or not len(sets):
        raise ValueError(
            "sets and posterior must have the same shape and at least one row, got "
            f"{sets.shape} and {posterior.shape}"
        )
    return float(np.where(sets, posterior, 0.0).sum() / len(sets))


def bayes_top_k_accuracy(k: int) -> float:
    """The best hit rate of any rule with exactly ``k`` species per picture, 1 to 85."""
    if not 1 <= k <= SPECIES:
        raise ValueError(f"k must be in [1, {SPECIES}], got {k}")
    joint = _patterns()
    return float(np.partition(joint, SPECIES - k, axis=1)[:, SPECIES - k :].sum())


def bayes_average_k_accuracy(k: float) -> float:
    """The best hit rate of any rule with ``k`` species per picture on average, 0 to 85.

    Species enter in the order of their posterior; ties at the cut are broken at random.
    """
    sizes, hits, _ = _frontier(k)
    # Between two steps a species is in a share of the sets: what breaking a tie at random does.
    return float(np.interp(k, sizes, hits))


def bayes_threshold(k: float) -> float:
    """The posterior above which a species enters the best sets of ``k`` species on average."""
    sizes, _, posterior = _frontier(k)
    return float(posterior[min(int(np.searchsorted(sizes, k)), len(posterior) - 1)])


@cache
def _patterns() -> NDArray[np.float64]:
    """P(pattern and species) for all combinations of traits that a picture can show; sums to 1."""
    axes = np.meshgrid(*(range(HIDDEN, len(names)) for names in TRAITS.values()), indexing="ij")
    rows = np.stack(axes, axis=-1).reshape(-1, len(TRAITS))
    joint = _joint(rows[~_half_hidden(rows)])
    possible: NDArray[np.float64] = joint[joint.sum(axis=1) > 0]  # (patterns, species)
    return possible


def _frontier(k: float) -> tuple[NDArray[np.float64], ...]:
    if not 0 <= k <= SPECIES:
        raise ValueError(f"k must be in [0, {SPECIES}], got {k}")
    return _all_frontier()


@cache
def _all_frontier() -> tuple[NDArray[np.float64], ...]:
    """Mean size, hit rate and last posterior as species enter one by one."""
    joint = _patterns()
    weight = joint.sum(axis=1, keepdims=True)  # P(pattern)
    posterior = joint / weight
    order = np.argsort(-posterior, axis=None, kind="stable")
    sizes = np.cumsum(np.broadcast_to(weight, joint.shape).reshape(-1)[order])
    hits = np.cumsum(joint.reshape(-1)[order])
    return np.append(0.0, sizes), np.append(0.0, hits), np.append(1.0, posterior.ravel()[order])


def _joint(observed: Observed) -> NDArray[np.float64]:
    """P(observed and species), shape ``(rows, species)``."""
    traits = species_traits()
    petal, flower, leaf_form, leaf, fruit = (column[:, None] for column in observed.T)
    flower_match = (petal == traits["petal_form"]) * _reading("flower", flower)
    leaf_match = (leaf_form == traits["leaf_form"]) * _reading("leaf", leaf)
    fruit_match = _reading("fruit", fruit)
    joint = np.tile(prior(), (len(observed), 1))
    for match, column, visible in zip(
        (flower_match, leaf_match, fruit_match), (flower, leaf, fruit), VISIBLE, strict=True
    ):
        joint *= np.where(column == HIDDEN, 1 - visible, visible * match)
    return joint


def _reading(trait: str, value: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(observed value | true value) for a visible organ."""
    true = species_traits()[trait]
    return np.where(value == true, 1 - MISREAD, MISREAD / (len(TRAITS[trait]) - 1))


def _checked(observed: Observed) -> Observed:
    observed = np.asarray(observed)
    if observed.ndim != 2 or observed.shape[1] != len(TRAITS):
        raise ValueError(f"observed must have shape (rows, {len(TRAITS)}), got {observed.shape}")
    limits = [len(names) - 1 for names in TRAITS.values()]
    if np.any(observed < HIDDEN) or np.any(observed > limits):
        raise ValueError(f"observed traits must be in [-1, {limits}]")
    if _half_hidden(observed).any():
        raise ValueError("form and colour of a flower or leaf must be hidden together")
    return observed


def _half_hidden(observed: Observed) -> NDArray[np.bool_]:
    """Rows where only one of the form and colour of a flower or leaf is hidden."""
    hidden = observed == HIDDEN
    half: NDArray[np.bool_] = np.any(hidden[:, [0, 2]] != hidden[:, [1, 3]], axis=1)
    return half
