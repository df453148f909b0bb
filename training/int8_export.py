"""A calibrated bundle in eight bits: made, calibrated anew, and kept only if its sets agree."""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from florilege.calibration.calibrate.calibrate import calibrate_bundle
from florilege.calibration.calibrate.card_section import CARD, read_papers, replace_section
from florilege.calibration.calibrate.gate import compare_outputs
from florilege.calibration.calibrate.photo_outputs import bundle_outputs, photos_for
from florilege.calibration.calibrate.set_agreement import SetAgreement, agreement, differences
from florilege.calibration.calibrate.training_features import TRAIN, balanced_rows
from florilege.calibration.comparison import Comparison
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.inspection import METRICS, PROVENANCE
from florilege.calibration.record.record_file import read_record
from florilege.data.dataset import Split
from florilege.data.sources import list_source
from florilege.data.split_parts import select
from florilege.errors import DataError, UsageError
from florilege.models import photo_hashes
from florilege.models.bundle import Bundle, open_bundle, reserved, write_bundle
from florilege.models.bundle.bundle import CLASSES, MODEL, PREPROCESS, THUMBNAILS
from florilege.models.images import ImageError, load
from florilege.models.quantization import PERCENTILE, int8_graph
from florilege.models.session import Session

PHOTOS: Final = 300
"""Training photos to measure ranges on, unless another number is asked for."""
TIMED: Final = 30  # times that each network sees a picture

_KEPT: Final = (CLASSES, PREPROCESS, METRICS, CARD, THUMBNAILS, photo_hashes.PHOTOS)
"""Files of the float bundle that its variant has too; its weights are not those of the variant."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A bundle in eight bits beside the float one it was made of.

    Attributes:
        comparisons: On held-out photos, for each rule and value; the first one is judged.
        sets: How the sets of the first one agree.
        split: The photos of both.
        why_not: Why it was refused, one sentence each; empty where it was written.
        file_bytes: Of the graphs, float and eight bits.
        milliseconds: Of one core for one photo on this machine, float and eight bits.
    """

    comparisons: Sequence[Comparison]
    sets: SetAgreement
    split: str
    why_not: Sequence[str]
    file_bytes: tuple[int, int]
    milliseconds: tuple[float, float]

    def to_plain(self) -> dict[str, Any]:
        """For json."""
        return {**asdict(self), "accepted": not self.why_not}


def export_int8(path: Path, out: Path, data: str, *, photos: int = PHOTOS) -> Variant:
    """Write the eight-bit variant of a calibrated bundle, if its sets are nearly the same.

    Ranges come from training photos, thresholds from ``val``, the judgement from ``test``. Data
    without ``test`` give half of ``val`` to each of the latter two. If the float bundle was
    calibrated on other photos, a copy of it gets thresholds from these first: what is compared is
    the arithmetic alone.

    Args:
        path: The float bundle. What was asked of its calibration is asked of the new one.
        out: A new or empty folder, or a bundle to replace; left as it was if the sets differ.
        data: What ``--data`` takes.
        photos: How many training photos to measure ranges on, as even by class as they are.

    Raises:
        UsageError: ``photos`` below 1, ``out`` is ``path``, or another process changes ``out``.
        DataError: The data cannot be opened, lack photos for one of the three, or hold photos that
            cannot be read.
        BundleError: The bundle is damaged, not calibrated, quantised already or without
            convolutions, or ``out`` cannot be written.
    """
    if photos < 1:
        raise UsageError(f"--photos must be at least 1, got {photos}")
    if out.resolve() == path.resolve():
        raise UsageError(f"--out must be another folder than {path}, which is still needed")
    bundle = open_bundle(path)
    record, training = read_record(bundle), photos_for(bundle, data, TRAIN)
    calibrated_on, judged_on = _splits(data)
    for split in (calibrated_on, judged_on):
        photos_for(bundle, data, split)  # better to learn of missing ones now
    rows = balanced_rows(training.labels, photos)
    with reserved(out), tempfile.TemporaryDirectory() as scratch:
        new = _quantised(bundle, select(training, rows, name=TRAIN), Path(scratch) / "int8")
        calibrated = _calibrated(new, record, data, calibrated_on)
        old = bundle
        if calibrated.measured.data_sha256 != record.measured.data_sha256:
            old = _copy(bundle, Path(scratch) / "float")  # other photos would move its thresholds
            _calibrated(old, record, data, calibrated_on)
        variant = _judged(old, new, data, judged_on)
        if not variant.why_not:
            _write(open_bundle(new.path), variant, len(rows), bundle, out)
    return variant


def _splits(data: str) -> tuple[str, str]:
    """What thresholds come from, and what they are judged on."""
    if "test" in list_source(data, splits=[]).splits:
        return "val", "test"
    return "val:0-0.5", "val:0.5-1"


