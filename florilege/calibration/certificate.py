"""What may be promised of new photos: the only place that promises anything.

A threshold was chosen on some photos, and they may be unfit for a promise: they trained the
network, or their places were drawn. :class:`Evidence` says what is known of them,
:func:`certificate` what follows. Statement, warnings, model card, page and commands
only render its result.

Photos that *chose* something, a checkpoint or a temperature, do not end a promise where the number
of candidates is known and they existed without these photos: thresholds then allow for the choice,
see :func:`florilege.calibration.conformal.conformal_rank`. Weights that these photos steered, by a
rate lowered on a plateau or an adaptive search, are outside this; so is a choice nobody counted.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from florilege.calibration.intervals import largest_fall, least_coverage
from florilege.calibration.rules import RULES, LabelNoise
from florilege.calibration.sets import Guarantee
from florilege.calibration.view import Setting, View

_CONTRADICTION = 3.0  # standard errors of a normal distribution
_CONFIDENCE_DELTA = 0.1  # share of calibrations in which a least coverage may be too high


class Reason(StrEnum):
    """Why nothing is promised of new photos."""

    PHOTOS_TRAINED = "photos_trained"
    """Some of the photos trained the network: their scores are better than those of new photos."""
    ORIGIN_UNKNOWN = "origin_unknown"
    """Nothing tells which photos trained and chose the network."""
    CHOICE_UNCOUNTED = "choice_uncounted"
    """The photos chose the network among candidates that nobody counted."""
    PLACES_DRAWN = "places_drawn"
    """Their places were drawn from the records of each species, which suit them too well."""
    GROUPS_OF_ONE_SPECIES = "groups_of_one_species"
    """Photos of a group show one species, not one plant: their errors are too independent."""
    PLANTS_OF_TRAFFIC = "plants_of_traffic"
    """Several requests of the traffic may show one plant."""
    CLASS_COUNTS_FROM_PHOTOS = "class_counts_from_photos"
    """The weights of the classes were counted on these photos, so they depend on their labels."""
    WRONG_LABELS_BY_CLASS = "wrong_labels_by_class"
    """Some labels are wrong, which is allowed for over all photos, not for each class."""
    WRONG_LABELS_CROSS_LIST = "wrong_labels_cross_list"
    """Some labels are wrong, so photos of the list may show species outside it."""
    SUSPECTS_REJECTED = "suspects_rejected"
    """A request rejects suspect photos: their sets are empty, which no calibration allows for."""
    ANOTHER_VIEW = "another_view"
    """The threshold was calibrated for another number of photos, other classes or another place."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The photos behind a threshold, as far as a promise depends on them.

    Attributes:
        rows: Rows that measured the threshold: photos, or groups of photos.
        independent: Whether each row shows an observation of its own.
        train_photos: How many of the photos trained the network; None where unknown.
        chose_checkpoint: Whether any of them trained it or chose its checkpoint; None where
            unknown.
        networks: How many networks they compared, such as the epochs of a run; None where nobody
            counted.
        candidates: How many scores they compared in all, which the threshold allows for.
        label_noise: The assumption about wrong labels, which it also allows for; None where they
            are taken as they are.
        places_drawn: Whether their places were drawn.
        same_species: Whether the photos of a group show only one species, not one plant.
        traffic: Whether they are unlabelled requests.
        class_counts_from_photos: Whether class counts, which weight the scores of the balanced
            rules, are of them.
        counts_fuse: Whether class counts also fuse the scores of several photos.
        rejecting: Whether the request rejects suspect photos, which no calibration does.
    """

    rows: int
    independent: bool
    train_photos: int | None
    chose_checkpoint: bool | None
    networks: int | None
    candidates: int
    label_noise: LabelNoise | None
    places_drawn: bool
    same_species: bool
    traffic: bool
    class_counts_from_photos: bool
    counts_fuse: bool = False
    rejecting: bool = False

    @property
    def choice_uncounted(self) -> bool:
        """Whether they chose the network, without training it, among candidates nobody counted."""
        chose = self.chose_checkpoint is True and not self.train_photos
        return chose and self.networks is None


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is promised of new photos like those of the calibration, or why nothing is.

    Attributes:
        guarantee: The kind of promise that was asked for; None where figures are only measured.
        delta: For ``probability``: the share of calibrations that may break it.
        coverage: The least coverage promised; None for a promise of a mean size.
        mean_size: The largest mean size promised; None for a promise of a coverage.
        each_class: Whether the coverage is promised for each class.
        reasons: Why nothing is promised; empty where it is.
        least_coverage: A coverage that holds in 9 of 10 calibrations for every K at the same time,
            so K may be chosen after looking at the figures; None where none can be promised.
        label_noise: What all of this assumes of wrong labels; None where labels are taken as they
            are.
    """

    guarantee: Guarantee | None
    delta: float | None
    coverage: float | None
    mean_size: float | None
    each_class: bool
    reasons: tuple[Reason, ...]
    least_coverage: float | None
    label_noise: LabelNoise | None

    @property
    def guaranteed(self) -> bool:
        """Whether what was asked for is promised."""
        return self.guarantee is not None and not self.reasons

    def is_contradicted(
        self,
        *,
        hit_rate: float | None,
        hit_rows: float,
        size: float,
        size_deviation: float,
        size_rows: float,
        calibration_rows: float,
        errors: float = _CONTRADICTION,
    ) -> bool:
        """Whether other photos speak against the promise, three standard errors beyond it.

        A promise on average over calibrations may be missed by a single one, so its threshold's own
        error counts too. Three errors, since an evaluation looks at a dozen promises at once; more
        where misses are few and so their number is skewed (Cornish and Fisher).

        Args:
            hit_rate, size: The share of sets with the true class, and the mean size, of the photos.
            size_deviation: Standard deviation of the set size.
            hit_rows, size_rows: Independent rows that tell these as well as the photos.
            calibration_rows: Independent rows that chose the threshold.
            errors: Standard errors beyond it, for other numbers of promises.
        """
        if not self.guaranteed:
            return False
        of_threshold = 1 / calibration_rows if self.guarantee == "mean" else 0.0
        if self.coverage is not None:
            variance, skewed = self.coverage * (1 - self.coverage), 2 * self.coverage - 1
            miss, rows = self.coverage - (1.0 if hit_rate is None else hit_rate), hit_rows
        else:
            # The deviation of sizes is that of these photos, which many large sets raise too.
            variance, skewed = size_deviation**2, 0.0
            miss, rows = size - (self.mean_size or 0.0), size_rows
        total = variance * (1 / rows + of_threshold)
        # Third cumulants: misses of the photos are binomial, those of the threshold Beta, which is
        # twice as skewed.
        third = variance * skewed * (1 / rows**2 + 2 * of_threshold**2)
        if total > 0:
            errors += (errors**2 - 1) / 6 * third / total**1.5
        return miss > errors * sqrt(total)


