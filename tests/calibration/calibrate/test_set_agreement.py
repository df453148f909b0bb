from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from florilege.calibration.calibrate.calibrate import calibrate_bundle
from florilege.calibration.calibrate.gate import compare_runtimes, differences
from florilege.calibration.calibrate.photo_outputs import bundle_outputs
from florilege.calibration.comparison import Comparison, compare
from florilege.models.bundle import replace_files
from tests.calibration.small_bundle import CLASSES, make_bundle, make_data
from tests.calibration.test_comparison import pair


def changed(gained: int = 0, lost: int = 0, size: float = 3.0) -> Comparison:
    """Two bundles on 1,000 photos; sets of 3 become ``size`` on average."""
    result = compare(*pair(gained, lost, 900, 100 - gained - lost))
    return replace(
        result, size=replace(result.size, old=3.0, new=size, difference=size - result.size.old)
    )


def test_nothing_to_say_of_the_same_sets() -> None:
    assert differences(changed(), 1.0) == []


@pytest.mark.parametrize(
    ("change", "nested", "word"),
    [
        (changed(lost=3), 1.0, "hit rate 0.9030 -> 0.9000"),
        (changed(size=3.031), 1.0, "mean set size 3.000 -> 3.031"),
        (changed(size=2.969), 1.0, "mean set size 3.000 -> 2.969"),
        (changed(), 0.989, "98.9 % of the sets are equal or one"),
    ],
)
def test_each_figure_alone_refuses(change: Comparison, nested: float, word: str) -> None:
    (sentence,) = differences(change, nested)
    assert sentence.startswith(word)


def test_what_is_allowed_is_allowed() -> None:
    assert differences(changed(lost=2, size=3.029), 0.99) == []
    assert differences(changed(gained=50), 1.0) == []  # more hits are no reason


def test_sets_are_compared_photo_by_photo(tmp_path: Path) -> None:
    data = str(make_data(tmp_path / "d", rows=9))
    make_bundle(tmp_path / "old")
    shaken = make_bundle(tmp_path / "new")
    graph = onnx.load_from_string(shaken.read("model.onnx"))
    (offsets,) = (each for each in graph.graph.initializer if each.name == "offsets")
    moved = numpy_helper.to_array(offsets) + np.array([0, 5, -5, 9, -9, 2], np.float32) * 900
    offsets.CopyFrom(numpy_helper.from_array(moved, "offsets"))
    replace_files(shaken.path, {"model.onnx": graph.SerializeToString()})
    calibrate_bundle(tmp_path / "old", data, ks=[2, 3])
    calibrate_bundle(tmp_path / "new", data, ks=[2])
    with (
        bundle_outputs(tmp_path / "old", data, "test") as old,
        bundle_outputs(tmp_path / "new", data, "test") as new,
    ):
        result, _ = compare_runtimes(new, old)
        mirrored, _ = compare_runtimes(old, new)
        same, reasons = compare_runtimes(old, old)
        agreements = []
        for each in (new, old):
            ((logits,), _), = each.outputs.blocks(each.record.head)  # fmt: skip
            scores = each.record.scores(logits)
            point = each.record.point("average_k", k=3)
            rows = [{c for c in range(CLASSES) if s[c] >= point.lambda_val} for s in scores]
            agreements.append(
                [row | {int(np.argmax(s))} for row, s in zip(rows, scores, strict=True)]
            )
    pairs = list(zip(*agreements, strict=True))
    photos = 9 * CLASSES
    equal = sum(ours == theirs for ours, theirs in pairs)
    nested = sum(ours <= theirs or theirs <= ours for ours, theirs in pairs)
    assert len(pairs) == photos > nested > equal
    shares = f"{100 * equal / photos:.1f} %, equal or one within the other for "
    for sentence in (result, mirrored):
        assert f"the {photos} photos" in sentence
        assert shares + f"{100 * nested / photos:.1f} %;" in sentence
    assert "for 100.0 %, equal or one within the other for 100.0 %;" in same
    assert reasons == []
