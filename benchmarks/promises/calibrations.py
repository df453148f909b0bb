"""Calibrations of invented photos, as the command makes them, and what becomes of each sentence."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.promises.pools import LISTED, Ints, Pool, Truth
from florilege.calibration.calibrate.fit import fit_record
from florilege.calibration.calibrate.noise_rate import noise_of_review
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.calibrate.score_sources import PhotoPlaces
from florilege.calibration.calibrate.training_photos import PhotoOverlap
from florilege.calibration.metrics import shot_groups
from florilege.calibration.photo_groups import choosing_rows
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.operating_point import OperatingPoint
from florilege.calibration.rules.label_noise import LabelNoise, NoiseKind, NoisyLabels
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.view import PLAIN, Setting, View
from florilege.models.regions import RegionList

K, LEVEL, INTERVALS = 3.0, 0.9, 0.95
EVERY_SIZE = (1.5, 2.0, 3.0, 5.0, 8.0)
OF_CLASS = (1, 12)  # by how common they are


class Sentence(NamedTuple):
    """What is said, and what is promised of the simulated mean: ``>= 0.9``; empty for nothing."""

    text: str
    promised: str = ""

    def missed_by(self, measured: float, error: float) -> float:
        """How many standard errors the measured mean lies on the wrong side of what is promised.

        An interval that holds more often than in 95 of 100 cases misses nothing. Below 0 the
        promise is kept; -inf where there is none.
        """
        if not self.promised:
            return -np.inf
        kind, _, number = self.promised.rpartition(" ")
        beyond = measured - float(number)
        if kind == ">=" or float(number) == INTERVALS:
            beyond = -beyond
        return (abs(beyond) if self.promised == "0" else beyond) / max(error, 1e-9)


GIVEN: dict[str, Any] = {"head": "linear", "score_kind": "softmax"}  # so that nothing is chosen
Figures = Iterator[tuple[Sentence, float]]


class Outputs(SplitOutputs):
    """Outputs in memory, which take a fifth of the time of files."""

    def __init__(
        self, logits: Mapping[str, NDArray[np.float32]], labels: Ints, **about: Any
    ) -> None:
        super().__init__({name: rows.shape[1] for name, rows in logits.items()}, labels, **about)
        self._logits = logits

    def _rows_of_file(self, name: str, rows: Ints) -> NDArray[np.float32]:
        return self._logits[name][rows]


class FewSizes(CalibrationPlan):
    """A plan without the fine grid of K, which would only cost time."""

    @property
    def grid(self) -> tuple[float, ...]:
        """A few K."""
        return EVERY_SIZE


@dataclass(frozen=True, kw_only=True)
class Circumstance:
    """What a calibration meets.

    Attributes:
        name: In the table.
        pool: All photos there are.
        view: The view whose thresholds are looked at.
        equal: Whether plants have as many photos each.
        epochs: Networks of the pool among which the photos chose the checkpoint.
        apart: Whether only the fifth of the plants that chooses did, as ``train`` does it.
        noise: Kind and share of wrong labels.
        reviewed: Photos of a review that gives this share; 0 where it is known.
        settings: Further settings of the calibration.
    """

    name: str
    pool: Pool
    view: View = PLAIN
    equal: bool = True
    epochs: int = 1
    apart: bool = False
    noise: tuple[NoiseKind, float] | None = None
    reviewed: int = 0
    settings: dict[str, Any] = field(
        default_factory=lambda: {"head": "linear", "score_kind": "softmax"}
    )

    @property
    def alone(self) -> bool:
        """Whether there is one photo of each plant, so that the data need not name plants."""
        return self.pool.a_plant == 1

    def calibrated(self, random: np.random.Generator, photos: int) -> CalibrationRecord:
        """A calibration on photos that are drawn anew."""
        pool, sample = self.pool, self.pool.draw(random, photos, equal=self.equal)
        labels, noise, places = pool.labels[sample.rows], None, None
        choosing = choosing_rows(None if self.alone else sample.plants, len(labels))
        heads = self._networks(sample.rows[choosing] if self.apart else sample.rows)
        chose = self.epochs > 1 and not self.apart
        if self.noise is not None:
            labels, noise = self._wrong(random, labels)
        if self.view.place is not None:
            assert pool.occurrences is not None
            there = [pool.place(row) for row in sample.rows.tolist()]
            places = PhotoPlaces.of(pool.occurrences, there, labels)
        outputs = Outputs(
            {name: pool.logits[name][sample.rows] for name in heads},
            labels,
            split="val",
            observations=None if self.alone else [str(one) for one in sample.plants.tolist()],
        )
        try:
            return fit_record(
                outputs,
                self._plan(),
                class_counts=pool.counts,
                places=places,
                noise=noise,
                choosing=choosing,
                overlap=PhotoOverlap(0, len(labels) * chose, chose, self.epochs if chose else 1),
            )
        finally:
            outputs.close()

    def _plan(self) -> FewSizes:
        """The settings."""
        listed = np.flatnonzero(LISTED(np.arange(self.pool.species))).tolist()
        half = RegionList(name="half", classes=tuple(listed))
        return FewSizes(
            classes=self.pool.species,
            ks=(K,),
            coverages=(0.9, 0.95),
            rejection_method=None,
            images=() if self.view.photos == 1 else (self.view.photos,),
            lists=(half,) if self.view.list else (),
            max_size=min(20, self.pool.species),
            **self.settings,
        )

    def _networks(self, rows: Ints) -> tuple[str, ...]:
        """The networks of the bundle: of several epochs the one that these photos like best."""
        names, pool = tuple(self.pool.logits), self.pool
        if self.epochs == 1:
            return names
        right = [pool.right[name][rows].mean() for name in names]
        return (names[int(np.argmax(right))],)

    def _wrong(self, random: np.random.Generator, labels: Ints) -> tuple[Ints, NoisyLabels]:
        """The labels with a share of wrong ones, and what is assumed of them."""
        assert self.noise is not None
        wrong, noisy = wrong_labels(random, labels, self.pool.genera, *self.noise)
        if self.reviewed:
            rows = random.choice(labels.size, self.reviewed, replace=False)
            noise = noise_of_review(noisy.noise.kind, wrong[rows], labels[rows], noisy.groups)
            noisy = NoisyLabels(noise=noise, groups=noisy.groups)
        return wrong, noisy

    def figures(self, record: CalibrationRecord) -> Figures:
        """What each sentence about this view is worth on all photos there are.

        Nothing where the photos gave it no thresholds, as if a place gained nothing.
        """
        if self.view not in record.views:
            return
        points = record.requested_points(self.view)
        for point in points:
            if point.guaranteed:
                yield from self._promise(record, point)
        values = record.values("average_k", None, self.view)
        sized = [record.point(self.view, Setting.of("average_k", value)) for value in values]
        gaps = [
            self._truth(record, point).coverage(point.lambda_val or 0.0) - point.least_coverage
            for point in sized
            if point.least_coverage is not None
        ]
        if gaps:
            name = "`least_coverage`"
            yield Sentence(f"{name}: share in which any K covers less", "<= 0.1"), min(gaps) < 0
            yield Sentence(f"{name} at 3: coverage beyond it"), gaps[values.index(K)]
        at_k = record.point(self.view, Setting.of("average_k", K))
        yield from self._intervals(record, at_k)
        if record.selection.candidates > 1 and self.view.single:
            yield from self._selection(record, at_k)

    def _promise(self, record: CalibrationRecord, point: OperatingPoint) -> Figures:
        """A promise of a coverage, or of a mean size of at most 3."""
        truth, cut = self._truth(record, point), point.lambda_val or 0.0
        level, most = point.certificate.coverage, point.certificate.mean_size
        name, likely = f"`{point.rule}` {point.row.value:g}", "`probability`"
        if level is not None and (point.row.value == LEVEL or point.rule == "coverage"):
            coverage = truth.coverage(cut)
            if point.class_thresholds is not None:
                coverage, by_class = truth.coverage_by_class(point.class_thresholds)
                for species in OF_CLASS if point.certificate.each_class else ():
                    sentence = Sentence(f"{name}: coverage of species {species}", f">= {level:g}")
                    yield sentence, by_class[species - 1]
            if point.guarantee == "mean":
                yield Sentence(f"{name}: coverage", f">= {level:g}"), coverage
            else:
                short = Sentence(f"{name}, {likely}: share with less", f"<= {point.delta:g}")
                yield short, coverage < level
                yield Sentence(f"{name}, {likely}: coverage"), coverage
        elif most == K:
            size = truth.size(cut, point.max_size)
            if point.guarantee == "mean":
                yield Sentence(f"{name}, `mean`: size", "<= 3"), size
            else:
                over = Sentence(f"{name}, {likely}: share with more", f"<= {point.delta:g}")
                yield over, size > K
                yield Sentence(f"{name}, {likely}: size"), size

    def _intervals(self, record: CalibrationRecord, point: OperatingPoint) -> Figures:
        """Whether the 95 % intervals of ``average_k`` at 3 hold the true figures."""
        truth, cut, row = self._truth(record, point), point.lambda_val or 0.0, point.row
        size, coverage = truth.size(cut), truth.coverage(cut)
        yield Sentence("interval of the size at 3", "0.95"), row.size_low <= size <= row.size_high
        assert row.hit_low is not None
        assert row.hit_high is not None
        inside = row.hit_low <= coverage <= row.hit_high
        yield Sentence("interval of the hit rate at 3", "0.95"), inside
        for of_size in (1, 4):
            estimate = point.hit_rate_at_size(of_size)
            if estimate is not None:
                inside = estimate.ci95[0] <= truth.coverage_at(of_size, cut) <= estimate.ci95[1]
                yield Sentence(f"interval of the hit rate of sets of {of_size}", "0.95"), inside
        for group in record.shots if self.view.single else ():
            members = shot_groups(np.array(record.class_counts))[group.name]
            inside = group.hit_ci95[0] <= truth.coverage(cut, members) <= group.hit_ci95[1]
            yield Sentence(f"interval of species with {group.name} photos", "0.95"), inside

    def _selection(self, record: CalibrationRecord, point: OperatingPoint) -> Figures:
        """The honest hit rate of the served scores, whichever were chosen."""
        coverage = self._truth(record, point).coverage(point.lambda_val or 0.0)
        honest, interval = record.selection.honest_hit_rate, record.selection.honest_ci95
        if honest is not None:
            yield Sentence("`honest_hit_rate` less the true one", "0"), honest - coverage
        if interval is not None:
            held = interval[0] <= coverage <= interval[1]
            yield Sentence("`honest_ci95`", ">= 0.95"), held

    def _truth(self, record: CalibrationRecord, point: OperatingPoint) -> Truth:
        strength = 0.0 if record.place_prior is None else record.place_prior.strength
        return self.pool.truth(self.view, point.table.scoring, point.class_weights, strength)


def wrong_labels(
    random: np.random.Generator, labels: Ints, genera: Ints, kind: NoiseKind, rate: float
) -> tuple[Ints, NoisyLabels]:
    """Labels of which a share is drawn anew from all classes or from their genus, and the truth."""
    groups = np.zeros_like(genera) if kind == "uniform" else genera
    noisy = NoisyLabels(noise=LabelNoise.of(kind, rate), groups=groups)
    order = np.argsort(groups, kind="stable")
    start = np.searchsorted(groups[order], groups)
    anew = order[start[labels] + (random.random(labels.size) * noisy.sizes[labels]).astype(int)]
    wrong: Ints = np.where(random.random(labels.size) < rate, anew, labels)
    return wrong, noisy
