"""Evaluate a bundle: measure its sets on photos that it was not calibrated on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from florilege.calibration.calibrate.noise_rate import noisy_labels
from florilege.calibration.calibrate.photo_outputs import BundleOutputs, bundle_outputs
from florilege.calibration.calibrate.score_sources import LabelledPhotos, Source, places_of
from florilege.calibration.calibrate.threshold_tables import measure
from florilege.calibration.calibrate.training_photos import PhotoOverlap
from florilege.calibration.photo_groups import MadeFrom
from florilege.calibration.record import (
    CalibratedList,
    CalibrationRecord,
    OperatingPoint,
    Row,
)
from florilege.calibration.rules import LabelNoise
from florilege.calibration.sets import Bools
from florilege.calibration.view import View
from florilege.terminal import progress

# In standard errors beyond a promise: views have hundreds of promises, not a dozen.
_OF_HUNDREDS = 4.0


class Evaluated(NamedTuple):
    """A calibrated threshold and its figures on some photos.

    ``shots`` are ``macro_hit_rate`` over classes with few, a medium number and many training
    images; None where there are none, empty where their counts are unknown.
    """

    point: OperatingPoint  # the threshold, with its figures on the calibration photos
    row: Row  # its figures on these photos
    shots: dict[str, float | None]
    macro_hit_rate: float | None = None  # mean over classes of their hit rates, if known

    def to_plain(self) -> dict[str, Any]:
        """The JSON object of ``evaluate --json``."""
        return {
            **self.point.asked,
            "lambda_val": self.point.lambda_val,
            **self.row.figures,
            "macro_hit_rate": self.macro_hit_rate,
            "shots": self.shots,
            "rows": sum(self.row.size_histogram),
        }

    def contradiction(self, **errors: float) -> str | None:
        """What these photos say against the guarantee; None where nothing."""
        point, row, certificate = self.point, self.row, self.point.certificate
        contradicted = certificate.is_contradicted(
            hit_rate=row.hit_rate,
            hit_rows=row.hit_rows or row.size_rows,
            size=row.size,
            size_deviation=row.size_deviation,
            size_rows=row.size_rows,
            calibration_rows=point.independent_rows,
            **errors,
        )
        if not contradicted:
            return None
        name, value = point.requested_value
        view = f" {point.table.view}" * (not point.table.view.single)
        what = f"{point.rule} at {name} = {value:g}, guarantee={point.guarantee}{view}"
        if certificate.coverage is None:
            figures = f"at most {value:g} classes, but sets hold {row.size:.2f}"
        else:
            share = f"{100 * certificate.coverage:.8g}%"
            figures = f"{share}, but {row.hit_rate or 0.0:.1%} of the sets hit"
        return (
            f"{what} promises {figures}: these photos differ from those of the calibration; "
            "calibrate on photos like them"
        )


class _EvaluatedView(NamedTuple):
    """The figures of a view."""

    view: View
    made_from: MadeFrom | None
    rows: int
    results: tuple[Evaluated, ...]  # for each rule and value, those of a promise on request last

    @classmethod
    def all_of(
        cls,
        photos: LabelledPhotos,
        record: CalibrationRecord,
        advance: Callable[[int], object],
    ) -> "Iterator[_EvaluatedView]":
        """Measure the thresholds of all views that photos show, the plain one first."""
        prior = record.place_prior
        strength = 0.0 if prior is None else prior.strength
        for view in record.views:
            advance(1)
            if view.place is not None and photos.places is None:
                continue
            points = record.requested_points(view)
            source = photos.source(view, points[0].table.scoring, strength=strength)
            if source.rows:
                of_plain = (record.shot_groups, advance) if view.single else ()
                yield cls(view, source.made_from, source.rows, _results(source, points, *of_plain))

    @property
    def rules(self) -> tuple[Evaluated, ...]:
        """One result for each rule and value."""
        return tuple(one for one in self.results if not one.point.on_request)

    @property
    def guaranteed(self) -> tuple[Evaluated, ...]:
        """The same for guarantees that a rule gives only on request."""
        return tuple(one for one in self.results if one.point.on_request)

    def contradictions(self) -> list[str]:
        """What these photos say against the guarantees, one sentence each."""
        errors = {} if self.view.single else {"errors": _OF_HUNDREDS}
        # Photos of one species are no request for one plant.
        alike = (one for one in self.results if self.made_from == one.point.table.made_from)
        texts = (one.contradiction(**errors) for one in alike)
        return [text for text in texts if text is not None]

    def to_plain(self) -> dict[str, Any]:
        """The JSON object of ``evaluate --json``."""
        return {
            **asdict(self.view),
            "made_from": self.made_from,
            "rows": self.rows,
            "rules": [rule.to_plain() for rule in self.rules],
            "guaranteed": [rule.to_plain() for rule in self.guaranteed],
            "contradictions": self.contradictions(),
        }


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
    lists: tuple[CalibratedList, ...]  # with the numbers of these photos
    views: tuple[_EvaluatedView, ...]  # whatever was calibrated and these photos show

    @classmethod
    def of(
        cls,
        measured: BundleOutputs,
        data: str | None = None,
        label_noise: str | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> "Evaluation":
        """Measure every rule like :func:`evaluate_bundle`, on outputs that are already computed.

        Without ``data``, labels are taken as right, and views of places are not measured. ``say``
        is told which photos of a review, and which species of places, are unknown.
        """
        bundle, record, outputs, pictures = measured
        noise = places = None
        if data is not None:
            noise = noisy_labels(label_noise, bundle.classes, data, pictures, say)
            places = places_of(bundle, data, pictures, None, say)
        # Drawn places follow the records of the true species, and would make any figure look too
        # good.
        real = None if places is None or places.simulated else places
        photos = LabelledPhotos.of(record, outputs, noise, real)
        with progress(len(outputs.labels) + len(record.views), "measuring sets") as advance:
            views = tuple(_EvaluatedView.all_of(photos, record, advance))
        return cls(
            bundle=f"{bundle.manifest.name} {bundle.manifest.version}",
            bundle_sha256=bundle.sha256,
            calibration_id=record.calibration_id,
            split=outputs.split,
            data_sha256=outputs.data_sha256,
            rows=len(outputs.labels),
            observations=outputs.plants,
            label_noise=None if noise is None else noise.noise,
            noise_calibrated=record.measured.label_noise is not None,
            overlap=PhotoOverlap.of(bundle, outputs.split, outputs.photos, pictures),
            lists=tuple(CalibratedList.of(region, outputs.labels) for region in record.lists),
            views=views,
        )

    @property
    def rules(self) -> tuple[Evaluated, ...]:
        """One result for each rule and value of the plain view."""
        return self.views[0].rules

    @property
    def guaranteed(self) -> tuple[Evaluated, ...]:
        """The same for guarantees that a rule gives only on request."""
        return self.views[0].guaranteed

    def contradictions(self) -> list[str]:
        """What these photos say against the guarantees, one sentence each."""
        plain, *others = (view.contradictions() for view in self.views)
        of_views = list(chain(*others))
        more = f"; {len(of_views) - 1:,} more promises of views fail: `views` of --json has them"
        return [*plain, *(text + more * (len(of_views) > 1) for text in of_views[:1])]

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
        plain, *others = (view.to_plain() for view in self.views)
        pairs = zip(self.views[1:], others, strict=True)
        rules_of = {view.view: content["rules"] for view, content in pairs}
        names = ("bundle", "bundle_sha256", "calibration_id", "split", "data_sha256")
        return {
            **{name: getattr(self, name) for name in (*names, "observations")},
            "label_noise": None if self.label_noise is None else asdict(self.label_noise),
            **{name: plain[name] for name in ("rules", "guaranteed")},
            "lists": [
                region.to_plain(rules_of.get(View(list=region.name), [])) for region in self.lists
            ],
            "views": others,
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
        return Evaluation.of(measured, data, label_noise)


def _results(
    source: Source,
    points: Sequence[OperatingPoint],
    groups: Mapping[str, Bools] = MappingProxyType({}),
    advance: Callable[[int], object] = lambda rows: None,
) -> tuple[Evaluated, ...]:
    """The figures of some thresholds; ``groups`` are masks of classes, ``(classes,)``."""
    measurement = measure(source, points, advance=advance)
    return tuple(
        Evaluated(
            point,
            point.row_on(measurement, index),
            {name: measurement.macro_hit_rate(index, mask) for name, mask in groups.items()},
            measurement.macro_hit_rate(index),
        )
        for index, point in enumerate(points)
    )
