"""The loaders are compared on photos of the sizes that the table names."""

import io

import pytest
from PIL import Image

from benchmarks.speed import data_loader as training_loader


def test_the_table_has_a_row_for_each_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training_loader, "PHOTOS", 2)
    monkeypatch.setattr(training_loader, "SIZES", ((500, 375), (80, 48)))
    training_loader.print_table(1)
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["500 x 375", "80 x 48"]
    assert all(float(cell) > 0 for row in rows[2:] for cell in row.split("|")[2:7])


def test_a_made_up_photo_is_a_jpeg_of_its_size() -> None:
    with Image.open(io.BytesIO(training_loader.made_up_photo(80, 48, 1))) as photo:
        assert (photo.format, photo.size) == ("JPEG", (80, 48))
