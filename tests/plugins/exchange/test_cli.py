"""``florilege data import-occurrences``, a command that a plugin adds to a verb."""

from pathlib import Path

from typer.testing import CliRunner

from florilege.cli import app
from tests.models.bundles import make_bundle


def test_importing_occurrences_says_what_is_left_out_and_takes_the_column_of_a_bundle(
    tmp_path: Path,
) -> None:
    rows = ("43,3,Unknown,11", "43,3,Unknown,11", "0,0,Unknown,11")
    head = "decimalLatitude,decimalLongitude,scientificName,taxonID"
    (tmp_path / "a.csv").write_text("\n".join([head, *rows]))
    words = [
        "data",
        "import-occurrences",
        str(tmp_path / "a.csv"),
        "--out",
        str(tmp_path / "out.csv"),
    ]
    result = CliRunner().invoke(app, words)
    assert "2 records of 1 species (scientificName) in 1 cell" in result.stdout
    assert "left out: 1 at latitude 0, longitude 0" in result.stdout
    assert (
        f"next: florilege calibrate BUNDLE --data DATA --occurrences {words[-1]}\n" in result.stderr
    )
    bundle = make_bundle(tmp_path / "bundle")
    result = CliRunner().invoke(app, [*words, "--bundle", str(bundle.path)])
    assert "2 records of 1 species (taxonID) in 1 cell" in result.stdout
