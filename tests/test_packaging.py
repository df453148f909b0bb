"""What is installed is what the design names, and nobody else ships those names."""

import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"models", "data", "training", "calibration", "server", "florilege", "florilege_client"}
BUILT_WITH = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")


def test_no_other_distribution_ships_our_top_level_names() -> None:
    owners = importlib.metadata.packages_distributions()
    found = {name: set(owners[name]) for name in OURS if name in owners}
    assert found
    assert all(names == {"florilege"} for names in found.values()), found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a list of files left by an earlier build would bring them in again."""
    folder = tmp_path_factory.mktemp("wheel")
    held = ours() | {name: (ROOT / name).read_bytes() for name in BUILT_WITH}
    for name, content in held.items():
        path = folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    command = [sys.executable, "-m", "uv", "build", "--no-build-isolation"]
    command += ["--python", sys.executable, "--out-dir", str(folder), str(folder / "source")]
    built = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("florilege-*.whl")
    return path


def test_the_wheel_of_the_source_archive_holds_exactly_the_files_of_our_packages(
    wheel: Path,
) -> None:
    archive = zipfile.ZipFile(wheel)
    found = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert found.keys() == ours().keys()
    assert found == ours()
    metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
    assert "Private :: Do Not Upload" in archive.read(metadata).decode()


CONSUMER = """
from calibration.threshold import average_k_threshold
from data.sources import open_dataset
from florilege_client import Client
from models.bundle.bundle import Bundle
from server.settings import Settings
from training.config import TrainConfig

reveal_type(average_k_threshold)
reveal_type(open_dataset)
reveal_type(Client)
reveal_type(Bundle)
reveal_type(Settings)
reveal_type(TrainConfig)
"""


@pytest.mark.timeout(300)
def test_a_type_checker_sees_the_types_of_every_package_of_the_wheel(
    wheel: Path, tmp_path: Path
) -> None:
    """The wheel in an environment of its own, mypy on a project outside the checkout."""
    environment, project = tmp_path / "environment", tmp_path / "project"
    venv.create(environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))  # NumPy, torch, ...
    project.mkdir()
    (project / "consumer.py").write_text(CONSUMER)
    command = [sys.executable, "-m", "mypy", "--strict", "consumer.py", "--cache-dir"]
    command += [str(tmp_path / "cache"), "--python-executable", str(environment / "bin/python")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=project)
    types = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(types) == len(OURS - {"florilege"})  # a single module cannot carry the marker
    assert all(each.startswith("def (") for each in types), types


def ours() -> dict[str, bytes]:
    """The module and every file of the packages, of whatever kind, by its path."""
    paths = [ROOT / "florilege.py"]
    for package in OURS - {"florilege"}:
        paths += [path for path in (ROOT / package).rglob("*") if path.is_file()]
    kept = [path for path in paths if "__pycache__" not in path.parts]
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in kept}


def test_the_images_hold_every_package_its_lock_and_the_right_version() -> None:
    """What `.dockerignore` lets in, what the Dockerfile installs, and the label."""
    let_in = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert let_in >= (OURS - {"florilege"}) | {"florilege.py", "pyproject.toml"}
    text = (ROOT / "Dockerfile").read_text()
    locks = set(re.findall(r"requirements/[\w-]+\.txt", text))
    assert locks == {name for name in let_in if name.startswith("requirements/")}
    assert text.rstrip().splitlines()[-3].endswith("AS cpu")  # the last stage is what users get
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"ARG VERSION={project['version']}\n" in text


@pytest.mark.parametrize("name", ["dev", "docs", "train", "serve", "serve-gpu", "ship"])
def test_a_lock_pins_every_line_with_hashes_and_names_no_index(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text
    entries = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert entries
    assert all("==" in entry for entry in entries)
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) >= len(entries)


def test_the_two_runtimes_are_never_locked_together_and_serving_needs_no_torch() -> None:
    for name in ("dev", "train", "serve", "serve-gpu", "ship"):
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        has_cpu, has_gpu = "\nonnxruntime==" in text, "\nonnxruntime-gpu==" in text
        assert has_cpu != has_gpu
        assert ("\ntorch==" in text) == (name in ("dev", "train"))


def test_every_dependency_has_its_line_of_reasons() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    for group in project["dependency-groups"].values():
        wanted += [entry for entry in group if isinstance(entry, str)]
    reasons = (ROOT / "docs" / "decisions" / "dependencies.md").read_text()
    names = {re.split(r"[\[<>=;! ]", entry)[0] for entry in wanted} - {"florilege"}
    missing = {name for name in names if not name.startswith("types-") and name not in reasons}
    assert not missing
