"""A bundle as devices have it: with 16-bit weights if they keep its sets, and as a pack.

The pack holds what a device needs to answer as the server does: plain data for JSON, and arrays.
"""

import hashlib
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate import (
    BundleOutputs,
    agreement,
    calibrate_bundle,
    compare_outputs,
    differences,
    outputs_of,
)
from florilege.calibration.record import CalibrationRecord, OperatingPoint, Served
from florilege.calibration.record.record_file import read_record
from florilege.calibration.rules import RULES, usual_guarantee
from florilege.calibration.view import PLAIN, Setting, View
from florilege.errors import UsageError, install_hint
from florilege.models.bundle import MODEL, Bundle, open_bundle, replace_files, unpacked_bundle
from florilege.models.runtime import refuse_files
from florilege.models.session import Session
from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.server.http.model_card import Point
from florilege.terminal import say

LEAST_EQUAL: Final = 0.99
"""Share of the calibration photos that must have the same set with 16-bit weights."""
_SMALL: Final = 2**15  # numbers; smaller tensors, a tenth of all weights, keep 32 bits


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
    results = list[tuple[str, list[str]]]()

    def compare(ours: BundleOutputs) -> None:
        with closing(outputs_of(Session(bundle, device="cpu"), ours.photos)) as outputs:
            results.append(_compared(ours, BundleOutputs(bundle, record, outputs, ours.photos)))

    with unpacked_bundle(bundle.packed()) as folder, tempfile.TemporaryDirectory() as lists:
        replace_files(folder, {MODEL: _halve_weights(bundle.read(MODEL))})
        settings = _settings(bundle, record, Path(lists))
        calibrate_bundle(folder, data, split, device="cpu", report=compare, **settings)
        sentence, reasons = results[0]
        say(sentence)
        if reasons:
            say(f"the weights keep 32 bits: {'; '.join(reasons)}")
        yield bundle.path if reasons else folder


def _halve_weights(model: bytes) -> bytes:
    """The same graph with large weights as int16, a scale for each row, and nodes to widen them.

    Logits of an EfficientNet-Lite0 change by a sixth of what float16 changes. Raises
    `BundleError` if the graph names files, which the package `onnx` would read.
    """
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ModuleNotFoundError as error:
        raise UsageError(f"export with --data needs onnx: {install_hint('import')}") from error
    refuse_files(model)
    proto = onnx.load_from_string(model)
    graph, nodes = proto.graph, list[onnx.NodeProto]()
    inputs = {value.name for value in graph.input}  # defaults of inputs, in old graphs
    for tensor in list(graph.initializer):
        if tensor.data_type != TensorProto.FLOAT or tensor.name in inputs or len(tensor.dims) < 2:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size < _SMALL or not np.isfinite(values).all():
            continue
        name, (stored, scales) = tensor.name, _rounded(values)
        tensor.CopyFrom(numpy_helper.from_array(stored, f"{name}/int16"))
        graph.initializer.append(numpy_helper.from_array(scales, f"{name}/scales"))
        cast = helper.make_node("Cast", [f"{name}/int16"], [f"{name}/wide"], to=TensorProto.FLOAT)
        nodes += [cast, helper.make_node("Mul", [f"{name}/wide", f"{name}/scales"], [name])]
    # In front of all others: ONNX wants a tensor computed before it is read.
    for place, node in enumerate(nodes):
        graph.node.insert(place, node)
    return bytes(proto.SerializeToString(deterministic=True))


def _rounded(values: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """Integers and scales, ``(rows, 1, ...)``, whose product is nearest to ``values``."""
    largest = np.abs(values).max(axis=tuple(range(1, values.ndim)), keepdims=True)
    scales = np.where(largest > 0, largest / np.iinfo(np.int16).max, 1).astype(np.float32)
    return np.rint(values / scales.astype(np.float64)).astype(np.int16), scales


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
        **(
            {"rejection_method": "none"}
            if record.rejection is None
            else {"suspect_share": record.rejection.share}
        ),
        "delta": promised.delta,
        "max_size": promised.max_size,
        "list_files": (str(lists),) if record.lists else (),
    }


Plain = dict[str, Any]
Binary = tuple[Plain, bytes]
"""The shapes of some arrays, and their bytes one after the other, little-endian."""

FORMAT: Final = 1


def device_pack(pipeline: Pipeline, contents: MutableMapping[str, bytes]) -> Plain:
    """Everything but the network: thresholds, classes and preprocessing; arrays go to ``contents``.

    The keys are part of the format of ``pack.json``, see docs/offline.md. They also say where each
    array is; null for one that is missing.
    """
    bundle, record = pipeline.bundle, pipeline.record
    arrays = {
        kind: {**shapes, **named_file(contents, content, kind)}
        for kind, (shapes, content) in _arrays(pipeline).items()
    }
    return {
        "format": FORMAT,
        "model": pipeline.model.model_dump(),
        "output": bundle.heads[record.head],
        "preprocess": asdict(bundle.preprocess),
        "calibration": _calibration(record),
        "classes": [asdict(item) for item in bundle.classes],
        "reference": None,
        "occurrences": None,
        **arrays,
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
        "min_size": table.min_size,
        "max_size": points[0].max_size,
        "weighted": RULES[of_rule.rule].balanced,
        "class_thresholds": [one.thresholds().tolist() for one in of_rule.by_class] or None,
        "points": [
            {
                **Point.of(point, **point.estimates).model_dump(by_alias=True),
                "guaranteed": point.guaranteed,
                "reasons": list(point.certificate.reasons),
                "hit_rates_by_size": _hit_rates_by_size(point),
            }
            for point in points
        ],
    }


def _hit_rates_by_size(point: OperatingPoint) -> list[list[float] | None]:
    """How often sets in each bin of sizes were right: share, ends of its interval, sets."""
    shares = (point.hit_rate_at_size(edge) for edge in point.size_bins[: len(point.counts.sizes)])
    return [
        None if share is None else [*(round(x, 6) for x in (share.value, *share.ci95)), share.rows]
        for share in shares
    ]


def _weights(record: CalibrationRecord, list_name: str | None) -> list[float] | None:
    """The weights of the balanced rules for all classes, or those of a list; None without them."""
    for key, served in record.served.items():
        if RULES[key.rule].balanced and key.view == View(list=list_name):
            setting = Setting(key.rule, served.thresholds.values[0], key.guarantee)
            weights = record.point(key.view, setting).class_weights
            return None if weights is None else weights.tolist()
    return None


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
    if (occurrences := pipeline.planner.occurrences) is not None:
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
