"""Two bundles on the same photos, and the gate, through the command."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks.promises import false_alarms
from florilege.calibration.calibrate import calibrate_bundle, photo_outputs
from florilege.calibration.calibrate import gate as gate_module
from florilege.calibration.calibrate.gate import (
    Gate,
    compare_outputs,
    compare_runtimes,
    differences,
)
from florilege.calibration.calibrate.photo_outputs import SplitOutputs, bundle_outputs, outputs_of
from florilege.calibration.comparison import Comparison, compare
from florilege.calibration.record.record_file import read_record
from florilege.calibration.scores import scores
from florilege.calibration.view import PLAIN
from florilege.data.sources import open_dataset
from florilege.errors import BundleError, DataError, GateFailed, UsageError
from florilege.models.bundle import open_bundle, replace_files
from florilege.models.images import load
from florilege.models.session import Session
from tests.calibration.command_line import run, usage_error
from tests.calibration.small_bundle import CLASSES, make_bundle, make_data
from tests.calibration.test_comparison import pair

ROWS = 25


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data ``d`` and calibrated bundles: ``good``, ``blunt`` (one score for all) and ``bad``."""
    root = tmp_path_factory.mktemp("gate")
    data = str(make_data(root / "d", rows=ROWS))
    calibrate_bundle(make_bundle(root / "good").path, data, ks=[1, 2])
    calibrate_bundle(make_bundle(root / "same").path, data, ks=[1, 2])
    bad = make_bundle(root / "bad")
    # the classes turned by one: every photo is called by the name of another species
    turned = json.loads(bad.read("classes.json"))
    replace_files(bad.path, {"classes.json": json.dumps(turned[1:] + turned[:1]).encode()})
    calibrate_bundle(bad.path, data, ks=[1, 2])
    return root


def evaluate(folder: Path, bundle: str, *flags: str) -> tuple[int, str, BaseException | None]:
    result = run("evaluate", folder / bundle, "--data", folder / "d", *flags)
    return result.exit_code, result.stdout, result.exception


def test_each_bundle_scores_the_photos_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[str]()

    def counted(session: Session, *args: Any, **options: Any) -> SplitOutputs:
        looked.append(session.bundle.path.name)
        return outputs_of(session, *args, **options)

    monkeypatch.setattr(photo_outputs, "outputs_of", counted)
    alone = [
        json.loads(evaluate(folder, "bad", *flags, "--json")[1])
        for flags in ([], ["--baseline", str(folder / "good")])
    ]
    looked.clear()
    flags = ("--baseline", str(folder / "good"), "--json")
    code, text, _ = evaluate(folder, "bad", *flags)
    together = json.loads(text)
    assert looked == ["bad", "good"]
    assert (code, together["gate"]) == (0, None)  # without a gate nothing is stopped
    assert together == alone[0] | alone[1]
    assert together["against"]


