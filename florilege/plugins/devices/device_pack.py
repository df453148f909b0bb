"""What a device needs to answer as the server does: plain data for JSON, and raw arrays."""

import hashlib
from collections.abc import MutableMapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from florilege.calibration.record import CalibrationRecord, Served
from florilege.calibration.rules import RULES, usual_guarantee
from florilege.calibration.view import Setting, View
from florilege.hooks import MARKER
from florilege.server.answers.pipeline import Pipeline
from florilege.server.http.model_card import Point

Plain = dict[str, Any]
Binary = tuple[Plain, bytes]
"""The shapes of some arrays, and their bytes one after the other, little-endian."""

FORMAT: Final = 1
PACK: Final = MARKER
"""Name of the file; a folder that holds it is an earlier export."""


def device_pack(pipeline: Pipeline) -> Plain:
    """Everything but the network and the arrays: thresholds, classes and preprocessing.

    The keys are part of the format of ``pack.json``, see docs/offline.md.
    """
    bundle, record = pipeline.bundle, pipeline.record
    return {
        "format": FORMAT,
        "model": pipeline.model.model_dump(),
        "output": bundle.heads[record.head],
        "preprocess": asdict(bundle.preprocess),
        "calibration": _calibration(record),
        "classes": [asdict(item) for item in bundle.classes],
    }


def _calibration(record: CalibrationRecord) -> Plain:
    prior = record.place_prior
    return {
        "head": record.head,
        "score_kind": record.score_kind,
        "temperature": record.temperature,
        "default_k": record.default_k,
        "default_coverage": next(iter(record.asked_coverage), None),
        "class_weights": _weights(record, None),
        "lists": [
            {
                "name": region.name,
                "classes": list(region.classes),
                "class_weights": _weights(record, region.name),
            }
            for region in record.lists
        ],
        "place_strength": 0.0 if prior is None else prior.strength,
        "prior": record.prior.tolist(),
        "size_bins": list(record.size_bins),
        "split": record.measured.split,
        "selection_split": record.measured.selection_split,
        "rejection": None if record.rejection is None else asdict(record.rejection),
        "tables": [_table(record, served) for served in record.served.values()],
    }


def _table(record: CalibrationRecord, served: Served) -> Plain:
    table, of_rule = served
    settings = (Setting(of_rule.rule, value, of_rule.guarantee) for value in of_rule.values)
    points = [record.point(table.view, setting) for setting in settings]
    return {
        "rule": of_rule.rule,
        "guarantee": of_rule.guarantee,
        "usual": of_rule.guarantee == usual_guarantee(of_rule.rule),
        "images": table.view.photos,
        "list": table.view.list,
        "place": table.view.place,
        "fusion": table.scoring.fusion,
        "made_from": table.made_from,
        "label_noise": None if table.label_noise is None else asdict(table.label_noise),
        "rows": table.rows,
        "min_size": table.min_size,
        "max_size": points[0].max_size,
        "weighted": RULES[of_rule.rule].balanced,
        "class_thresholds": [one.thresholds().tolist() for one in of_rule.by_class] or None,
        "points": [
            {
                **Point.of(point, **point.estimates).model_dump(by_alias=True),
                "guaranteed": point.guaranteed,
                "reasons": list(point.certificate.reasons),
                "rows_by_size": list(point.row.size_histogram),
                "hits_by_size": list(point.row.hit_histogram),
                "hit_rows": point.row.hit_rows,
            }
            for point in points
        ],
    }


def _weights(record: CalibrationRecord, list_name: str | None) -> list[float] | None:
    """The weights of the balanced rules for all classes, or those of a list; None without them."""
    for key, served in record.served.items():
        if RULES[key.rule].balanced and key.view == View(list=list_name):
            setting = Setting(key.rule, served.thresholds.values[0], key.guarantee)
            weights = record.point(key.view, setting).class_weights
            return None if weights is None else weights.tolist()
    return None


def add_arrays(pack: Plain, contents: MutableMapping[str, bytes], pipeline: Pipeline) -> None:
    """Add the arrays to the files, and to the pack where each is; null for one that is missing."""
    pack |= {"reference": None, "occurrences": None}
    for kind, (shapes, content) in _arrays(pipeline).items():
        pack[kind] = {**shapes, **named_file(contents, content, kind)}


def named_file(contents: MutableMapping[str, bytes], content: bytes, kind: str) -> Plain:
    """Add a file named after its hash, and return its path, size and hash."""
    digest = hashlib.sha256(content).hexdigest()
    path = f"{digest[:12]}.{kind}"
    contents[path] = content
    return {"path": path, "bytes": len(content), "sha256": digest}


def _arrays(pipeline: Pipeline) -> dict[str, Binary]:
    """The arrays that the pipeline has, by name.

    ``reference``, the features that familiarity compares with, is float32 axes, then float16
    directions. ``occurrences``, the table of places, is float64 weights, int32 bounds and classes,
    int8 months.
    """
    arrays: dict[str, Binary] = {}
    if (reference := pipeline.reference) is not None:
        shapes = {"axes": list(reference.axes.shape), "photos": len(reference.directions)}
        parts = reference.axes.astype("<f4"), reference.directions.astype("<f2")
        arrays["reference"] = shapes, b"".join(part.tobytes() for part in parts)
    if (occurrences := pipeline.places.occurrences) is not None:
        bounds = np.searchsorted(occurrences.region, np.arange(len(occurrences.regions) + 1))
        columns = (
            occurrences.weight.astype("<f8"),
            bounds.astype("<i4"),
            occurrences.class_index.astype("<i4"),
            occurrences.month.astype("<i1"),
        )
        description = {
            "regions": list(occurrences.regions),
            "classes": occurrences.classes,
            "entries": len(occurrences.weight),
            "cell_degrees": occurrences.cell_degrees,
        }
        arrays["occurrences"] = description, b"".join(column.tobytes() for column in columns)
    return arrays
