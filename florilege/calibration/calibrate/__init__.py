"""Calibrate a bundle: score a split, choose the thresholds, store the record in the bundle."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.evaluate import Evaluation as Evaluation
from florilege.calibration.calibrate.evaluate import evaluate_bundle as evaluate_bundle
from florilege.calibration.calibrate.fit import fit_record
from florilege.calibration.calibrate.gate import Gate as Gate
from florilege.calibration.calibrate.gate import agreement as agreement
from florilege.calibration.calibrate.gate import check_comparable as check_comparable
from florilege.calibration.calibrate.gate import compare_outputs as compare_outputs
from florilege.calibration.calibrate.gate import compare_runtimes
from florilege.calibration.calibrate.gate import differences as differences
from florilege.calibration.calibrate.noise_rate import noisy_labels
from florilege.calibration.calibrate.photo_outputs import BundleOutputs as BundleOutputs
from florilege.calibration.calibrate.photo_outputs import SplitOutputs as SplitOutputs
from florilege.calibration.calibrate.photo_outputs import bundle_outputs as bundle_outputs
from florilege.calibration.calibrate.photo_outputs import outputs_of as outputs_of
from florilege.calibration.calibrate.photo_outputs import photos_for
from florilege.calibration.calibrate.score_sources import Source as Source
from florilege.calibration.calibrate.score_sources import places_of
from florilege.calibration.calibrate.threshold_tables import tabulate as tabulate
from florilege.calibration.calibrate.training_photos import (
    PhotoOverlap,
    photos_to_compare,
    training_reference,
)
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import (
    CALIBRATIONS,
    REFERENCES,
    read_card_files,
    updated_files,
)
from florilege.calibration.reference import Reference
from florilege.calibration.settings import (
    CalibrationPlan,
    CalibrationSettings,
)
from florilege.cores import Workers
from florilege.data.records import Part, Split, split_name
from florilege.data.sources import list_source
from florilege.errors import GateFailed, UsageError
from florilege.models.bundle import (
    LOOK_ALIKES,
    OCCURRENCES,
    Bundle,
    open_bundle,
    replace_files,
    reserved,
)
from florilege.models.regions import read_lists
from florilege.models.runtime import OPENVINO, Runtime
from florilege.models.session import Session


def calibrate_bundle(
    path: str | Path,
    data: str,
    split: str = "val",
    *,
    device: str = "auto",
    workers: Workers | None = None,
    report: Callable[[BundleOutputs], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
    cache: Path | None = None,
    **settings: Any,
) -> CalibrationRecord:
    """Calibrate every rule that the data allow and replace the calibration of the bundle.

    With ``runtime="openvino"`` the bundle gets two calibrations, one of them for ONNX Runtime, if
    both give nearly the same sets. They are compared on ``test``, or on the calibration photos if
    the data have no such split.

    Args:
        path: The bundle's folder.
        data: Value of ``--data``.
        split: Name of the split, or a part of it such as ``test:0-0.3``.
        device: ``auto``, ``cpu`` or ``cuda``.
        workers: Ray processes that run the network; the record is the same.
        report: Writes a report; called with the calibrated bundle and its outputs.
        say: Called with messages: about the comparison of the runtimes, photos that are left out.
        cache: Folder of outputs by photo, read and filled; by default every photo is run.
        settings: The fields of :class:`florilege.calibration.settings.CalibrationSettings`, such as
            ``ks=[1, 3]``. If ``head`` and ``score_kind`` are given, the photos choose nothing, and
            coverage can be guaranteed.

    Returns:
        The record that the bundle now holds.

    Raises:
        UsageError: A K, a coverage or another setting out of range, or another process is
            changing the bundle.
        DataError: The data cannot be opened, or photos cannot be read.
        BundleError: The bundle is damaged or cannot be written.
        GateFailed: The sets of the two runtimes differ; the bundle is not changed.
    """
    with reserved(path), ExitStack() as stack:
        bundle = open_bundle(path)
        part, plan = Part.parse(split), _plan(bundle, settings)
        sessions = _sessions(bundle, plan, device)
        skip = say if plan.skip_damaged else None
        training = None
        if plan.rejection_method:
            training = photos_to_compare(sessions[0], data, part, skip_damaged=skip)
        opened = partial(photos_for, bundle, data, skip_damaged=plan.skip_damaged, say=say)
        photos = opened(split)
        noise = noisy_labels(plan.label_noise, bundle.classes, data, photos, say)
        places = places_of(bundle, data, photos, plan.occurrences, say)
        # Fails early if its file is damaged.
        PhotoOverlap.of(bundle, split, [])
        card_files = read_card_files(bundle)
        score = partial(outputs_of, workers=workers, cache=cache)
        counts = bundle.classes.counts
        fit = partial(fit_record, plan=plan, class_counts=counts, places=places, noise=noise)
        calibrated = [
            _calibrated(session, photos, training, score, fit, stack) for session in sessions
        ]
        _compare([outputs for outputs, _ in calibrated], sessions, data, part, score, opened, say)
        for sentence in _views_without_rows(plan, calibrated[0][0].record):
            say(sentence)
        files = {} if places is None else {OCCURRENCES: places.occurrences.to_bytes()}
        for measured, reference in calibrated:
            files |= updated_files(*card_files, measured.record)
            if reference is not None:
                files[REFERENCES[measured.record.measured.runtime]] = reference.to_bytes()
        # `measured` is now that of the last runtime, which serves.
        files[LOOK_ALIKES] = json.dumps(look_alikes(measured), sort_keys=True).encode()
        # A file of these names that was not written now belongs to an older calibration.
        names = {*CALIBRATIONS.values(), *REFERENCES.values(), OCCURRENCES}
        replace_files(path, files, without=names - files.keys())
        if report is not None:
            report(measured._replace(bundle=open_bundle(path)))
    return measured.record


def _views_without_rows(plan: CalibrationPlan, record: CalibrationRecord) -> Iterator[str]:
    """A sentence for each circumstance that was named and that no photo can show."""
    why = {
        "photos": "too few plants or species have several" * (record.photos == (1,)),
        "lists": "--list names none" * (not plan.lists),
        "places": "there is no table of --occurrences" * (record.place_prior is None),
    }
    for word in filter(why.get, plan.views_wanted):
        yield f"--views asks for {word}, which get no thresholds: {why[word]}"


def _sessions(bundle: Bundle, plan: CalibrationPlan, device: str) -> list[Session]:
    """The network on each runtime that gets a calibration; OpenVINO is compared with the usual."""
    runtime = Runtime.of(plan.runtime, plan.precision)
    runtimes = [Runtime(), runtime] if runtime.name == OPENVINO else [runtime]
    return [Session(bundle, device=device, runtime=one) for one in runtimes]


def _calibrated(
    session: Session,
    photos: Split,
    training: Split | None,
    score: Callable[..., SplitOutputs],
    fit: Callable[..., CalibrationRecord],
    stack: ExitStack,
) -> tuple[BundleOutputs, Reference | None]:
    """The outputs of a runtime, its calibration, and the reference that its rejection needs."""
    bundle, reference = session.bundle, None
    outputs = score(session, photos, features=training is not None)
    stack.enter_context(closing(outputs))
    if training is not None:
        reference = training_reference(session, training, outputs, score)
    choosing = PhotoOverlap.choosing(bundle, outputs)
    calibrating, pictures = outputs, photos
    if choosing is not None:
        calibrating = outputs.part(~choosing)
        pictures = photos.select_rows(np.flatnonzero(~choosing), name=photos.name)
    overlap = PhotoOverlap.of(bundle, photos.name, calibrating.photos, pictures)
    record = fit(outputs, choosing=choosing, overlap=overlap, reference=reference)
    return BundleOutputs(bundle, record, outputs, photos), reference


def look_alikes(measured: BundleOutputs) -> dict[int, list[int]]:
    """For each class, by its index, those that share its sets at the default K most often."""
    record, counts = measured.record, _PairCounts(measured.record.classes)
    point = record.default_point
    for (logits,), labels in measured.outputs.blocks(record.head):
        counts.update(point.sets(record.scores(logits)), labels)
    return counts.by_class()


def _compare(
    calibrated: Sequence[BundleOutputs],
    sessions: Sequence[Session],
    data: str,
    part: Part,
    score: Callable[..., SplitOutputs],
    opened: Callable[[str], Split],
    say: Callable[[str], None],
) -> None:
    """Raise GateFailed if the sets of a second runtime differ from those of the first."""
    if len(calibrated) < 2:
        return
    old, new = calibrated
    with ExitStack() as stack:
        if split_name(part.name) != "test" and "test" in list_source(data, splits=[]).splits:
            photos = opened("test")
            outputs = [stack.enter_context(closing(score(s, photos))) for s in sessions]
            old, new = old._replace(outputs=outputs[0]), new._replace(outputs=outputs[1])
        sentence, reasons = compare_runtimes(new, old)
    if reasons:
        raise GateFailed(f"{sentence}: {'; '.join(reasons)}; the bundle is not changed")
    say(sentence)


def _plan(bundle: Bundle, settings: Mapping[str, Any]) -> CalibrationPlan:
    """The settings for this bundle, checked."""
    try:
        requested = CalibrationSettings(**settings)
        lists = read_lists(requested.list_files, bundle.classes)
        plan = CalibrationPlan(classes=len(bundle.classes), lists=lists, **dict(requested))
        plan.check_head(tuple(bundle.heads))
    except ValueError as error:
        raise UsageError(str(error)) from error
    return plan


# Of a class: with 10,000 classes the file has 400 kB at most.
_MOST_LOOK_ALIKES: Final = 4
# Whose sets hold the other class: one is an accident.
_FEWEST_PHOTOS: Final = 2
# A larger set confuses its class with everything.
_LARGEST_SET: Final = 20


class _PairCounts:
    """How often two classes are confused: by a photo of one of them whose set holds the other.

    Memory grows with the pairs that occur.
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._pairs, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)

    def update(self, sets: NDArray[np.bool_], labels: NDArray[np.int64]) -> None:
        """Count sets, ``(rows, classes)``, of photos with these labels, ``(rows,)``."""
        small = sets & (sets.sum(axis=1) <= _LARGEST_SET)[:, np.newaxis]
        rows, others = np.nonzero(small)
        true = labels[rows]
        keys = np.minimum(true, others) * self._classes + np.maximum(true, others)
        keys = np.concatenate([self._pairs, keys[true != others]])
        # Pairs seen before weigh as much as they were counted, new ones 1.
        weights = np.concatenate([self._counts, np.ones(len(keys) - len(self._counts), np.int64)])
        self._pairs, places = np.unique(keys, return_inverse=True)
        self._counts = np.bincount(places, weights, minlength=len(self._pairs)).astype(np.int64)

    def by_class(self) -> dict[int, list[int]]:
        """For each class the classes it is confused with, most often first; ties in their order."""
        result = dict[int, list[int]]()
        for place in np.lexsort((self._pairs, -self._counts)):
            if self._counts[place] < _FEWEST_PHOTOS:
                break
            first, second = divmod(int(self._pairs[place]), self._classes)
            for own, other in ((first, second), (second, first)):
                if len(row := result.setdefault(own, [])) < _MOST_LOOK_ALIKES:
                    row.append(other)
        return result
