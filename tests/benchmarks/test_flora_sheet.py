from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from benchmarks.figures.flora_sheet import CELL, PAPER, SETS, contact_sheet, main, set_lines
from florilege.data.flora import Flora
from florilege.data.flora.posterior import SPECIES, flora_classes

SMALL = Flora(0, {"train": 0, "val": 0, "test": 400})


def test_the_sheet_shows_every_species_and_the_sets_as_in_the_documentation() -> None:
    sheet = contact_sheet(SMALL)
    paper = np.abs(np.asarray(sheet).astype(int) - PAPER).max(axis=-1) < 8
    assert (~paper).sum() > 0.97 * (SPECIES + 2 * SETS) * CELL * CELL
    documented = Path(__file__).parents[2] / "docs/images/flora-contact-sheet.png"
    assert documented.stat().st_size < 300_000
    with Image.open(documented) as stored:
        assert stored.size == sheet.size
        assert np.abs(_gray(stored) - _gray(sheet)).mean() < 3


def test_a_set_names_its_species_best_first_and_marks_the_truth() -> None:
    posterior = SMALL.posterior("test")
    row = int(np.argmax(posterior.max(axis=1)))
    best = flora_classes()[int(posterior[row].argmax())].scientific_name.split()
    text, _ = set_lines(SMALL, row)[0]
    assert text == f"1.00 {best[0][:4]}. {best[1]} *"


def test_the_command_writes_a_picture_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Image.new("RGB", (30, 20), "red")
    monkeypatch.setattr("benchmarks.figures.flora_sheet.contact_sheet", lambda flora: small)
    app = typer.Typer()
    app.command()(main)
    out = tmp_path / "sheet.png"
    result = CliRunner().invoke(app, ["--out", str(out)])
    assert result.exit_code == 0, result.output
    with Image.open(out) as sample:
        assert sample.convert("RGB").getpixel((3, 3)) == (255, 0, 0)


def _gray(picture: Image.Image) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.asarray(picture.convert("L"), dtype=np.float64)
