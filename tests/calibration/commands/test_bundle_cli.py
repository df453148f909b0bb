"""`florilege bundle` prints what a bundle holds and ends with the documented codes."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from florilege.calibration.commands.bundle_cli import app
from florilege.calibration.record.schema import Counts, Table, Thresholds
from florilege.calibration.sets import Guarantee
from florilege.calibration.view import PLAIN, View
from florilege.errors import BundleError, DataError
from florilege.models.bundle import open_bundle, replace_files
from florilege.models.classes import ClassInfo, ClassTable
from tests.calibration.record.test_record import fitted
from tests.models.bundles import HEADS, make_bundle, network
from tests.models.pictures import encode, scene

NETWORK = network({"logits": 1.0})


def calibration(factor: float = 1.0, head: str = "linear", *, labelled: bool = True) -> bytes:
    """A calibration.json with tables that do not serve beside those that do."""
    labels = np.arange(80) % 2
    record = fitted(
        {head: np.eye(2, dtype=np.float32)[labels]}, labels, class_counts=np.array([7, 3]),
        classes=2, ks=(1.0, 2.0), coverages=(0.9,), score_kind="softmax",
    )  # fmt: skip
    usual = record.point(PLAIN, record.setting("average_k"))

    def counts(rule: str, value: float) -> Counts:
        return usual.counts._replace(
            value=value, lambda_val=None if rule == "top_k" else factor / (10 * value),
            size_sum=round(100 * (value + 0.01)), sizes=(0, 100), misses=(0, round(10 / value)),
            hit_rows=100.0 if labelled else None,
        )  # fmt: skip

    def table(rule: str, *values: float, head: str = head, images: int = 1,
              guarantee: Guarantee | None = None) -> Table:  # fmt: skip
        thresholds = Thresholds(
            rule=rule, guarantee=guarantee, by_class=(),
            counts=tuple(counts(rule, value) for value in values),
        )  # fmt: skip
        return replace(
            usual.table, view=View(photos=images), rows=100, rules=(thresholds,),
            scoring=replace(usual.table.scoring, head=head),
            made_from=None if images == 1 else "observations",
        )  # fmt: skip

    tables = (
        table("average_k", 1.0, head="sccp"),
        table("average_k", 1.0, 1.1, 2.0),
        table("average_k", 1.5, images=2),
        table("top_k", 1.0),
        table("coverage", 0.9, guarantee="mean"),
        table("average_k", 2.0, guarantee="mean"),
        table("average_k", 2.0, images=2, guarantee="mean"),
    )
    model_sha256 = hashlib.sha256(NETWORK).hexdigest()
    measured = replace(record.measured, model_sha256=model_sha256)
    return replace(record, measured=measured, tables=tables).to_json().encode()


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    said = r"[^:]+: [a-z].*\n" if arguments[0] in ("inspect", "verify") else ""
    said = "" if "--json" in arguments else said
    said += "" if "--json" in arguments or "the same bundle" in result.stdout else "next: .*\n"
    assert re.fullmatch(said, result.stderr)
    return result.stdout


def words(*arguments: str) -> list[str]:
    """The printed lines with single spaces."""
    return [" ".join(line.split()) for line in run(*arguments).splitlines()]


def run_json(*arguments: str) -> dict[str, Any]:
    text = run(*arguments, "--json")
    assert text.count("\n") == 1
    return dict(json.loads(text))


@pytest.fixture
def calibrated(tmp_path: Path) -> str:
    make_bundle(
        tmp_path / "b",
        calibration=calibration(),
        metrics=json.dumps({"val": {"hit_rate": 0.9}, "epochs": 3}).encode(),
        provenance=b'{"seed": 7, "classes": [1, 2]}',
    )
    return str(tmp_path / "b")


def test_inspect_gives_the_card_and_the_thresholds_that_serve(calibrated: str) -> None:
    card = run_json("inspect", calibrated)
    assert (card["name"], card["version"], card["heads"]) == ("tiny", "1", HEADS)
    assert card["classes"] == {"count": 2, "genera": 2, "training_images": 10}
    assert card["files"]["model.onnx"]["bytes"] == len(b"a model")
    assert card["metrics"]["epochs"] == 3
    assert card["provenance"]["seed"] == 7
    assert len(card["bundle_sha256"]) == 64
    content = card["calibration"]
    assert (content["split"], content["rows"], content["asked_k"]) == ("val", 80, [1.0, 2.0])
    assert list(content["rules"]) == ["average_k", "top_k", "coverage", "average_k, mean"]
    assert [point["value"] for point in content["rules"]["average_k"]] == [1.0, 1.1, 2.0]
    last = {"value": 2.0, "lambda_val": 0.05, "size": 2.01, "hit_rate": 0.95}
    assert content["rules"]["average_k"][2] == last


def test_inspect_reads_well_also_where_traffic_gave_no_hit_rates(calibrated: str) -> None:
    lines = words("inspect", calibrated)
    assert lines[0].startswith("model tiny, version 1, created 20")
    assert "classes 2 in 2 genera" in lines
    assert "trained on 10 images" in lines
    assert "calibrated on 80 photos of val; head linear, softmax scores" in lines
    assert "average_k 3 values from 1 to 2" in lines
    assert "2 mean size 2.010 hit rate 0.9500 lambda 0.05" in lines
    assert "1 mean size 1.010 hit rate 0.9000" in lines  # top_k has no threshold
    assert not [line for line in lines if line.startswith("1.1 ")]  # not asked for
    assert "0.9 mean size 0.910 hit rate 0.8900 lambda 0.111111" in lines  # a coverage
    assert "seed 7" in lines
    assert any(line.endswith(" model.onnx") and "7 bytes" in line for line in lines)
    replace_files(calibrated, {"calibration.json": calibration(labelled=False)})
    unlabelled = "2 mean size 2.010 hit rate not measured lambda 0.05"
    assert unlabelled in words("inspect", calibrated)


def test_inspect_says_how_to_calibrate(tmp_path: Path) -> None:
    make_bundle(tmp_path / "b")
    path = str(tmp_path / "b")
    process = CliRunner().invoke(app, ["inspect", path])
    assert "calibrated     no\n" in process.stdout
    assert process.stderr.splitlines() == [
        f"{path}: reading its files and checking their hashes",
        f"next: florilege calibrate {path} --data DATA",
    ]
    card = run_json("inspect", str(tmp_path / "b"))
    assert card["calibration"] is None
    assert card["metrics"] is None


@pytest.mark.parametrize("name", ["calibration", "metrics", "provenance"])
def test_a_damaged_json_file_is_named(tmp_path: Path, name: str) -> None:
    replace_files(make_bundle(tmp_path / "b").path, {f"{name}.json": b"{"})
    with pytest.raises(BundleError, match=rf"{name}\.json is damaged"):
        run("inspect", str(tmp_path / "b"))


def test_verify_lists_every_file(calibrated: str) -> None:
    replace_files(calibrated, {"model.onnx": NETWORK})
    names = ("model.onnx", "classes.json", "preprocess.json", "calibration.json", "metrics.json",
             "provenance.json")  # fmt: skip
    assert run("verify", calibrated).splitlines() == [f"ok     {name}" for name in names]
    assert run_json("verify", calibrated)["ok"] is True


def test_verify_names_every_wrong_file(calibrated: str) -> None:
    (Path(calibrated) / "metrics.json").write_bytes(b"{}")
    (Path(calibrated) / "model.onnx").unlink()
    result = CliRunner().invoke(app, ["verify", calibrated, "--json"])
    assert isinstance(result.exception, BundleError)
    assert result.exception.exit_code == 4
    assert "model.onnx is missing" in str(result.exception)
    assert "metrics.json does not match" in str(result.exception)
    content = json.loads(result.stdout)
    assert content["ok"] is False
    faulty = [name for name, fault in content["files"].items() if fault]
    assert faulty == ["model.onnx", "metrics.json"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("classes.json", b"{", "damaged"),
        ("model.onnx", b"a model", "cannot be loaded"),
        ("model.onnx", network({"logits": 1.0}, classes=3), "has 3 classes"),
        ("model.onnx", network({"logits": 1.0}, side=8), "must take `image`"),
        ("calibration.json", b"{", "calibration.json is damaged"),
        ("calibration.json", b'{"schema_version": 8}', "/b: .* version 8, .*: run `florilege cal"),
        ("calibration.json", b'{"schema_version": 99}', "/b: .* version 99, .*: update florilege"),
        ("model.onnx", network({"logits": 2.0}), "another network .*run `florilege calibrate"),
    ],
)
def test_verify_refuses_right_files_that_do_not_open(
    calibrated: str, name: str, content: bytes, message: str
) -> None:
    replace_files(calibrated, {"model.onnx": NETWORK})
    manifest = Path(calibrated) / "bundle.json"
    plain = json.loads(manifest.read_bytes())
    plain["files"][name] = hashlib.sha256(content).hexdigest()
    (Path(calibrated) / name).write_bytes(content)
    manifest.write_text(json.dumps(plain))
    result = CliRunner().invoke(app, ["verify", calibrated, "--json"])
    assert isinstance(result.exception, BundleError)
    assert result.exception.exit_code == 4
    assert re.search(message, str(result.exception))
    report = json.loads(result.stdout)
    assert (report["ok"], report["opening"]) == (False, str(result.exception))
    assert set(report["files"].values()) == {None}
    lines = CliRunner().invoke(app, ["verify", calibrated]).stdout.splitlines()
    assert lines[-1] == "WRONG  the files are right, but the bundle does not open"


def test_verify_refuses_what_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="bundle"):
        run("verify", str(tmp_path))


NAMES = "class_id,scientific_name,common_name_fr,colour,thumbnail\n"


@pytest.fixture
def names_file(tmp_path: Path) -> str:
    (tmp_path / "daisy.png").write_bytes(encode(scene(30, 20), "png"))
    rows = "".join(f"x{index},,,,gone.png\n" for index in range(7))
    (tmp_path / "names.csv").write_text(f"{NAMES}11,,pâquerette,red,daisy.png\n{rows}")
    return str(tmp_path / "names.csv")


def test_names_says_what_was_merged_and_what_does_not_fit(calibrated: str, names_file: str) -> None:
    replace_files(calibrated, {"model.onnx": NETWORK})
    before = open_bundle(calibrated)
    content = run_json("set-names", calibrated, names_file)
    bundle = open_bundle(calibrated)
    assert content == {
        "bundle": calibrated,
        "bundle_sha256": bundle.sha256,
        "classes": 2,
        "named": 1,
        "missing": ["10"],
        "unknown": [f"x{index}" for index in range(7)],
        "ignored_columns": ["colour"],
        "languages": ["fr"],
        "thumbnails": 1,
        "thumbnail_bytes": len(bundle.read_thumbnails()["11"]),
    }
    assert bundle.classes[1].common_names == {"fr": ("pâquerette",)}
    assert bundle.sha256 != before.sha256
    assert bundle.read("calibration.json") == before.read("calibration.json")
    assert run_json("verify", calibrated)["ok"] is True
    assert words("set-names", calibrated, names_file)[:6] == [
        f"{calibrated}: 1 of 2 classes named",
        "1 class unchanged, not in the file: '10'",
        "7 rows of the file not used, no such class: 'x0', 'x1', 'x2', 'x3', 'x4' and 2 more; "
        "--json lists all",
        "columns not used: 'colour'",
        "languages fr",
        "thumbnails 1, 0.0 MB",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{NAMES}11,,,,gone.png\n10,,,,names.csv\n", r"2 of 2 .*\n  11: .*\n  10: .*names\.csv"),
        (f"{NAMES}7,,,,\n", "none of its class ids"),
        (f"{NAMES}11,a,,,\n11,b,,,\n", "11: 2 rows instead of one"),
    ],
)
def test_names_refuses_mistakes_and_leaves_the_bundle(
    calibrated: str, names_file: str, text: str, message: str
) -> None:
    before = open_bundle(calibrated)
    Path(names_file).write_text(text)
    result = CliRunner().invoke(app, ["set-names", calibrated, names_file])
    assert isinstance(result.exception, DataError)
    assert re.search(message, str(result.exception))
    assert result.stdout == ""
    assert open_bundle(calibrated) == before


def test_diff_of_a_bundle_with_itself_is_empty(calibrated: str) -> None:
    content = run_json("diff", calibrated, calibrated)
    assert content["same"] is True
    assert content["files"] == {"added": [], "removed": [], "changed": []}
    assert content["metrics"] == []
    assert run("diff", calibrated, calibrated).splitlines()[-1] == "the same bundle"


@pytest.fixture
def changed(tmp_path: Path) -> str:
    classes = ClassTable(
        tuple(ClassInfo(id=name, scientific_name=name) for name in ("12", "11", "13"))
    )
    metrics = b'{"val": {"hit_rate": 0.95}, "epochs": 3, "loss": 1.5, "ok": true}'
    files = {"calibration": calibration(2.0), "metrics": metrics}
    make_bundle(tmp_path / "c", b"another", {"cosine": "logits"}, "2", classes, **files)
    return str(tmp_path / "c")


@pytest.mark.parametrize(("more", "ending"), [(20, "'c19'"), (21, "'c19' and 1 more")])
def test_diff_names_some_classes(calibrated: str, tmp_path: Path, more: int, ending: str) -> None:
    names = ["10", "11", *(f"c{index}" for index in range(more))]
    classes = ClassTable(tuple(ClassInfo(id=name, scientific_name=name) for name in names))
    make_bundle(tmp_path / "more", version="2", classes=classes)
    lines = run("diff", calibrated, str(tmp_path / "more")).splitlines()
    [line] = [line for line in lines if line.startswith("classes added")]
    assert line.endswith(f" 'c18', {ending}")


def test_diff_gives_classes_thresholds_metrics_and_files(calibrated: str, changed: str) -> None:
    content = run_json("diff", calibrated, changed)
    assert content["same"] is False
    assert content["classes"] == {"added": ["12", "13"], "removed": ["10"], "reordered": False}
    assert content["lambda"][0] == {"k": 1.0, "a": 0.1, "b": 0.2}
    assert [change["k"] for change in content["lambda"]] == [1.0, 1.1, 2.0]
    assert content["metrics"] == [
        {"name": "loss", "a": None, "b": 1.5},
        {"name": "val.hit_rate", "a": 0.9, "b": 0.95},
    ]
    assert content["files"] == {
        "added": [],
        "removed": ["provenance.json"],
        "changed": ["calibration.json", "classes.json", "metrics.json", "model.onnx"],
    }


def test_diff_reads_well(calibrated: str, changed: str) -> None:
    lines = words("diff", calibrated, changed)
    assert "classes added '12', '13'" in lines
    assert "classes removed '10'" in lines
    assert "heads linear -> cosine" in lines
    assert "lambda at K = 2 0.05 -> 0.1" in lines
    assert "loss none -> 1.5" in lines
    assert not [line for line in lines if "1.1" in line]


def test_diff_tells_when_classes_change_places(tmp_path: Path) -> None:
    one = make_bundle(tmp_path / "a")
    make_bundle(tmp_path / "b", classes=ClassTable(tuple(reversed(one.classes.items))))
    command = ("diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert run_json(*command)["classes"] == {"added": [], "removed": [], "reordered": True}
    assert "in a different order" in run(*command)
