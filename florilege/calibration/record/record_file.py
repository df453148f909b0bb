"""Read the calibration files of a bundle, and write them with its model card and metrics."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from florilege.calibration.record.figures import Row
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.rejection.reference import Reference
from florilege.calibration.scores import score_name
from florilege.calibration.threshold import threshold_text
from florilege.calibration.view import PLAIN
from florilege.errors import BundleError
from florilege.models.bundle.bundle import (
    CALIBRATION,
    MODEL,
    OCCURRENCES,
    OPENVINO_CALIBRATION,
    OPENVINO_REFERENCE,
    REFERENCE,
    Bundle,
)
from florilege.models.occurrences import Occurrences
from florilege.models.runtime import RuntimeName

_RuntimeFiles = Mapping[RuntimeName, str]
CALIBRATIONS: _RuntimeFiles = {"onnxruntime": CALIBRATION, "openvino": OPENVINO_CALIBRATION}
REFERENCES: _RuntimeFiles = {"onnxruntime": REFERENCE, "openvino": OPENVINO_REFERENCE}
METRICS = "metrics.json"
CARD = "MODEL_CARD.md"
_TITLE = "## Calibration"  # of the section of the model card that a calibration writes
Value = TypeVar("Value")


def parse_file(bundle: Bundle, name: str, parse: Callable[[bytes], Value], remedy: str) -> Value:
    """The parsed content of a file of a bundle; BundleError with the remedy if it is damaged."""
    try:
        return parse(bundle.read(name))
    except ValueError as error:
        raise BundleError(f"{name} of {bundle.path} is damaged ({error}): {remedy}") from error


def calibrated_runtimes(bundle: Bundle) -> list[RuntimeName]:
    """The runtimes that a bundle is calibrated for; the server uses the last one."""
    return [runtime for runtime, file in CALIBRATIONS.items() if bundle.has(file)]


def parse_record(bundle: Bundle, runtime: RuntimeName | None = None) -> CalibrationRecord:
    """Read a calibration like :func:`read_record`, without checking that it is of the network."""
    name = CALIBRATIONS[runtime or calibrated_runtimes(bundle)[-1]]
    try:
        return CalibrationRecord.from_json(bundle.read(name))
    except BundleError as error:
        raise BundleError(f"{bundle.path}: {error}") from error


def read_record(bundle: Bundle, runtime: RuntimeName | None = None) -> CalibrationRecord:
    """Read the calibration of a bundle: for a runtime, by default the one that serves.

    Raises:
        BundleError: There is none, it is damaged, or it belongs to another network.
    """
    runtimes = calibrated_runtimes(bundle)
    if not runtimes or runtime not in (None, *runtimes):
        flag, target = (f" --runtime {runtime}", f" for {runtime}") if runtime else ("", "")
        raise BundleError(
            f"{bundle.path} is not calibrated{target}: "
            f"run `florilege calibrate {bundle.path} --data DATA{flag}`"
        )
    record = parse_record(bundle, runtime)
    model = (len(bundle.classes), bundle.manifest.files[MODEL])
    if (record.classes, record.measured.model_sha256) != model or record.head not in bundle.heads:
        raise BundleError(
            f"{CALIBRATIONS[record.measured.runtime]} of {bundle.path} belongs to another network "
            f"than its {MODEL}: run `florilege calibrate {bundle.path} --data DATA`"
        )
    return record


def open_occurrences(bundle: Bundle, record: CalibrationRecord | None = None) -> Occurrences | None:
    """Read the table of occurrences of a bundle; None if it has none.

    Raises:
        BundleError: It is damaged, or not the one of the calibration ``record``.
    """
    if not bundle.has(OCCURRENCES) or (record is not None and record.place_prior is None):
        return None
    remedy = f"run `florilege calibrate {bundle.path} --data DATA --occurrences FILE`"
    occurrences = parse_file(bundle, OCCURRENCES, Occurrences.of_bytes, remedy)
    prior = None if record is None else record.place_prior
    if prior is not None and prior.occurrences_sha256 != bundle.manifest.files[OCCURRENCES]:
        raise BundleError(f"{bundle.path} is calibrated for another {OCCURRENCES}: calibrate again")
    return occurrences


def open_reference(
    bundle: Bundle, record: CalibrationRecord, dimensions: int | None
) -> Reference | None:
    """Read the reference that the rejection rule needs; None if it needs none.

    ``dimensions`` is the number of features that the graph outputs, None for no features.

    Raises:
        BundleError: The reference is missing or damaged, or of another calibration or graph.
    """
    if record.rejection is None or record.rejection.reference_sha256 is None:
        return None
    name = REFERENCES[record.measured.runtime]
    if bundle.manifest.files.get(name) != record.rejection.reference_sha256:
        raise BundleError(f"{bundle.path} lacks the {name} of its calibration: calibrate it again")
    remedy = "calibrate the bundle again"
    reference = parse_file(bundle, name, Reference.of_bytes, remedy)
    if reference.dimensions != dimensions:
        raise BundleError(
            f"{name} of {bundle.path} holds features of {reference.dimensions} numbers, the "
            f"graph outputs {dimensions or 'none'}: {remedy}"
        )
    return reference


def read_card_files(bundle: Bundle) -> tuple[str, Mapping[str, Any]]:
    """Read the model card, with a title if there is none, and metrics; BundleError if damaged."""
    card = bundle.read(CARD) if bundle.has(CARD) else f"# {bundle.manifest.name}\n".encode()
    try:
        return card.decode(), bundle.read_object(METRICS)
    except UnicodeDecodeError as error:
        raise BundleError(f"{bundle.path / CARD} is damaged: export the bundle again") from error


def updated_files(
    card: str, metrics: Mapping[str, Any], record: CalibrationRecord
) -> dict[str, bytes]:
    """The files that a new calibration changes, with the rest of their content unchanged."""
    rows = [record.point(PLAIN, record.setting("average_k", k)).row for k in sorted(record.asked_k)]
    measured = record.measured
    figures = [
        {"k": row.value, "mean_set_size": row.size, "hit_rate": row.hit_rate} for row in rows
    ]
    calibration = {"split": measured.split, "rows": measured.rows, "average_k": figures}
    section = [
        _TITLE,
        f"\nCalibrated on the {measured.rows:,} photos of the split `{measured.split}`, head "
        f"`{record.head}`, scores `{score_name(record.score_kind, record.temperature)}`.",
        "",
        "| K | lambda | mean size | hit rate | 95 % interval |",
        "|---|---|---|---|---|",
        *map(_line, rows),
    ]
    if note := selection_note(record):
        section += ["", f"{note}."]
    return {
        CALIBRATIONS[measured.runtime]: record.to_json().encode(),
        CARD: _with_section(card, "\n".join(section)).encode(),
        METRICS: json.dumps({**metrics, "calibration": calibration}, indent=1).encode(),
    }


def selection_note(record: CalibrationRecord) -> str:
    """The expected hit rate where these photos chose head and scores; empty if they did not."""
    measured, choice = record.measured, record.selection
    if not measured.chose_head:
        return ""
    low, high = choice.honest_ci95
    overlap = "; some also trained or chose the network" if measured.chose_checkpoint else ""
    return (
        f"these photos also chose the best of {choice.candidates} ways to compute scores, so their "
        f"hit rates are a little too good: on other photos expect {choice.honest_hit_rate:.4f} "
        f"(95 %: {low:.4f} to {high:.4f}) at K = {choice.k:g}{overlap}"
    )


def _with_section(card: str, section: str) -> str:
    """The card with this section in place of the one with the same title, or after its end."""
    pattern = re.compile(rf"^{_TITLE}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if pattern.search(card):
        return pattern.sub(lambda _: f"{section}\n\n", card, count=1).rstrip("\n") + "\n"
    return f"{card.rstrip()}\n\n{section}".strip() + "\n"


def _line(row: Row) -> str:
    threshold, hits = threshold_text(row.lambda_val), "not measured | "
    if row.hit_rate is not None:
        hits = f"{row.hit_rate:.4f} | {row.hit_low:.4f} to {row.hit_high:.4f}"
    return f"| {row.value:g} | {threshold} | {row.size:.3f} | {hits} |"
