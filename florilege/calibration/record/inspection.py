"""The content of a bundle, faults in its files, and differences of two bundles, as plain data."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.record.record_file import (
    METRICS,
    calibrated_runtimes,
    open_reference,
    parse_record,
    read_record,
)
from florilege.calibration.view import PLAIN, Setting
from florilege.errors import BundleError
from florilege.models.bundle.bundle import CALIBRATION, Bundle, open_bundle
from florilege.models.bundle.staging import BundleFolder
from florilege.models.session import Session

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
    record = parse_record(bundle)
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
    record = parse_record(bundle)
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