def _quantised(bundle: Bundle, photos: Split, folder: Path) -> Bundle:
    def picture(row: int) -> npt.NDArray[np.uint8]:
        try:
            return load(photos.read(row), bundle.preprocess)
        except (OSError, ImageError) as error:
            raise DataError(f"{photos.names[row]}: {error}; repair or remove it") from error

    graph = int8_graph(bundle.read(MODEL), len(photos), picture, name=str(bundle.path))
    files = {name: bundle.read(name) for name in _KEPT if bundle.has(name)}
    provenance = {
        PROVENANCE: _json(bundle.read_object(PROVENANCE))
    }  # it says what chose the checkpoint
    return write_bundle(
        folder,
        {MODEL: graph, **files, **provenance},
        name=bundle.name,
        version=f"{bundle.version}-int8",
        heads=bundle.heads,
    )


def _copy(bundle: Bundle, folder: Path) -> Bundle:
    files = {name: bundle.read(name) for name in bundle.manifest.files}
    name, version = bundle.name, bundle.version
    return write_bundle(folder, files, name=name, version=version, heads=bundle.heads)


def _calibrated(
    bundle: Bundle, record: CalibrationRecord, data: str, split: str
) -> CalibrationRecord:
    return calibrate_bundle(bundle.path, data, split, device="cpu", **_as_before(record))


def _as_before(record: CalibrationRecord) -> dict[str, Any]:
    """The settings of the float bundle's calibration.

    Head and kind of score are named only if they were then: photos that chose them may promise
    less, and a second calibration must not hide that.
    """
    named, rejection = not record.measured.chose_head, record.rejection
    promised = record.point("average_k", guarantee="probability")
    share = {} if rejection is None else {"suspect_share": rejection.share}
    return {
        **share,
        "ks": record.asked_k,
        "coverages": record.asked_coverage,
        "min_size": record.point("average_k").min_size,
        "micro_weight": record.micro_weight,
        "temperatures": (record.temperature,),
        "head": record.head if named else None,
        "score_kind": record.score_kind if named else None,
        "rejection_method": None if rejection is None else rejection.method,
        "small_classes": record.small_classes or "marginal",
        "delta": promised.delta,
        "max_size": promised.max_size,
    }


def _judged(old: Bundle, new: Bundle, data: str, split: str) -> Variant:
    with (
        bundle_outputs(old.path, data, split, device="cpu") as theirs,
        bundle_outputs(new.path, data, split, device="cpu") as ours,
    ):
        comparisons, sets = compare_outputs(ours, theirs), agreement(ours, theirs)
        served = [f"{each.record.head} {each.record.score_kind}" for each in (theirs, ours)]
    why_not = differences(comparisons[0], sets)
    if why_not and served[0] != served[1]:
        why_not.append(f"{served[1]} serves in place of {served[0]}")
    return Variant(
        comparisons=comparisons,
        sets=sets,
        split=split,
        why_not=why_not,
        file_bytes=(len(old.read(MODEL)), len(new.read(MODEL))),
        milliseconds=_speed(old, new),
    )


def _speed(old: Bundle, new: Bundle) -> tuple[float, float]:
    """Median processor time of one photo, in turns, so that other work disturbs both alike."""
    side = old.preprocess.image_size
    image = np.random.default_rng(0).integers(0, 256, (1, side, side, 3), dtype=np.uint8)
    sessions = [Session(bundle, device="cpu") for bundle in (old, new)]
    seconds: list[list[float]] = [[], []]
    for _ in range(TIMED):
        for session, times in zip(sessions, seconds, strict=True):
            start = time.process_time()
            session.logits(image)
            times.append(time.process_time() - start)
    return 1000 * median(seconds[0]), 1000 * median(seconds[1])


def _write(new: Bundle, variant: Variant, photos: int, old: Bundle, out: Path) -> None:
    """Write the calibrated variant, with what is known of it in its papers."""
    first, sets = variant.comparisons[0], variant.sets
    files = {name: new.read(name) for name in new.manifest.files}
    summary = {
        "made_of": old.sha256,
        "photos": photos,
        "percentile": PERCENTILE,
        "split": variant.split,
        "sets": asdict(sets),
        "judged": asdict(first),
    }
    body = (
        f"The convolutions calculate with eight bits, scaled on {photos:,} training photos. On the "
        f"{sets.rows:,} photos of `{variant.split}`, `{first.rule}`: sets equal to those of the "
        f"float network for {sets.equal / sets.rows * 100:.1f} %, equal or one within the other "
        f"for {sets.nested / sets.rows * 100:.1f} %; hit rate {first.hit_rate.old:.4f} before, "
        f"{first.hit_rate.new:.4f} now; mean size {first.size.old:.3f} before, "
        f"{first.size.new:.3f} now."
    )
    files[CARD] = replace_section(read_papers(new).card, "Eight bits", body).encode()
    files[PROVENANCE] = _json({**new.read_object(PROVENANCE), "int8": summary})
    write_bundle(out, files, name=new.name, version=new.version, heads=new.heads)


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
