"""From the logits of a split to a calibration record."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from calibration.distribution import Distribution, DistributionOf
from calibration.measurement import size_bins
from calibration.offline.fitting_groups import group_tables
from calibration.offline.logits import FEATURES, Scoring
from calibration.offline.nested import choose
from calibration.offline.promise import promised_tables
from calibration.offline.settings import Settings
from calibration.offline.tabulate import Source, Tabulated, tabulate
from calibration.record.by_shots import ShotGroup, measure_by_shots
from calibration.record.record import CalibrationRecord, Measured, Selection
from calibration.rejection.familiarity import FEATURE_METHODS, METHODS
from calibration.rejection.reference import Reference
from calibration.rejection.verdict import Rejection, fit_rejection, parts
from calibration.rules import class_weights
from calibration.scores import ScoreKind, scores

SWOLLEN = 1.05  # times K: sets so much larger hit more for their size, not for their scores


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One head, kind of score and temperature of a scored split, read as often as wanted.

    Attributes:
        scoring: The logits.
        head: Which head.
        score_kind: How its logits become scores.
        temperature: What they are divided by first.
        advance: Called with the number of rows after each block.
    """

    scoring: Scoring
    head: str
    score_kind: ScoreKind
    temperature: float
    advance: Callable[[int], None]

    @property
    def source(self) -> Source:
        """The scores of single photos."""
        return Source(
            blocks=self._blocks,
            rows=len(self.scoring.labels),
            head=self.head,
            score_kind=self.score_kind,
            temperature=self.temperature,
        )

    def scores(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """Scores from logits, both ``(batch, classes)``."""
        return scores(logits, self.score_kind, temperature=self.temperature)

    def _blocks(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
        for (logits,), labels in self.scoring.outputs.blocks(self.head):
            yield self.scores(logits), labels
            self.advance(len(labels))


def fit_record(
    scoring: Scoring,
    settings: Settings,
    *,
    class_counts: NDArray[np.int64] | None,
    chose_checkpoint: bool | None,
    class_groups: Sequence[str] | None = None,
    reference: Reference | None = None,
    advance: Callable[[int], None] = lambda rows: None,
) -> CalibrationRecord:
    """Calibrate every rule, choose what serves, and measure it all.

    Args:
        scoring: Logits of the calibration split.
        settings: What is asked for.
        class_counts: Training images a class, shape ``(classes,)``; where None, the photos of
            the split itself are counted.
        chose_checkpoint: Whether the split also chose the checkpoint, where known.
        class_groups: Group of each class, such as its genus, shape ``(classes,)``; for
            ``class_coverage`` where small classes get the threshold of their group.
        reference: What features are compared with, for the rejection methods that need it; then
            the scoring holds features.
        advance: Called with the number of rows after each block; in all
            ``passes(scoring, settings)`` times the rows.
    """
    labels = scoring.labels
    counts = class_counts
    if counts is None:
        counts = np.bincount(labels, minlength=settings.classes)
    candidates = [
        Fit(scoring=scoring, head=head, score_kind=kind, temperature=degree, advance=advance)
        for head, kind, degree in settings.candidates(scoring.heads)
    ]
    compared = [tabulate(fit.source, settings, settings.compared) for fit in candidates]
    fair = comparable([float(tabulated.sizes.mean()) for tabulated in compared], settings.default_k)
    choice = choose([compared[index].hits for index in fair])
    best = fair[choice.best]
    served = candidates[best]
    weights = class_weights(counts, settings.micro_weight)
    single = tabulate(served.source, settings, settings.grid)
    tables = single.tables
    tables += tabulate(served.source, settings, settings.grid, weights=weights).tables
    tables += promised_tables(served.source, settings, class_groups=class_groups)
    for images in settings.images:
        tables += group_tables(
            scoring, settings, head=served.head, score_kind=served.score_kind,
            temperature=served.temperature, images=images, weights=weights,
        )  # fmt: skip
        advance(len(labels))
    for index, others in enumerate(compared):
        tables += others.tables if index != best else []
    distribution, rejection = familiarity_of(served, settings, reference)
    return CalibrationRecord(
        calibration_id="",
        created=datetime.now(UTC).isoformat(),
        classes=settings.classes,
        head=served.head,
        score_kind=served.score_kind,
        temperature=served.temperature,
        asked_k=settings.ks,
        asked_coverage=settings.coverages,
        measured=Measured(
            split=scoring.split,
            rows=len(labels),
            classes_seen=np.unique(labels).size,
            data_sha256=scoring.data_sha256,
            model_sha256=scoring.model_sha256,
            chose_checkpoint=chose_checkpoint,
            chose_head=len(candidates) > 1,
        ),
        selection=Selection(
            k=settings.default_k,
            candidates=len(candidates),
            hit_rate=choice.hit_rate,
            honest_hit_rate=choice.honest_hit_rate,
        ),
        class_counts=tuple(counts.tolist()),
        class_counts_from=scoring.split if class_counts is None else "train",
        micro_weight=settings.micro_weight,
        size_bins=tuple(size_bins(settings.classes).tolist()),
        distribution=distribution,
        rejection=rejection,
        log_ratios=None,
        shots=_shots(single, labels, class_counts),
        tables=tuple(tables),
    ).named()


def comparable(sizes: Sequence[float], average_k: float) -> list[int]:
    """The candidates whose hits may be compared: their sets hold K on average.

    Where many scores are equal, as those of a network that has hardly learned, ties at the cut
    swell the sets, and larger sets hit more. If all are swollen, the least swollen is left.

    Example:
        >>> comparable([38.1, 3.0, 3.02], 3.0)
        [1, 2]
    """
    fair = [index for index, size in enumerate(sizes) if size <= SWOLLEN * average_k]
    return fair or [int(np.argmin(sizes))]


def passes(scoring: Scoring, settings: Settings) -> int:
    """How often :func:`fit_record` reads all rows; each number of photos counts as once."""
    return 2 * len(settings.candidates(scoring.heads)) + 7 + len(settings.images)


def familiarity_of(
    fit: Fit, settings: Settings, reference: Reference | None = None
) -> tuple[Distribution, Rejection | None]:
    """How the scores are distributed, and below what familiarity a photo is suspect."""
    gathered, found = DistributionOf(), list[NDArray[np.float64]]()
    method = settings.rejection_method
    names = (fit.head, FEATURES) if method in FEATURE_METHODS else (fit.head,)
    for (logits, *features), labels in fit.scoring.outputs.blocks(*names):
        gathered.update(logits, fit.scores(logits))
        if features:
            assert reference is not None  # whoever asks for such a method brings one
            found.append(parts(logits, fit.score_kind, features[0], reference))
        elif method is not None:
            found.append(METHODS[method](logits, fit.score_kind)[:, np.newaxis])
        fit.advance(len(labels))
    if method is None:
        return gathered.result(), None
    return gathered.result(), fit_rejection(
        method,
        settings.suspect_share,
        np.concatenate(found),
        head=fit.head,
        score_kind=fit.score_kind,
        reference_sha256=None if reference is None else reference.sha256,
    )


def _shots(
    single: Tabulated, labels: NDArray[np.int64], class_counts: NDArray[np.int64] | None
) -> tuple[ShotGroup, ...]:
    """Sizes and hits by training images; none where those are not known."""
    if class_counts is None:
        return ()
    return measure_by_shots(single.sizes, single.hits, labels, class_counts)
