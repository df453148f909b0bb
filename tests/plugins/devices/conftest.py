"""Shared by these tests: a bundle with everything a device can use, and the runtime of the page."""

from pathlib import Path

import pytest

from florilege.calibration.calibrate import calibrate_bundle
from florilege.models.bundle import set_pictures
from florilege.models.reference_pictures import Credit, PictureFile
from florilege.plugins.devices.device_folders import PACKAGE, VERSION
from florilege.server.answers.pipeline import Pipeline, open_pipeline
from tests.server import garden
from tests.server.test_places import occurrences

ROOT = Path(__file__).parents[3]
HEATH = ("1002", "1004", "1007", "1008", "1012")


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    return garden.validation_folder(garden.validation_folder(folder), split="train", seed=8)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """Calibrated with training photos, a list and a table of places; not to be changed."""
    folder = tmp_path_factory.mktemp("everything")
    (folder / "heath.txt").write_text("\n".join(HEATH))
    calibrate_bundle(
        garden.plant(folder / "bundle"),
        str(photos),
        device="cpu",
        list_files=[str(folder / "heath.txt")],
        occurrences=str(occurrences(folder / "occurrences.csv")),
        coverages="0.8,0.9",
        label_noise="0.01",
    )
    (folder / "violet.png").write_bytes(garden.photo(5))
    row = [PictureFile(path=folder / "violet.png", credit=Credit("A. B.", "CC0", "leaf"))]
    set_pictures(folder / "bundle", {"1006": row}, source="table", most=6)
    return folder / "bundle"


@pytest.fixture(scope="session")
def pipeline(bundle: Path) -> Pipeline:
    return open_pipeline(bundle, device="cpu")


@pytest.fixture(scope="session")
def runtime() -> Path:
    """The npm package that `make test` fetches."""
    path = ROOT / ".venv" / f"{PACKAGE}-{VERSION}.tgz"
    if not path.exists():
        pytest.skip(f"no {path.name}: `make test` fetches it where npm is installed")
    return path