def certificate(
    view: View,
    setting: Setting,
    evidence: Evidence,
    *,
    delta: float | None = None,
    macro_weight: float | None = None,
    label_hits: int | None = None,
    chance: float = 0.0,
) -> Certificate:
    """What may be said of new photos, or why nothing.

    Args:
        view: What is known beside the pictures.
        setting: What is asked.
        evidence: The photos behind the threshold.
        delta: For a guarantee with probability: the share of calibrations that may break it.
        macro_weight: Of the rules for rare classes.
        label_hits: Rows whose set holds the label; None without labels or a threshold.
        chance: Where labels are wrong: the share of sets with a class drawn from the label's group.
    """
    spec = RULES[setting.rule]
    reasons = tuple(_reasons(view, setting.rule, evidence))
    covers, measured = spec.asks == "coverage", setting.guarantee is None and not reasons
    return Certificate(
        guarantee=setting.guarantee,
        delta=delta,
        coverage=setting.value if covers else None,
        mean_size=setting.value if setting.guarantee and not covers else None,
        each_class=spec.by_class and macro_weight == 1,
        reasons=reasons,
        least_coverage=_least_coverage(evidence, label_hits, chance) if measured else None,
        label_noise=evidence.label_noise,
    )


def _least_coverage(evidence: Evidence, label_hits: int | None, chance: float) -> float | None:
    """The band of all thresholds at once; with wrong labels, of their sets with the label."""
    rows, noise = evidence.rows, evidence.label_noise
    if label_hits is None or not evidence.independent:
        return None
    if noise is None:
        candidates = evidence.candidates
        return least_coverage(label_hits, rows, delta=_CONFIDENCE_DELTA, candidates=candidates)
    # Half of delta is for an error of the chance: the table of critical values has no .09.
    delta = _CONFIDENCE_DELTA / 2
    least = least_coverage(label_hits, rows, delta=delta, candidates=evidence.candidates)
    most = chance + largest_fall(rows, delta / evidence.candidates)
    return noise.corrected(least, min(1.0, most), noise.low)


def _reasons(view: View, rule: str, evidence: Evidence) -> list[Reason]:
    """Why nothing can be promised, in the order in which people are told."""
    spec, noise = RULES[rule], evidence.label_noise
    broken = {
        Reason.PHOTOS_TRAINED: bool(evidence.train_photos),
        Reason.ORIGIN_UNKNOWN: evidence.chose_checkpoint is None,
        Reason.CHOICE_UNCOUNTED: evidence.choice_uncounted,
        Reason.PLACES_DRAWN: view.place is not None and evidence.places_drawn,
        Reason.GROUPS_OF_ONE_SPECIES: view.photos > 1 and evidence.same_species,
        Reason.PLANTS_OF_TRAFFIC: evidence.traffic,
        Reason.CLASS_COUNTS_FROM_PHOTOS: (
            evidence.class_counts_from_photos and (spec.balanced or evidence.counts_fuse)
        ),
        Reason.WRONG_LABELS_BY_CLASS: spec.by_class and noise is not None,
        Reason.WRONG_LABELS_CROSS_LIST: noise is not None and noise.crosses_list,
        Reason.SUSPECTS_REJECTED: evidence.rejecting,
    }
    return [reason for reason, applies in broken.items() if applies]
