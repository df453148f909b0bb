"""Evaluate a bundle: measure its sets on photos that it was not calibrated on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from florilege.calibration.calibrate.noise_rate import noisy_labels
from florilege.calibration.calibrate.photo_outputs import BundleOutputs, bundle_outputs
from florilege.calibration.calibrate.score_sources import LabelledPhotos, Source
from florilege.calibration.calibrate.threshold_tables import measure, measured_row
from florilege.calibration.calibrate.training_photos import PhotoOverlap
from florilege.calibration.metrics import shot_groups
from florilege.calibration.photo_groups import count_observations
from florilege.calibration.record import OperatingPoint, Row, Verb
from florilege.calibration.rules import LabelNoise, NoisyLabels
from florilege.calibration.sets import Bools
from florilege.calibration.view import View
from florilege.terminal import progress


class Evaluated(NamedTuple):
    """A calibrated threshold and its figures on some photos.

    ``shots`` are ``macro_hit_rate`` over classes with few, a medium number and many training
    images; None where there are none, empty where their counts are unknown.
    """

    point: OperatingPoint  # the threshold, with its figures on the calibration photos
    row: Row  # its figures on these photos
    shots: dict[str, float | None]
    macro_hit_rate: float | None = None  # mean over classes of their hit rates, if known

    def to_plain(self, verb: Verb, rows: int) -> dict[str, Any]:
        """The JSON object of ``calibrate --json`` or ``evaluate --json``, for so many photos."""
        point, (name, value) = self.point, self.point.requested_value
        content: dict[str, Any] = {"rule": point.rule, name: value, "guarantee": point.guarantee}
        if verb == "calibrate":
            content |= {
                "guaranteed": point.guaranteed,
                "reasons": list(point.certificate.reasons),
                "delta": point.delta,
                "max_size": point.max_size,
                "macro_weight": point.macro_weight,
                "least_coverage": point.least_coverage,
            }
        content |= {"lambda_val": point.lambda_val, **self.row.figures(verb)}
        if verb == "evaluate":
            content |= {"macro_hit_rate": self.macro_hit_rate, "shots": self.shots}
        return {**content, "rows": rows}

    def contradiction(self, observations: int) -> str | None:
        """What these photos, of so many observations, say against the guarantee; None: nothing."""
        point, row, certificate = self.point, self.row, self.point.certificate
        contradicted = certificate.is_contradicted(
            hit_rate=row.hit_rate,
            hit_rows=row.hit_rows or observations,
            size=row.size,
            size_deviation=row.size_deviation,
            size_rows=observations,
            calibration_rows=point.measured.observations or point.rows,
        )
        if not contradicted:
            return None
        name, value = point.requested_value
        what = f"{point.rule} at {name} = {value:g}, guarantee={point.guarantee}"
        if certificate.coverage is None:
            figures = f"at most {value:g} classes, but sets hold {row.size:.2f}"
        else:
            figures = f"{certificate.coverage:.1%}, but {row.hit_rate or 0.0:.1%} of the sets hit"
        return (
            f"{what} promises {figures}: these photos differ from those of the calibration; "
            "calibrate on photos like them"
        )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The figures of a bundle on a split."""

    bundle: str  # name and version
    bundle_sha256: str
    calibration_id: str
    split: str
    data_sha256: str  # hash of the photos of the split and their class ids
    rows: int  # number of its photos
    observations: int | None  # that they show; None where the data name none
    label_noise: LabelNoise | None  # what is assumed of their labels; None: all are right
    noise_calibrated: bool  # whether the calibration assumed that some labels are wrong
    overlap: PhotoOverlap  # how many of its photos trained or chose the network
    rules: tuple[Evaluated, ...]  # one result for each rule and value
    guaranteed: tuple[Evaluated, ...]  # the same for guarantees that a rule gives only on request
    lists: tuple[dict[str, Any], ...]  # the JSON object of each list

    @classmethod
    def of(cls, measured: BundleOutputs, noise: NoisyLabels | None = None) -> "Evaluation":
        """Measure every rule like :func:`evaluate_bundle`, on outputs that are already computed.

        ``noise`` is what is assumed of their labels; None takes them as right.
        """
        bundle, record, outputs, pictures = measured
        requested, promised = record.requested_points(), record.promised_points()
        trained_counts = record.class_counts_from == "train"
        groups = shot_groups(record.class_counts) if trained_counts else {}
        photos = LabelledPhotos.of(record, outputs, noise)
        source = photos.source(View(), record.scoring)
        regions = [
            (region, photos.source(View(list=region.name), record.scoring))
            for region in record.lists
        ]
        rows = source.rows + sum(listed.rows for _, listed in regions)
        with progress(rows, "measuring sets") as advance:
            results = _results(source, [*requested, *promised], groups, advance)
            lists = list[dict[str, Any]]()
            for region, listed in regions:
                points = record.requested_points(View(list=region.name))
                rules = _results(listed, points, {}, advance) if points and listed.rows else []
                plain = [rule.to_plain("evaluate", listed.rows) for rule in rules]
                lists.append(region.to_plain(listed.rows, plain))
        return cls(
            bundle=f"{bundle.manifest.name} {bundle.manifest.version}",
            bundle_sha256=bundle.sha256,
            calibration_id=record.calibration_id,
            split=outputs.split,
            data_sha256=outputs.data_sha256,
            rows=len(outputs.labels),
            observations=count_observations(outputs.observations),
            label_noise=None if noise is None else noise.noise,
            noise_calibrated=record.measured.label_noise is not None,
            overlap=PhotoOverlap.of(bundle, outputs.split, outputs.photos, pictures),
            rules=tuple(results[: len(requested)]),
            guaranteed=tuple(results[len(requested) :]),
            lists=tuple(lists),
        )

    def contradictions(self) -> list[str]:
        """What these photos say against the guarantees, one sentence each."""
        observations = self.observations or self.rows
        results = (*self.rules, *self.guaranteed)
        return [
            text for result in results if (text := result.contradiction(observations)) is not None
        ]

    def _doubts(self) -> list[str]:
        """A warning where labels are taken as right that the calibration took as partly wrong."""
        if self.label_noise is not None or not self.noise_calibrated:
            return []
        return [
            "the calibration allowed for wrong labels, but those of these photos are taken as "
            "right, so hit rates look too low if some are wrong: name their share with "
            "--label-noise"
        ]

    def to_plain(self) -> dict[str, Any]:
        """The evaluation as plain data for JSON."""
        omitted = ("rows", "overlap", "noise_calibrated")
        return {
            **{name: value for name, value in vars(self).items() if name not in omitted},
            "rules": [rule.to_plain("evaluate", self.rows) for rule in self.rules],
            "guaranteed": [rule.to_plain("evaluate", self.rows) for rule in self.guaranteed],
            "label_noise": None if self.label_noise is None else asdict(self.label_noise),
            "train_photos": self.overlap.train_photos,
            "near_copies": self.overlap.near_copies,
            "selection_photos": self.overlap.selection_photos,
            "warnings": [
                *self.overlap.warnings(self.rows),
                *self._doubts(),
                *self.contradictions(),
            ],
        }


def evaluate_bundle(
    path: str | Path,
    data: str,
    split: str = "test",
    *,
    device: str = "auto",
    label_noise: str | None = None,
) -> Evaluation:
    """Measure every rule at the values last given to ``--k`` and ``--coverage``.

    ``label_noise`` is that of :class:`florilege.calibration.settings.CalibrationSettings`, for
    these photos. Other arguments and errors are those of :func:`.photo_outputs.bundle_outputs`.
    """
    with bundle_outputs(path, data, split, device=device) as measured:
        noise = noisy_labels(label_noise, measured.bundle.classes, data, measured.photos)
        return Evaluation.of(measured, noise)


def _results(
    source: Source,
    points: Sequence[OperatingPoint],
    groups: Mapping[str, Bools],
    advance: Callable[[int], object],
) -> list[Evaluated]:
    """The figures of some thresholds; ``groups`` are masks of classes, ``(classes,)``."""
    measurement = measure(source, points, advance=advance)
    return [
        Evaluated(
            point,
            measured_row(measurement, index, point.counts.value, point.table.scoring.score_kind),
            {name: measurement.macro_hit_rate(index, mask) for name, mask in groups.items()},
            measurement.macro_hit_rate(index),
        )
        for index, point in enumerate(points)
    ]
