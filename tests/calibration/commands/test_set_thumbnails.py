"""`florilege bundle set-thumbnails` says what it did, beside the other verbs of bundles."""

import json
from pathlib import Path

from typer.testing import CliRunner

from florilege.calibration.commands.bundle_cli import app
from florilege.models.bundle import open_bundle
from tests.server import garden


def test_it_says_how_many_pictures_there_are_and_what_has_none(tmp_path: Path) -> None:
    bundle = garden.plant(tmp_path / "bundle")
    (tmp_path / "a.png").write_bytes(garden.photo(1))
    table = tmp_path / "pictures.csv"
    table.write_text("class_id,path,organ\n" + "1002,a.png,leaf\n" * 3)
    words = ["set-thumbnails", str(bundle), str(table)]
    result = CliRunner().invoke(app, [*words, "--most", "2", "--json"], catch_exceptions=False)
    content = json.loads(result.stdout)
    assert content["pictures"] == 2
    assert content["without"] == [id_ for id_ in garden.classes().ids if id_ != "1002"]
    assert content["bundle_sha256"] == open_bundle(bundle).sha256
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "3 pictures of 1 of 12 classes" in result.stdout
    assert "without a picture: '1001'" in result.stdout
    assert CliRunner().invoke(app, ["inspect", str(bundle)]).exit_code == 0
