"""What is installed is what the design names, and nobody else ships those names."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"models", "data", "training", "calibration", "server", "florilege", "florilege_client"}


def test_no_other_distribution_ships_our_top_level_names() -> None:
    owners = importlib.metadata.packages_distributions()
    found = {name: set(owners[name]) for name in OURS if name in owners}
    assert found
    assert all(names == {"florilege"} for names in found.values()), found


def test_the_wheel_holds_exactly_our_packages_and_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("florilege-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"florilege.py", *(OURS - {"florilege"})}
    assert "florilege_client/py.typed" in names
    assert any(name.startswith("server/web/") and name.endswith(".html") for name in names)
    metadata = next(name for name in names if name.endswith("METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    assert "Private :: Do Not Upload" in text


@pytest.mark.parametrize("name", ["dev", "train", "serve", "serve-gpu"])
def test_a_lock_pins_every_line_with_hashes_and_names_no_index(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text
    entries = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert entries
    assert all("==" in entry for entry in entries)
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) >= len(entries)


def test_the_two_runtimes_are_never_locked_together_and_serving_needs_no_torch() -> None:
    for name in ("dev", "train", "serve", "serve-gpu"):
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        has_cpu, has_gpu = "\nonnxruntime==" in text, "\nonnxruntime-gpu==" in text
        assert has_cpu != has_gpu
        assert ("\ntorch==" in text) == (name in ("dev", "train"))


def test_every_dependency_has_its_line_of_reasons() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    wanted += [entry for entry in project["dependency-groups"]["dev"] if isinstance(entry, str)]
    reasons = (ROOT / "docs" / "decisions" / "dependencies.md").read_text()
    names = {re.split(r"[\[<>=;! ]", entry)[0] for entry in wanted} - {"florilege"}
    missing = {name for name in names if not name.startswith("types-") and name not in reasons}
    assert not missing
