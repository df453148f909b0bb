"""The calibration files of a bundle: read, written with its model card and metrics, inspected.

:func:`card`, :func:`verification` and :func:`difference` give the content of a bundle, faults in
its files, and what differs between two, as plain data.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.operating_point import Row
from florilege.calibration.reference import Reference
from florilege.calibration.scores import score_name
from florilege.calibration.threshold import threshold_text
from florilege.calibration.view import PLAIN, Setting
from florilege.errors import BundleError
from florilege.models.bundle import (
    CALIBRATION,
    MODEL,
    OCCURRENCES,
    OPENVINO_CALIBRATION,
    OPENVINO_REFERENCE,
    REFERENCE,
    Bundle,
    BundleFolder,
    open_bundle,
)
from florilege.models.regions import Occurrences
from florilege.models.runtime import RuntimeName
from florilege.models.session import Session

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


def _parse_record(bundle: Bundle, runtime: RuntimeName | None = None) -> CalibrationRecord:
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
    record = _parse_record(bundle, runtime)
    model = (len(bundle.classes), bundle.manifest.files[MODEL])
    heads, rule = {record.head}, record.rejection
    while rule is not None:
        heads.add(rule.head)
        rule = rule.by_logits
    if (record.classes, record.measured.model_sha256) != model or heads - {*bundle.heads}:
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
    if (noise := measured.label_noise) is not None:
        section += ["", f"Hit rates assume that {noise.rate:.1%} of the labels were replaced."]
    return {
        CALIBRATIONS[measured.runtime]: record.to_json().encode(),
        CARD: _with_section(card, "\n".join(section)).encode(),
        METRICS: json.dumps({**metrics, "calibration": calibration}, indent=1).encode(),
    }


def selection_note(record: CalibrationRecord) -> str:
    """The expected hit rate where these photos chose something; empty where they did not."""
    measured, choice = record.measured, record.selection
    compared = [f"{choice.candidates} ways to compute scores"] if measured.chose_head else []
    if (networks := measured.networks or 1) > 1:
        compared.append(f"{networks} networks")
    if not compared:
        return ""
    note = (
        f"these photos also chose the best of {' and of '.join(compared)}, so their hit rates are "
        "a little too good"
    )
    if choice.honest_ci95 is None:
        return note
    low, high = choice.honest_ci95
    expected = f"{low:.4f} to {high:.4f} (95 %)"
    if choice.honest_hit_rate is not None:
        expected = f"{choice.honest_hit_rate:.4f} (95 %: {low:.4f} to {high:.4f})"
    return f"{note}: on other photos expect {expected} at K = {choice.k:g}"


def _with_section(card: str, section: str) -> str:
    """The card with this section in place of the one with the same title, or after its end."""
    pattern = re.compile(rf"^{_TITLE}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if pattern.search(card):
        # A function, because a backslash in a replacement text would be an escape.
        return pattern.sub(lambda _: f"{section}\n\n", card, count=1).rstrip("\n") + "\n"
    return f"{card.rstrip()}\n\n{section}".strip() + "\n"


def _line(row: Row) -> str:
    threshold, hits = threshold_text(row.lambda_val), "not measured | "
    if row.hit_rate is not None:
        hits = f"{row.hit_rate:.4f} | {row.hit_low:.4f} to {row.hit_high:.4f}"
    return f"| {row.value:g} | {threshold} | {row.size:.3f} | {hits} |"


PROVENANCE = "provenance.json"
_SERVED = ("calibration_id", "created", "head", "score_kind", "temperature")
MEASURED = ("runtime", "precision", "split", "rows")
SHOWN = ("value", "lambda_val", "size", "hit_rate")


def card(bundle: Bundle) -> dict[str, Any]:
    """An overview of a bundle; BundleError if one of its JSON files is damaged."""
    counts = bundle.classes.counts
    return {
        "name": bundle.manifest.name,
        "version": bundle.manifest.version,
        "created": bundle.manifest.created,
        "bundle_sha256": bundle.sha256,
        "path": str(bundle.path),
        "heads": dict(bundle.heads),
        "image_size": bundle.preprocess.image_size,
        "classes": {
            "count": len(bundle.classes),
            "genera": len({info.genus for info in bundle.classes if info.genus}),
            "training_images": None if counts is None else int(counts.sum()),
        },
        "calibration": _calibration(bundle),
        "metrics": _plain(bundle, METRICS),
        "provenance": _plain(bundle, PROVENANCE),
        "files": {
            name: {"bytes": bundle.path_of(name).stat().st_size, "sha256": digest}
            for name, digest in bundle.manifest.files.items()
        },
    }


def verification(path: Path) -> dict[str, Any]:
    """Whether a bundle is intact: ``files``, the fault of each file or None; ``opening``; ``ok``.

    ``opening`` says why a bundle with intact files does not open, None if it does: its network on
    the CPU must fit the classes, the preprocessing and the calibration, if there is one.

    Raises:
        BundleError: ``bundle.json`` is missing, damaged or of a newer schema.
        UsageError: ONNX Runtime is missing or installed twice.
    """
    folder = BundleFolder(path)
    files = folder.read_manifest().files
    faults = {name: _fault(folder.find_file, name, sha) for name, sha in files.items()}
    error = None if any(faults.values()) else _fault(_open, path)
    return {"ok": not any((*faults.values(), error)), "files": faults, "opening": error}


def difference(one: Bundle, other: Bundle) -> dict[str, Any]:
    """The changes from ``one`` to ``other``; BundleError if a JSON file of either is damaged."""
    metrics = [dict(_numbers(bundle.read_object(METRICS))) for bundle in (one, other)]
    return {
        **{side: _identity(bundle) for side, bundle in (("a", one), ("b", other))},
        "same": one.sha256 == other.sha256,
        "classes": _class_changes(one, other),
        "heads": [dict(one.heads), dict(other.heads)],
        "preprocess_changed": one.preprocess != other.preprocess,
        "lambda": _changes("k", _average_k(one), _average_k(other)),
        "metrics": [change for change in _changes("name", *metrics) if change["a"] != change["b"]],
        "files": _file_changes(one.manifest.files, other.manifest.files),
    }


def _identity(bundle: Bundle) -> dict[str, str]:
    manifest = bundle.manifest
    return {"name": manifest.name, "version": manifest.version, "bundle_sha256": bundle.sha256}


def _open(path: Path) -> None:
    bundle = open_bundle(path)
    session = Session(bundle, device="cpu")
    for runtime in calibrated_runtimes(bundle):
        open_reference(bundle, read_record(bundle, runtime), session.dimensions)


def _fault(check: Callable[..., object], *arguments: object) -> str | None:
    try:
        check(*arguments)
    except BundleError as error:
        return str(error)
    return None


def _plain(bundle: Bundle, name: str) -> dict[str, Any] | None:
    """A JSON file of the bundle; None where it lacks that file."""
    return bundle.read_object(name) if bundle.has(name) else None


def _calibration(bundle: Bundle) -> dict[str, Any] | None:
    """The served head and scores, and the thresholds of each rule by K or coverage."""
    if not bundle.has(CALIBRATION):
        return None
    record = _parse_record(bundle)
    return {
        **{name: getattr(record, name) for name in _SERVED},
        **{name: getattr(record.measured, name) for name in MEASURED},
        "asked_k": record.asked_k,
        "asked_coverage": record.asked_coverage,
        "lists": [
            {"name": region.name, "classes": len(region.classes), "rows": region.rows}
            for region in record.lists
        ],
        "rules": _rules(record),
    }


def _rules(record: CalibrationRecord) -> dict[str, list[dict[str, Any]]]:
    """Thresholds by rule; the name of a rule's second table includes its guarantee."""
    points_by_rule: dict[str, list[dict[str, Any]]] = {}
    for key, served in record.served.items():
        if key.view.single:
            name = f"{key.rule}, {key.guarantee}" if key.rule in points_by_rule else key.rule
            settings = (Setting(key.rule, k, key.guarantee) for k in served.thresholds.values)
            rows = (record.point(PLAIN, setting).row for setting in settings)
            points_by_rule[name] = [{field: getattr(row, field) for field in SHOWN} for row in rows]
    return points_by_rule


