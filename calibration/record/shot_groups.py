"""Set sizes and hit rates for species with few, a medium number and many training images."""

from dataclasses import dataclass

import numpy as np

from florilege.calibration.intervals import effective_rows, mean_interval, wilson
from florilege.calibration.metrics import shot_groups
from florilege.calibration.validation import Bools, Ints


@dataclass(frozen=True, kw_only=True)
class ShotGroup:
    """Set size and hit rate on photos of one group of species.

    Attributes:
        name: ``few``, ``medium`` or ``many``.
        classes: Number of species in the group that have a photo.
        rows: Number of their photos.
        mean_size: Mean set size, and ``size_ci95`` its interval.
        hit_rate: Share of sets with the true species, over all photos, and ``hit_ci95`` its
            interval.
    """

    name: str
    classes: int
    rows: int
    mean_size: float
    size_ci95: tuple[float, float]
    hit_rate: float
    hit_ci95: tuple[float, float]


def measure_by_shots(
    sizes: Ints,
    hits: Bools,
    labels: Ints,
    class_counts: Ints,
    *,
    largest: int | None = None,
    plants: Ints | None = None,
) -> tuple[ShotGroup, ...]:
    """Measure the groups ``few``, ``medium`` and ``many``, without those that have no photo.

    ``sizes``, ``hits``, ``labels`` and ``plants`` have the shape ``(rows,)``, ``class_counts``, the
    training images per class, ``(classes,)``. A set can hold ``largest`` classes, by default all.
    """
    groups, most = list[ShotGroup](), largest or class_counts.size
    for name, classes in shot_groups(class_counts).items():
        rows = np.flatnonzero(classes[labels])
        if not rows.size:
            continue
        clusters = None if plants is None else plants[rows]
        mean, deviation, hit_count = sizes[rows].mean(), sizes[rows].std(), int(hits[rows].sum())
        size_rows, hit_rows = (effective_rows(each[rows], clusters) for each in (sizes, hits))
        size_ci95 = mean_interval(float(mean), float(deviation), size_rows, lowest=0, highest=most)
        groups.append(
            ShotGroup(
                name=name,
                classes=np.unique(labels[rows]).size,
                rows=rows.size,
                mean_size=float(mean),
                size_ci95=size_ci95,
                hit_rate=hit_count / rows.size,
                hit_ci95=wilson(hit_count, rows.size, effective=hit_rows),
            )
        )
    return tuple(groups)