def test_bundles_that_cannot_be_compared_are_refused_before_any_photo_is_scored(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(tmp_path / "bare")
    broken = make_bundle(tmp_path / "broken")
    replace_files(broken.path, {"model.onnx": b"no graph"})
    plain = json.loads(open_bundle(folder / "good").read("calibration.json"))
    plain["measured"]["model_sha256"] = open_bundle(broken.path).manifest.files["model.onnx"]
    replace_files(broken.path, {"calibration.json": json.dumps(plain).encode()})
    foreign = make_bundle(tmp_path / "foreign")
    renamed = foreign.read("classes.json").replace(b'"c5"', b'"another"')
    replace_files(foreign.path, {"classes.json": renamed})
    replace_files(
        foreign.path, {"calibration.json": (folder / "good/calibration.json").read_bytes()}
    )
    monkeypatch.setattr(photo_outputs, "outputs_of", None)
    for name, kind, message in (
        ("bare", BundleError, "is not calibrated"),
        ("broken", BundleError, "cannot be loaded"),
        ("foreign", DataError, r"foreign cannot be compared .* 1 class id of test .*'c5'"),
    ):
        _, _, error = evaluate(folder, "good", "--baseline", str(tmp_path / name))
        assert isinstance(error, kind)
        assert re.search(message, str(error))


def gate_file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_gate_judges_the_default_k_or_nothing(folder: Path, tmp_path: Path) -> None:
    older = calibrate_bundle(make_bundle(tmp_path / "old").path, str(folder / "d"), ks=[1, 2])
    alone = [
        replace(rule, counts=rule.counts[:1])
        if (rule.rule, rule.guarantee) == ("average_k", None)
        else rule
        for rule in older.tables[0].rules
    ]  # K = 1 alone
    table = replace(older.tables[0], rules=tuple(alone))
    fewer = replace(older, tables=(table, *older.tables[1:])).to_json()
    replace_files(tmp_path / "old", {"calibration.json": fewer.encode()})
    flags = ("--baseline", str(tmp_path / "old"))
    assert "\naverage_k 1 " in evaluate(folder, "good", *flags)[1].partition("against")[2]
    gate = gate_file(tmp_path / "gate.yaml", "hit_rate_loss: 0.1\n")
    _, _, error = evaluate(folder, "good", *flags, "--gate", gate)
    assert isinstance(error, UsageError)
    assert "average_k k=3" in str(error)


def test_the_comparison_is_that_of_the_served_sets(folder: Path) -> None:
    data = str(folder / "d")
    with (
        bundle_outputs(folder / "bad", data, "test") as new,
        bundle_outputs(folder / "good", data, "test") as old,
    ):
        comparisons = compare_outputs(new, old)
    sets = []
    for name in ("good", "bad"):
        bundle = open_bundle(folder / name)
        split = open_dataset(str(folder / "d"), splits=["test"], classes=bundle.classes)
        photos, session = split.split("test"), Session(bundle, device="cpu")
        point = read_record(bundle).point(PLAIN, read_record(bundle).setting("average_k", 3))
        images = np.stack([load(photos.read(row), bundle.preprocess) for row in range(len(photos))])
        logits, scoring = session.logits(images)[point.table.scoring.head], point.table.scoring
        values = scores(logits, scoring.score_kind, temperature=scoring.temperature)
        members = point.sets(values)
        sets.append((members[np.arange(len(photos)), photos.labels], members.sum(axis=1)))
    fixed = compare(sets[0], sets[1], rule="average_k k=3")
    first = comparisons[0]
    assert first.hit_rate.difference == fixed.hit_rate.difference
    assert first.size.difference == fixed.size.difference
    assert (first.gained, first.lost) == (fixed.gained, fixed.lost)
    for wider, narrow in ((first.hit_rate, fixed.hit_rate), (first.size, fixed.size)):
        assert wider.ci95[1] - wider.ci95[0] > narrow.ci95[1] - narrow.ci95[0]
    assert comparisons[0].rows == ROWS * CLASSES
    assert comparisons[0].hit_rate.difference < -0.2
    assert [comparison.rule for comparison in comparisons[:3]] == [
        "average_k k=3", "average_k k=1", "average_k k=2",
    ]  # fmt: skip
    assert comparisons[-1].rule == "class_coverage coverage=0.95"


def test_a_comparison_knows_what_chose_each_threshold_and_which_photos_are_of_one_plant(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = dict[str, dict[str, Any]]()

    def recorded(*sets: Any, rule: str, **options: Any) -> Comparison:
        calls[rule] = options
        return compare(*sets, rule=rule, **options)

    monkeypatch.setattr(gate_module, "compare", recorded)
    data, rows = str(folder / "d"), ROWS * CLASSES
    with (
        bundle_outputs(folder / "bad", data, "test") as new,
        bundle_outputs(folder / "good", data, "test") as old,
    ):
        new.outputs.observations = np.arange(rows) // 4
        compare_outputs(new, old)
        (logits,), labels = next(iter(new.outputs.blocks(new.record.head)))
        values = new.record.scores(logits)
    fixes = {rule: options["thresholds"][1].fixes for rule, options in calls.items()}
    assert fixes["average_k k=3"] == fixes["balanced_average_k k=2"] == "sizes"
    assert fixes["coverage coverage=0.9"] == fixes["class_coverage coverage=0.95"] == "hits"
    assert fixes["top_k k=2"] is None
    options = calls["average_k k=3"]
    assert options["observations"].tolist() == [row // 4 for row in range(rows)]
    assert options["data_sha256"] == new.outputs.data_sha256
    assert [each.data_sha256 for each in options["thresholds"]] == [
        each.record.measured.data_sha256 for each in (old, new)
    ]
    assert calls["top_k k=2"]["growth"] == (0, 0)
    lambda_val = new.record.point(PLAIN, new.record.setting("average_k", 3)).lambda_val
    assert lambda_val is not None
    inside = [values >= factor * lambda_val for factor in (0.8, 1.25)]
    for each in inside:
        each[np.arange(len(values)), values.argmax(axis=1)] = True
    hits = [each[np.arange(len(values)), labels].sum() for each in inside]
    slope = (hits[0] - hits[1]) / (inside[0].sum() - inside[1].sum())
    assert options["thresholds"][1].hits_per_class == pytest.approx(slope)


def test_a_bundle_equals_itself_and_passes_the_gate(folder: Path, tmp_path: Path) -> None:
    gate = gate_file(tmp_path / "gate.yaml", "hit_rate_loss: 0.0\n")
    flags = ("--baseline", str(folder / "same"), "--gate", gate, "--json")
    code, text, _ = evaluate(folder, "good", *flags)
    content = json.loads(text)
    assert code == 0
    assert content["gate"] == {"passed": True, "why": []}
    assert all(entry["hit_rate"]["difference"] == 0 for entry in content["against"])
    assert content["rules"]
    # a single photo tells nothing of a change of size
    code, text, _ = evaluate(folder, "good", *flags[:2], "--split", "test:0-0.001", "--json")
    assert code == 0
    first = json.loads(text)["against"][0]
    low, high = first["size"]["ci95"]
    assert first["rows"] == 1
    assert low < -1
    assert high > 1


def test_a_worse_bundle_is_stopped_with_exit_code_5_and_a_better_one_never(
    folder: Path, tmp_path: Path
) -> None:
    gate = gate_file(tmp_path / "gate.yaml", "hit_rate_loss: 0.1\nsize_growth: 9\nproof: worse\n")
    flags = ("--baseline", str(folder / "good"), "--gate", gate)
    code, text, error = evaluate(folder, "bad", *flags, "--json")
    assert code != 0
    assert isinstance(error, GateFailed)
    assert error.exit_code == 5
    assert "average_k k=3: hit rate" in str(error)
    content = json.loads(text)  # printed all the same, and one object
    assert content["gate"]["passed"] is False
    assert "; ".join(content["gate"]["why"]) == str(error)
    assert "change of hits" in evaluate(folder, "bad", *flags)[1]
    gate = gate_file(tmp_path / "gate.yaml", "proof: no_worse\nsize_growth: 0.5\n")
    code, _, _ = evaluate(folder, "good", "--baseline", str(folder / "bad"), "--gate", gate)
    assert code == 0


def test_flags_that_do_not_go_together_are_usage_errors(folder: Path, tmp_path: Path) -> None:
    gate = gate_file(tmp_path / "gate.yaml", "")
    for flags in (("--gate", gate), ("--baseline", "x", "--gate", "missing")):
        usage_error("evaluate", folder / "good", "--data", folder / "d", *flags)
    for more in (("--baseline", str(folder / "bad")), ()):
        assert "--data" in usage_error("evaluate", folder / "good", *more)


def found_with(gained: int, lost: int, rows: int = 1000, grown: float = 0.0) -> Comparison:
    old, new = pair(gained, lost, rows - gained - lost, 0)
    larger = (np.arange(rows) < grown * rows).astype(int)
    new_sets = (new[0], np.array(new[1]) + larger)
    return compare(old, new_sets, rule="average_k k=3", growth=(0, 1) if grown else (0, 0))


@pytest.mark.parametrize(
    ("gate", "gained", "lost", "grown", "passes"),
    [
        (Gate(), 20, 20, 0.0, True),
        (Gate(), 10, 20, 0.0, True),  # worse, but not surely
        (Gate(), 10, 22, 0.0, True),  # nor at half the risk for each of two figures
        (Gate(), 5, 40, 0.0, False),
        (Gate(hit_rate_loss=0.03), 5, 40, 0.0, True),
        (Gate(hit_rate_loss=0.02), 5, 80, 0.0, False),
        (Gate(), 0, 0, 0.1, False),
        (Gate(size_growth=0.1), 0, 0, 0.1, True),
        (Gate(proof="no_worse", size_growth=0.1), 20, 20, 0.0, False),  # cannot be ruled out
        (Gate(proof="no_worse", hit_rate_loss=0.02), 20, 20, 0.0, True),
        (Gate(proof="no_worse", hit_rate_loss=0.02), 5, 25, 0.0, False),
        (Gate(proof="no_worse", hit_rate_loss=0.02, size_growth=0.1), 0, 0, 0.1, False),
        (Gate(proof="no_worse", hit_rate_loss=0.02, size_growth=0.2), 0, 0, 0.1, True),
        (Gate(min_rows=1001), 20, 0, 0.0, False),
        (Gate(min_rows=1000), 20, 0, 0.0, True),
    ],
)
def test_when_a_gate_closes(gate: Gate, gained: int, lost: int, grown: float, passes: bool) -> None:
    assert (gate.reasons(found_with(gained, lost, grown=grown)) == []) == passes


def test_reasons_name_rule_figures_and_what_was_allowed() -> None:
    (loss,) = Gate(hit_rate_loss=0.01).reasons(found_with(5, 60))
    assert loss.startswith("average_k k=3: hit rate 0.9950 -> 0.9400, change -0.0550 (-0.07")
    assert loss.endswith("a loss of more than the allowed 0.01 is certain")
    (growth,) = Gate(proof="no_worse", hit_rate_loss=1).reasons(found_with(0, 0, grown=0.2))
    assert "mean set size 3.000 -> 3.200, change +0.2000" in growth
    assert growth.endswith("a growth of more than the allowed 0 cannot be ruled out")
    (rows,) = Gate(min_rows=5000).reasons(found_with(0, 0))
    assert rows == "average_k k=3: 1,000 photos, the gate needs 5,000"


@pytest.mark.parametrize(("shared", "val"), [(0.0, 200), (0.97, 1000)])
def test_thresholds_that_differ_by_chance_do_not_close_the_gate(shared: float, val: int) -> None:
    equal, draws = false_alarms.make_pair(shared), 100
    (share,) = false_alarms.closed(equal, val, (3,), pairs=draws, gate=Gate())
    assert share <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / draws)
    worse = false_alarms.make_pair(shared, worse=1.3)
    (share,) = false_alarms.closed(worse, val, (3,), pairs=25, gate=Gate())
    assert share > 0.9


def test_four_photos_of_each_plant_do_not_close_the_gate_either() -> None:
    equal, draws = false_alarms.make_pair(0.0, a_plant=4), 100
    by_plant, by_photo = (
        false_alarms.closed(equal, 1000, (3,), pairs=draws, gate=Gate(), by_plant=plants)[0]
        for plants in (True, False)
    )
    assert by_plant <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / draws)
    assert by_photo > 0.1


def test_a_gate_file_is_read(tmp_path: Path) -> None:
    text = "{hit_rate_loss: 0.005, size_growth: 0, proof: no_worse, min_rows: 500}"
    assert Gate.read(gate_file(tmp_path / "gate.yaml", text)) == Gate(
        hit_rate_loss=0.005, size_growth=0, proof="no_worse", min_rows=500
    )
    for empty in ("{}", ""):
        assert Gate.read(gate_file(tmp_path / "gate.yaml", empty)) == Gate()
    assert vars(Gate()) == {"hit_rate_loss": 0, "size_growth": 0, "proof": "worse", "min_rows": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1", " cannot be read"),
        ("[1]", ": must be a mapping with any of hit_rate_loss, size_growth, proof, min_rows"),
        (
            "{hit_loss: 1}",
            ": unknown setting hit_loss; allowed: hit_rate_loss, size_growth, proof, ",
        ),
        ("{3: 4}", ": must be a mapping with any of hit_rate_loss, .*"),
        ("{hit_rate_loss: -0.1}", ": hit_rate_loss must be a number >= 0, got -0.1"),
        ("{hit_rate_loss: yes}", ": hit_rate_loss must be a number >= 0, got True"),
        ("{size_growth: much}", ": size_growth must be a number >= 0, got 'much'"),
        ("{size_growth: .nan}", ": size_growth must be finite and a number >= 0, got nan"),
        ("{proof: no_wors}", ": proof must be one of worse, no_worse, got 'no_wors'.*no_worse"),
        ("{min_rows: 0}", ": min_rows must be a whole number >= 1, got 0"),
        ("{min_rows: 1.5}", ": min_rows must be a whole number"),
    ],
)
def test_mistakes_in_a_gate_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=rf"gate file .*gate.yaml{message}"):
        Gate.read(gate_file(tmp_path / "gate.yaml", text))


