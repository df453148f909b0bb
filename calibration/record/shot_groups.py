"""Set sizes and hit rates for species with few, a medium number and many training images."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.intervals import effective_rows, mean_interval, wilson
from florilege.calibration.metrics import shot_groups
from florilege.calibration.validation import as_counts, as_labels


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
    sizes: ArrayLike,
    hits: ArrayLike,
    labels: ArrayLike,
    class_counts: ArrayLike,
    *,
    largest: int | None = None,
    plants: ArrayLike | None = None,
) -> tuple[ShotGroup, ...]:
    """Measure the groups ``few``, ``medium`` and ``many``, without those that have no photo.

    ``sizes``, ``hits``, ``labels`` and ``plants`` have the shape ``(rows,)``, ``class_counts``, the
    training images per class, ``(classes,)``. A set can hold ``largest`` classes, by default all.

    Raises:
        ValueError: The shapes differ.
    """
    counts = as_counts(class_counts)
    truth = as_labels(labels, rows=np.size(labels), classes=counts.size)
    size, hit = np.asarray(sizes, dtype=np.float64), np.asarray(hits)
    if not size.shape == hit.shape == truth.shape or hit.dtype != np.bool_:
        raise ValueError(
            f"sizes, hits (bool) and labels must have the same shape (rows,), got {size.shape}, "
            f"{hit.shape} {hit.dtype} and {truth.shape}"
        )
    groups, most = list[ShotGroup](), largest or counts.size
    for name, classes in shot_groups(counts).items():
        rows = np.flatnonzero(classes[truth])
        if not rows.size:
            continue
        clusters = None if plants is None else np.asarray(plants)[rows]
        mean, deviation, hit_count = size[rows].mean(), size[rows].std(), int(hit[rows].sum())
        size_rows, hit_rows = (effective_rows(each[rows], clusters) for each in (size, hit))
        size_ci95 = mean_interval(float(mean), float(deviation), size_rows, lowest=0, highest=most)
        groups.append(
            ShotGroup(
                name=name,
                classes=np.unique(truth[rows]).size,
                rows=rows.size,
                mean_size=float(mean),
                size_ci95=size_ci95,
                hit_rate=hit_count / rows.size,
                hit_ci95=wilson(hit_count, rows.size, effective=hit_rows),
            )
        )
    return tuple(groups)
