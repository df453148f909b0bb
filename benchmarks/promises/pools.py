"""Invented photos whose truth is known: a pool of plants that is all photos there are.

A calibration draws plants of the pool with replacement. So its plants are independent draws, and
the coverage or the mean size of a threshold on new photos is exactly that on the whole pool.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.view import Scoring, View
from florilege.models.regions import ALL_MONTHS, Occurrences, Place

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
REGIONS = 12
RECORDS = 40_000
ELSEWHERE = 0.3  # share of sightings that are not as the records say
LONGEST = 64  # photos of the most photographed plant


class Sample(NamedTuple):
    """Photos that somebody took: rows of the pool and their plants, both ``(photos,)``."""

    rows: Ints
    plants: Ints


@dataclass(frozen=True, kw_only=True)
class Pool:
    """All photos there are, as many of each plant, as some networks see them.

    Attributes:
        logits: By network, ``(photos, species)``; the photos of a plant are consecutive.
        labels: The species of each photo, ``(photos,)``.
        counts: Training images of each species, ``(species,)``.
        genera: The genus of each species.
        a_plant: Photos of each plant.
        occurrences: Where each species was recorded, and ``regions`` and ``months``, where and when
            the photos of each plant were taken; without ``months`` the month is unknown.
    """

    logits: Mapping[str, NDArray[np.float32]]
    labels: Ints
    counts: Ints
    genera: Ints
    a_plant: int = 1
    occurrences: Occurrences | None = None
    regions: Ints | None = None
    months: Ints | None = None
    _truths: dict[object, "Truth"] = field(default_factory=dict)

    @property
    def species(self) -> int:
        """How many species there are."""
        return self.counts.size

    @cached_property
    def prior(self) -> Floats:
        """Share of each species among the training images."""
        shares: Floats = self.counts / self.counts.sum()
        return shares

    @cached_property
    def right(self) -> dict[str, NDArray[np.bool_]]:
        """Whether the best guess of each network is the true species, ``(photos,)``."""
        return {name: of.argmax(axis=1) == self.labels for name, of in self.logits.items()}

    def draw(self, random: np.random.Generator, photos: int, *, equal: bool = True) -> Sample:
        """Draw plants with so many photos in all; ``equal`` ones, or 1 to 64 photos of each."""
        plants = self.labels.size // self.a_plant
        if equal:
            sizes = np.full(-(-photos // self.a_plant), self.a_plant)
        else:
            shares = 1.0 / np.arange(1, LONGEST + 1) ** 2
            sizes = random.choice(LONGEST, photos, p=shares / shares.sum()) + 1
        sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), photos)) + 1]
        numbers = np.repeat(np.arange(sizes.size), sizes)[:photos]
        of_pool, first = random.integers(plants, size=(2, sizes.size))
        turn = np.arange(photos) - np.searchsorted(numbers, numbers)
        place = (first[numbers] + turn) % self.a_plant
        return Sample(of_pool[numbers] * self.a_plant + place, numbers)

    def place(self, row: int) -> Place | None:
        """Where a photo was taken."""
        if self.regions is None:
            return None
        plant = row // self.a_plant
        month = ALL_MONTHS if self.months is None else int(self.months[plant])
        return Place(f"r{self.regions[plant]:02}", month)

    def truth(
        self, view: View, scoring: Scoring, weights: Floats | None, strength: float
    ) -> "Truth":
        """The figures of thresholds on all requests of a view; those made before are kept."""
        key = (view, scoring, strength, None if weights is None else weights.tobytes())
        if key not in self._truths:
            self._truths[key] = self._truth(view, scoring, weights, strength)
        return self._truths[key]

    def _truth(
        self, view: View, scoring: Scoring, weights: Floats | None, strength: float
    ) -> "Truth":
        groups = self._requests(view.photos)
        labels, lift, classes = self.labels[groups[:, 0]], None, None
        logits = self.logits[scoring.head][groups.reshape(-1)].reshape(*groups.shape, -1)
        if view.list is not None:
            classes = np.flatnonzero(LISTED(np.arange(self.species)))
            among = np.isin(labels, classes)
            groups, logits = groups[among], logits[among]
            labels = np.searchsorted(classes, labels[among])
        if view.place is not None:
            assert self.occurrences is not None
            where = [self.place(row) for row in groups[:, 0].tolist()]
            if view.place == "region":
                where = [place and Place(place.region) for place in where]
            lifts = {place: self.occurrences.log_lift(place) for place in {*where} if place}
            lift = strength * np.stack([lifts[place] for place in where if place])
        scores = scoring.scores(logits, lift=lift, classes=classes, prior=self.prior)
        return Truth(scores if weights is None else scores * weights, labels)

    def _requests(self, photos: int) -> Ints:
        """Rows of every request with so many photos of one plant."""
        firsts = np.arange(0, self.labels.size, self.a_plant)[:, np.newaxis]
        inside = np.array(list(combinations(range(self.a_plant), photos)))
        requests: Ints = (firsts[:, np.newaxis] + inside).reshape(-1, photos)
        return requests


def LISTED(species: Ints) -> NDArray[np.bool_]:  # noqa: N802
    """Whether a species is on the list: every second one."""
    listed: NDArray[np.bool_] = species % 2 == 0
    return listed


class Truth:
    """Coverage and size of every threshold on all requests, where each set has its best class."""

    def __init__(self, scores: Floats, labels: Ints) -> None:
        self.rest, rows = scores.copy(), np.arange(len(labels))
        best = scores.argmax(axis=1)
        self.rest[rows, best] = -np.inf
        self.true = np.where(best == labels, np.inf, scores[rows, labels])
        self.ordered, self.labels = np.sort(self.true), labels
        self.sizes = dict[int | None, Floats]()

    def coverage(self, lambda_val: float, classes: NDArray[np.bool_] | None = None) -> float:
        """Share of sets with the true class, of all photos or those of some classes."""
        if classes is not None:
            return float((self.true[classes[self.labels]] >= lambda_val).mean())
        return 1 - float(np.searchsorted(self.ordered, lambda_val)) / self.ordered.size

    def coverage_by_class(self, thresholds: Floats) -> tuple[float, Floats]:
        """The same for a threshold of each class, over all photos and for each class."""
        hits = self.true >= thresholds[self.labels]
        with np.errstate(invalid="ignore"):
            by_class = np.bincount(self.labels, hits) / np.bincount(self.labels)
        return float(hits.mean()), by_class

    def size(self, lambda_val: float, max_size: int | None = None) -> float:
        """Mean size of sets that keep at most their ``max_size`` best classes."""
        if max_size not in self.sizes:
            values = self.rest
            if max_size is not None and max_size <= values.shape[1]:
                values = -np.partition(-values, max_size - 2, axis=1)[:, : max_size - 1]
            self.sizes[max_size] = np.sort(values.reshape(-1))
        ordered = self.sizes[max_size]
        return 1 + (ordered.size - float(np.searchsorted(ordered, lambda_val))) / len(self.rest)

    def coverage_at(self, size: int, lambda_val: float) -> float:
        """Share of the sets of this size that hold the true class."""
        at = (self.rest >= lambda_val).sum(axis=1) == size - 1
        return float((self.true[at] >= lambda_val).mean()) if at.any() else np.nan


def invented(
    *,
    photos: int = 32_000,
    a_plant: int = 1,
    species: int = 12,
    dimensions: int = 4,
    spread: float = 0.8,
    alike: float = 0.6,
    networks: int = 1,
    error: float = 0.0,
    step: float = 0.0,
    places: bool = False,
) -> Pool:
    """Species with a long tail as Gaussians about centres that come in genera of four.

    Args:
        alike: Correlation of the photos of one plant.
        spread: How far genera lie apart.
        networks: How many networks there are: ``linear``, ``linear1``, ...
        error: How far each network misplaces a photo, which makes it too sure.
        step: Scores are multiples of this, so that many are equal; 0 for no steps.
        places: Whether photos have regions, and each region species of its own.
    """
    random, plants = np.random.default_rng(species + a_plant), photos // a_plant
    genera = np.arange(species) // 4
    means = random.normal(0, spread, (genera[-1] + 1, dimensions))[genera]
    order = random.permutation(species)
    means, genera = (means + random.normal(0, 0.8, means.shape))[order], genera[order]
    prior = 1 / np.arange(1, species + 1)
    prior /= prior.sum()
    regions = occurrences = None
    labels = random.choice(species, plants, p=prior)
    if places:
        labels, regions, occurrences = regional(random, plants, prior)
    labels = np.repeat(labels, a_plant)
    own = np.repeat(random.normal(size=(plants, dimensions)), a_plant, axis=0)
    points = means[labels] + np.sqrt(1 - alike) * random.normal(size=(labels.size, dimensions))
    points += np.sqrt(alike) * own
    logits = dict[str, NDArray[np.float32]]()
    for network in range(networks):
        view = points + error * random.normal(size=points.shape)
        values = view @ means.T - (means**2).sum(axis=1) / 2 + np.log(prior)
        if step:
            scores = np.exp(values - np.logaddexp.reduce(values, axis=1, keepdims=True))
            values = np.log(np.maximum(np.round(scores / step), 0.01))
        logits[f"linear{network or ''}"] = values.astype(np.float32)
    return Pool(
        logits=logits,
        labels=labels,
        counts=np.maximum(np.round(prior * 2000), 1).astype(np.int64),
        genera=genera,
        a_plant=a_plant,
        occurrences=occurrences,
        regions=regions,
    )


def regional(
    random: np.random.Generator, plants: int, prior: Floats
) -> tuple[Ints, Ints, Occurrences]:
    """Species and region of each plant, and records that are not quite as these."""
    shares, other = random.dirichlet(4 * prior + 0.02, (2, REGIONS))
    there = (1 - ELSEWHERE) * shares + ELSEWHERE * other
    regions = random.integers(REGIONS, size=plants)
    labels = np.empty(plants, dtype=np.int64)
    for region in range(REGIONS):
        here = regions == region
        labels[here] = random.choice(prior.size, int(here.sum()), p=there[region])
    counts = [random.multinomial(RECORDS // REGIONS, share) for share in shares]
    entries = [
        (f"r{region:02}", 0, species, float(count))
        for region, of_region in enumerate(counts)
        for species, count in enumerate(of_region.tolist())
        if count
    ]
    return labels, regions, Occurrences.of(*zip(*entries, strict=True), classes=prior.size)
