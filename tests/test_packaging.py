"""What is installed is what the design names, and nobody else ships those names."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from florilege.cli import _verbs
from tests.training.small import write_photos

ROOT = Path(__file__).parents[1]
FOLDERS = ("models", "data", "training", "calibration", "server")
BUILT_WITH = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")


def ran(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with these words in a folder; it must end well."""
    command = [sys.executable, *words]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert process.returncode == 0, f"{words}\n{process.stdout}{process.stderr}"
    return process


def test_our_distribution_ships_one_name_and_no_other_has_it() -> None:
    owners = importlib.metadata.packages_distributions()
    assert set(owners["florilege"]) == {"florilege"}
    assert not [name for name in FOLDERS if "florilege" in owners.get(name, [])]


def test_the_folders_at_the_top_lead_into_the_package() -> None:
    for name in FOLDERS:
        assert not (ROOT / "florilege" / name).is_symlink()
        link = ROOT / name  # a text file where the clone was made without links
        target = link.readlink() if link.is_symlink() else Path(link.read_text("utf-8"))
        assert target == Path("florilege") / name


@pytest.fixture(scope="module", params=["links", "a zip or a clone without links"])
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a list of files left by an earlier build would bring them in again."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "florilege", source / "florilege", ignore=without)
    for name in FOLDERS:
        if request.param == "links":
            (source / name).symlink_to(Path("florilege") / name)
        else:
            (source / name).write_text(f"florilege/{name}")
    for name in BUILT_WITH:
        shutil.copy(ROOT / name, source / name)
    build = ["-m", "uv", "build", "--no-build-isolation", "--python", sys.executable]
    ran([*build, "--out-dir", str(folder), str(source)], folder)
    (path,) = folder.glob("florilege-*.whl")
    return path


def test_the_wheel_of_the_source_archive_holds_exactly_the_files_of_our_package(
    wheel: Path,
) -> None:
    archive = zipfile.ZipFile(wheel)
    files = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert files.keys() == ours().keys()
    assert files == ours()
    metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
    assert "florilege/py.typed" in files
    assert "Private :: Do Not Upload" in archive.read(metadata).decode()


CONSUMER = """
import florilege
from florilege.calibration.threshold import average_k_threshold
from florilege.data.sources import open_dataset
from florilege.models.bundle import Bundle
from florilege.server.settings import Settings
from florilege.training.config import TrainConfig

reveal_type(florilege.load)
reveal_type(average_k_threshold)
reveal_type(open_dataset)
reveal_type(Bundle)
reveal_type(Settings)
reveal_type(TrainConfig)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of somebody whose own modules have the names of our folders."""
    for name in ("models/__init__", "server/__init__", "calibration/__init__", "data", "training"):
        path = tmp_path / "project" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise ImportError('this module belongs to somebody else')\n")
    return tmp_path / "project"


def test_verbs_work_beside_modules_with_the_names_of_our_folders(project: Path) -> None:
    helps = [f"{verb} --help" for verb in _verbs()]
    for words in (["-m", "florilege", "--help"], ["-c", IN_ONE_PROCESS, *helps]):
        assert ran(words, project).stderr == "", words


IN_ONE_PROCESS = """
import sys
sys.modules |= dict.fromkeys(("torch", "onnxruntime", "fastapi", "matplotlib"))  # take seconds
from florilege.cli import app
for verb in sys.argv[1:]:
    app(verb.split(), standalone_mode=False)
"""


EVERY_MODULE = """
import importlib, pkgutil, sys, florilege
for module in pkgutil.walk_packages(florilege.__path__, "florilege."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from torch.distributed.run import main  # the program `torchrun`; torch is imported by now
main(sys.argv[1:])
"""


@pytest.mark.timeout(300)
def test_training_its_workers_and_every_module_run_beside_such_modules(project: Path) -> None:
    """`torchrun` starts a process of its own, and that one a loader process."""
    torchrun = ["-c", EVERY_MODULE, "--nproc-per-node", "1", "-m", "florilege"]
    write_photos(project / "photos", train=6, val=3)
    train = ["train", "--data", "photos", "--out", "run", "--backbone", "tiny", "--weights", "none"]
    train += ["--image-size", "16", "--epochs", "1", "--device", "cpu", "--set", "workers=1"]
    ran([*torchrun, *train], project)
    assert (project / "run" / "best.safetensors").is_file()


@pytest.mark.end_to_end
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
    words = ["-m", "mypy", "--strict", "consumer.py", "--cache-dir", str(tmp_path / "cache")]
    words += ["--python-executable", str(environment / "bin/python")]
    types = re.findall(r'Revealed type is "(.*)"', ran(words, project).stdout)
    assert len(types) == 1 + len(FOLDERS)
    assert all(each.startswith("def (") for each in types), types


def ours() -> dict[str, bytes]:
    """Every file of the package, of whatever kind, by its path."""
    paths = [path for path in (ROOT / "florilege").rglob("*") if path.is_file()]
    files = [path for path in paths if "__pycache__" not in path.parts]
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in files}


def test_the_images_hold_every_package_its_lock_and_the_right_version() -> None:
    """What `.dockerignore` lets in, what the Dockerfile installs, and the label."""
    let_in = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert let_in >= {"florilege", "pyproject.toml"}
    text = (ROOT / "Dockerfile").read_text()
    of_cpu = {f"requirements/{lock}.txt" for lock in ("serve", "serve-openvino")}
    assert "ARG LOCK=serve\nCOPY requirements/${LOCK}.txt requirements/\n" in text
    locks = set(re.findall(r"requirements/[\w-]+\.txt", text)) | of_cpu
    assert locks == {name for name in let_in if name.startswith("requirements/")}
    assert text.rstrip().splitlines()[-3].endswith("AS cpu")  # the last stage is what users get
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"ARG VERSION={project['version']}\n" in text


@pytest.mark.parametrize(
    "name", ["docs", "dev", "train", "serve", "serve-openvino", "serve-gpu", "ship"]
)
def test_a_lock_pins_every_line_with_hashes_and_names_no_index_and_one_runtime(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text
    entries = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert entries
    assert all("==" in entry for entry in entries)
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) >= len(entries)
    assert len(re.findall("^onnxruntime(?:-gpu)?==", text, re.M)) == (name != "docs")
    assert ("\ntorch==" in text) == (name in ("dev", "train"))  # serving needs none


def test_every_dependency_has_its_line_of_reasons() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [project["project"]["dependencies"], *project["dependency-groups"].values()]
    groups += project["project"]["optional-dependencies"].values()
    expected = [entry for group in groups for entry in group if isinstance(entry, str)]
    reasons = (ROOT / "docs" / "decisions" / "dependencies.md").read_text()
    names = {re.split(r"[\[<>=;! ]", entry)[0] for entry in expected} - {"florilege"}
    missing = {name for name in names if not name.startswith("types-") and name not in reasons}
    assert not missing
