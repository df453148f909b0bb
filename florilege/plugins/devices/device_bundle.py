"""Open a bundle to export it for devices, with 16-bit weights if they keep its sets."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from florilege.calibration.calibrate import (
    BundleOutputs,
    agreement,
    calibrate_bundle,
    compare_outputs,
    differences,
    outputs_of,
)
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.calibration.rejection.rejection_rule import DEFAULT_SHARE
from florilege.calibration.view import PLAIN
from florilege.errors import UsageError, install_hint
from florilege.models.bundle import MODEL, Bundle, open_bundle, replace_files, unpacked_bundle
from florilege.models.session import Session
from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.terminal import say

LEAST_EQUAL: Final = 0.99
"""Share of the calibration photos that must have the same set with 16-bit weights."""


@contextmanager
def device_bundle(path: Path, data: str | None, split: str) -> Iterator[Pipeline]:
    """Open a bundle as devices run it.

    With ``data``, store its weights in 16 bits and calibrate new thresholds, unless this changes
    its sets on these photos. A line on stderr compares the sets.

    Raises:
        BundleError: The bundle is damaged or not calibrated.
        DataError: The photos cannot be used.
        UsageError: Its thresholds are for a precision that devices lack.
    """
    bundle = open_bundle(path)
    record = read_record(bundle, "onnxruntime")
    if record.measured.precision != "float32":
        raise UsageError(
            f"{path} is calibrated for {record.measured.precision}, which devices lack: run "
            f"`florilege calibrate {path} --data DATA --precision float32`"
        )
    folder = nullcontext(path) if data is None else _halved(bundle, record, data, split)
    with folder as opened:
        yield open_pipeline(opened, device="cpu", runtime="onnxruntime")


@contextmanager
def _halved(bundle: Bundle, record: CalibrationRecord, data: str, split: str) -> Iterator[Path]:
    """The folder of a copy with 16-bit weights, or of the bundle itself if the sets differ."""
    try:
        from florilege.models.onnx_graph import halve_weights
    except ModuleNotFoundError as error:
        raise UsageError(f"export with --data needs onnx: {install_hint('import')}") from error
    results = list[tuple[str, list[str]]]()

    def compare(ours: BundleOutputs) -> None:
        with closing(outputs_of(Session(bundle, device="cpu"), ours.photos)) as outputs:
            results.append(_compared(ours, BundleOutputs(bundle, record, outputs, ours.photos)))

    with unpacked_bundle(bundle.packed()) as folder, tempfile.TemporaryDirectory() as lists:
        replace_files(folder, {MODEL: halve_weights(bundle.read(MODEL))})
        settings = _settings(bundle, record, Path(lists))
        calibrate_bundle(folder, data, split, device="cpu", report=compare, **settings)
        sentence, reasons = results[0]
        say(sentence)
        if reasons:
            say(f"the weights keep 32 bits: {'; '.join(reasons)}")
        yield bundle.path if reasons else folder


def _compared(ours: BundleOutputs, theirs: BundleOutputs) -> tuple[str, list[str]]:
    change, (equal, nested) = compare_outputs(ours, theirs)[0], agreement(ours, theirs)
    reasons = differences(change, nested)
    same = f"{round(equal * change.rows):,} of the {change.rows:,} photos of {ours.outputs.split}"
    if equal < LEAST_EQUAL:
        reasons.append(f"the sets of {100 * LEAST_EQUAL:g} % must be the same")
    sentence = (
        f"16-bit weights give the same set for {same}; mean size {change.size.old:.3f} -> "
        f"{change.size.new:.3f}"
    )
    return sentence, reasons


def _settings(bundle: Bundle, record: CalibrationRecord, lists: Path) -> dict[str, Any]:
    """The settings of the calibration that wrote a record."""
    for region in record.lists:
        ids = "\n".join(bundle.classes.ids[place] for place in region.classes)
        (lists / f"{region.name}.txt").write_text(ids, "utf-8")
    automatic = record.measured.chose_head
    promised = record.point(PLAIN, record.setting("average_k", None, "probability"))
    return {
        "ks": record.asked_k,
        "coverages": record.asked_coverage,
        "min_size": promised.min_size,
        "macro_weight": record.macro_weight,
        "head": None if automatic else record.head,
        "score_kind": None if automatic else record.score_kind,
        "temperatures": None if automatic else (record.temperature,),
        "rejection_method": "none" if record.rejection is None else "auto",
        "suspect_share": DEFAULT_SHARE if record.rejection is None else record.rejection.share,
        "delta": promised.delta,
        "max_size": promised.max_size,
        "list_files": (str(lists),) if record.lists else (),
    }