def _class_changes(one: Bundle, other: Bundle) -> dict[str, Any]:
    before, after = one.classes.ids, other.classes.ids
    common = [name for name in before if name in other.classes.index_of]
    return {
        "added": [name for name in after if name not in one.classes.index_of],
        "removed": [name for name in before if name not in other.classes.index_of],
        "reordered": common != [name for name in after if name in one.classes.index_of],
    }


def _changes(key: str, one: Mapping[Any, Any], other: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """The values in both for each key of either; None where it is missing."""
    return [
        {key: name, "a": one.get(name), "b": other.get(name)} for name in sorted({**one, **other})
    ]


def _average_k(bundle: Bundle) -> dict[float, float | None]:
    if not bundle.has(CALIBRATION):
        return {}
    record = _parse_record(bundle)
    return {
        k: record.point(PLAIN, record.setting("average_k", k)).lambda_val
        for k in record.values("average_k")
    }


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Each number inside nested JSON, with its dotted name."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _numbers(entry, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _numbers(entry, f"{name}.{index}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def _file_changes(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, list[str]]:
    return {
        "added": sorted(other.keys() - one.keys()),
        "removed": sorted(one.keys() - other.keys()),
        "changed": sorted(name for name in one.keys() & other if one[name] != other[name]),
    }