def changed(gained: int = 0, lost: int = 0, size: float = 3.0) -> Comparison:
    """Two bundles on 1,000 photos; sets of 3 become ``size`` on average."""
    result = compare(*pair(gained, lost, 900, 100 - gained - lost))
    return replace(
        result, size=replace(result.size, old=3.0, new=size, difference=size - result.size.old)
    )


@pytest.mark.parametrize(
    ("change", "nested", "word"),
    [
        (changed(lost=3), 1.0, "hit rate 0.9030 -> 0.9000"),
        (changed(size=3.031), 1.0, "mean set size 3.000 -> 3.031"),
        (changed(size=2.969), 1.0, "mean set size 3.000 -> 2.969"),
        (changed(), 0.989, "98.9 % of the sets are equal or one"),
        (changed(), 1.0, None),
        (changed(lost=2, size=3.029), 0.99, None),
        (changed(gained=50), 1.0, None),  # more hits are no reason
    ],
)
def test_each_figure_alone_refuses(change: Comparison, nested: float, word: str | None) -> None:
    sentences = differences(change, nested)
    assert [sentence.startswith(word or "") for sentence in sentences] == [True] * bool(word)


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
            point = each.record.point(PLAIN, each.record.setting("average_k", 3))
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


def test_a_gate_stops_an_equal_bundle_and_passes_a_worse_one_as_rarely_as_it_says() -> None:
    random, rows = np.random.default_rng(5), 800
    equal = random.multinomial(rows, [0.05, 0.05, 0.9], 1000)
    worse = random.multinomial(rows, [0.04, 0.06, 0.9], 1000)
    bar = 3 * np.sqrt(0.025 * 0.975 / 1000)
    stopped = np.mean([bool(Gate().reasons(found_with(int(g), int(x), rows))) for g, x, _ in equal])
    strict = Gate(proof="no_worse", hit_rate_loss=0.02)
    passed = np.mean([not strict.reasons(found_with(int(g), int(x), rows)) for g, x, _ in worse])
    assert stopped <= 0.025 + 0.005 + bar
    assert passed <= 0.025 + 0.005 + bar
    assert stopped > 0
    assert passed > 0
