"""The wheel in an empty environment, nothing of the checkout in sight: `make test-wheel`."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from florilege.cli import _verbs
from tests import shipped
from tests.shipped import ROOT, ran

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600)]

NEEDS = {"import": "onnx"}  # even to show its help


OUTSIDE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def python(*words: str) -> None:
    command = [sys.executable, "-m", *words]
    ran(subprocess.run(command, capture_output=True, text=True, check=False, env=OUTSIDE))


def pip(environment: Path, *words: str) -> None:
    python("pip", "--python", str(environment), *words)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install` makes of the lock of serving and the wheel of the source archive."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["uv", "build", "--no-build-isolation", "--python", sys.executable]
    python(*build, "--out-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    empty, lock = folder / "empty", ROOT / "requirements" / "serve.txt"
    python("venv", "--without-pip", str(empty))
    pip(empty, "install", "--require-hashes", "--requirement", str(lock))
    pip(empty, "install", "--no-index", f"florilege[cpu] @ {wheel.as_uri()}")  # the lock is enough
    pip(empty, "check")
    return empty


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shipped.fill(tmp_path_factory.mktemp("files"))


class Installed:
    """Runs what is installed, from an empty folder and with hardly any variables."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.programs, self.folder = environment / "bin", folder
        self.variables = {"PATH": os.defpath, "HOME": str(folder), "LANG": "C.UTF-8"}

    def __call__(self, *words: str, program: str = "florilege") -> CompletedProcess[str]:
        with self.started(*words, program=program) as process:
            out, err = process.communicate(timeout=60)
        return CompletedProcess(words, process.returncode, out, err)

    def started(self, *words: str, program: str = "florilege") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.programs / program), *words],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def installed(environment: Path, tmp_path: Path) -> Installed:
    return Installed(environment, tmp_path)


def test_nothing_comes_from_the_checkout(installed: Installed, environment: Path) -> None:
    places = "florilege.__file__, florilege.server.__file__, sys.path"
    program = f"import florilege.server, sys; print({places})"
    answer = ran(installed("-c", program, program="python"))
    assert str(ROOT) not in answer
    assert answer.count(f"{environment}/lib") >= 3


@pytest.mark.parametrize("verb", _verbs())
def test_a_verb_shows_its_help_or_names_the_extra_it_needs(installed: Installed, verb: str) -> None:
    result = installed(verb, "--help")
    if verb in NEEDS:
        assert result.returncode == 2
        assert f"`florilege {verb}` needs {NEEDS[verb]}" in result.stderr
    else:
        assert "Usage" in ran(result)


def test_the_module_is_the_command(installed: Installed) -> None:
    answer = ran(installed("-m", "florilege", "--version", program="python"))
    assert answer == f"florilege {shipped.VERSION}\n"


def test_the_commands_answer(installed: Installed, files: Path) -> None:
    shipped.check_commands(installed, str(files))
    ran(installed("doctor"))


def test_a_package_that_brings_a_folder_of_ours_may_come_and_go(
    installed: Installed, environment: Path, files: Path
) -> None:
    pip(environment, "install", "--no-deps", "uncertainty-calibration==0.1.4")
    theirs = environment.glob("lib/python*/site-packages/calibration/calibrators.py")
    assert len(list(theirs)) == 1
    shipped.check_commands(installed, str(files))
    pip(environment, "uninstall", "--yes", "uncertainty-calibration")
    shipped.check_commands(installed, str(files))


def test_the_server_answers_and_stops(installed: Installed, files: Path) -> None:
    with installed.started("serve", str(files / "bundle"), "--port", "0") as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if "ready:" in line)
        url = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert url, line
        shipped.check_server(url[0], (files / "photo.png").read_bytes())
        server.send_signal(signal.SIGTERM)
        assert server.wait(40) == 0
