"""`florilege calibrate --ray`: the record of a calibration here, bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest

from florilege.calibration.calibrate import calibrate_bundle
from florilege.cores import Workers
from florilege.errors import DataError
from tests.calibration.command_line import usage_error
from tests.calibration.small_bundle import make_bundle, make_data

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def record_of(bundle: Path) -> dict[str, Any]:
    """What was found, without when."""
    record = json.loads((bundle / "calibration.json").read_text())
    del record["created"], record["calibration_id"]  # a hash of all, time included
    return dict(record)


def test_the_record_is_that_of_a_calibration_here(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    data = make_data(tmp_path / "data")
    for name, workers in (("here", None), ("there", Workers(number=2))):
        make_bundle(tmp_path / name)
        calibrate_bundle(tmp_path / name, str(data), ks=[1, 2], workers=workers)
    assert record_of(tmp_path / "there") == record_of(tmp_path / "here")
    names = sorted(each.name for each in (tmp_path / "here").iterdir())
    assert sorted(each.name for each in (tmp_path / "there").iterdir()) == names
    for name in set(names) & {"reference.npy", "model.onnx", "classes.json"}:
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_photos_that_workers_cannot_read_are_listed(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    data = make_data(tmp_path / "data")
    broken = next((data / "val").rglob("*.*"))
    broken.write_text("no picture")
    make_bundle(tmp_path / "bundle")
    with pytest.raises(DataError, match=broken.name):
        calibrate_bundle(tmp_path / "bundle", str(data), workers=Workers(number=2))


def test_workers_without_ray_are_refused(tmp_path: Path) -> None:
    message = usage_error("calibrate", tmp_path, "--data", "flora", "--ray-workers", 2)
    assert "--ray-workers needs --ray" in message
