"""Photos that several tests of `predict` share."""

from pathlib import Path

import pytest

from tests.server import garden


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty photos; the 4th is suspect, the 8th is not a photo."""
    folder = tmp_path_factory.mktemp("photos")
    for index in range(30):
        photo = garden.photo(index % 11, blur=0.1, other=index % 7)
        (folder / f"{index:02}.png").write_bytes(photo)
    (folder / "03.png").write_bytes(garden.DULL)
    (folder / "07.png").write_text("no picture")
    return folder
