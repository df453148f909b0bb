"""An image as docs/deploy.md runs it: `make test-image IMAGE=florilege`.

The image is there already; nothing is pulled. `DOCKER=podman` names another engine. Where the
engine cannot publish ports, `NETWORK=host` takes the machine's own, whose port 8000 must be free.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests import shipped
from tests.shipped import ran

pytestmark = [pytest.mark.image, pytest.mark.timeout(600)]

IMAGE = os.environ.get("IMAGE", "florilege")
DOCKER = shlex.split(os.environ.get("DOCKER", "docker"))
NETWORK = os.environ.get("NETWORK", "")
LOCKED_UP = ["--read-only", "--tmpfs", "/tmp:size=64m", "--cap-drop", "ALL"]
LOCKED_UP += ["--security-opt", "no-new-privileges"]


def docker(*words: str) -> CompletedProcess[str]:
    return subprocess.run([*DOCKER, *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle and a photo below a folder that every user may enter."""
    folder = tmp_path_factory.mktemp("files")
    for parent in list(folder.parents)[:2]:
        parent.chmod(0o755)
    return shipped.fill(folder)


@contextmanager
def serving(image: str, *flags: str) -> Iterator[tuple[str, str]]:
    """A container with the image's own command: its id and the address of the server."""
    ports = ["--network", NETWORK] if NETWORK else ["--publish", "127.0.0.1::8000"]
    own = ["--env", "FLORILEGE_SERVE_DEVICE=auto", "--stop-timeout", "35"]
    ids = ran(docker("run", "--detach", *LOCKED_UP, *ports, *own, *flags, image))
    container = ids.split()[-1]
    try:
        port = "8000" if NETWORK else ran(docker("port", container, "8000")).split(":")[-1].strip()
        shipped.wait_until_ready(f"http://127.0.0.1:{port}")
        yield container, f"http://127.0.0.1:{port}"
    except Exception as error:
        error.add_note(docker("logs", container).stderr)
        raise
    finally:
        docker("rm", "--force", container)


def inspected(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(ran(docker("inspect", name)))[0]
    return content


@pytest.fixture(scope="module")
def serves() -> None:
    if "serve" not in inspected(IMAGE)["Config"]["Cmd"]:
        pytest.skip("this image is not there to serve")


@pytest.fixture(scope="module")
def trains() -> None:
    if "needs torch" in docker("run", "--rm", *LOCKED_UP, IMAGE, "train", "--help").stderr:
        pytest.skip("this image does not train")


def test_the_labels_say_what_it_is() -> None:
    labels = inspected(IMAGE)["Config"]["Labels"]
    named = {key.removeprefix("org.opencontainers.image."): value for key, value in labels.items()}
    assert named["title"] == "Florilege"
    assert named["version"] == shipped.VERSION
    assert named["licenses"] == "Apache-2.0"
    assert "prediction sets" in named["description"]


def test_the_commands_answer(files: Path) -> None:
    def florilege(*words: str) -> CompletedProcess[str]:
        return docker("run", "--rm", *LOCKED_UP, "--volume", f"{files}:/files:ro", IMAGE, *words)

    shipped.check_commands(florilege, "/files")


@pytest.mark.usefixtures("serves")
def test_the_server_answers_is_well_and_stops(files: Path) -> None:
    with serving(IMAGE, "--volume", f"{files / 'bundle'}:/bundle:ro") as (container, url):
        shipped.check_server(url, (files / "photo.png").read_bytes())
        health = inspected(container)["Config"]["Healthcheck"]["Test"]
        ran(docker("exec", container, *health[1:]))
        ran(docker("stop", container))
        assert inspected(container)["State"]["ExitCode"] == 0


def test_whoever_runs_it_is_not_root_and_cannot_change_the_code() -> None:
    program = "import florilege, os; print(os.getuid(), os.access(florilege.__file__, os.W_OK))"
    words = ["run", "--rm", "--entrypoint", "python", IMAGE, "-c", program]
    assert ran(docker(*words)) == "10001 False\n"


@pytest.mark.usefixtures("serves")
def test_a_bundle_can_be_baked_in(files: Path) -> None:
    baked = "florilege-baked-for-a-test"
    (files / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY bundle /bundle\n")
    ran(docker("build", "--quiet", "--tag", baked, str(files)))
    try:
        with serving(baked) as (_, url):
            shipped.check_server(url, (files / "photo.png").read_bytes())
    finally:
        docker("rmi", "--force", baked)


@pytest.mark.usefixtures("trains")
def test_it_takes_the_road_from_pictures_to_sets(tmp_path: Path) -> None:
    """As the user who calls, in a folder of theirs."""

    def florilege(*words: str) -> None:
        whose = ["--user", f"{os.getuid()}:{os.getgid()}", "--volume", f"{tmp_path}:/data"]
        ran(docker("run", "--rm", *LOCKED_UP, "--shm-size", "1g", *whose, IMAGE, *words))

    data = ["--data", "flora:train=300,val=200,test=200"]
    florilege("train", *data, "--recipe", "demo", "--epochs", "1", "--out", "run")
    florilege("export", "run", "--out", "bundle")
    florilege("calibrate", "bundle", *data)
    florilege("evaluate", "bundle", *data, "--report", "report.html")
    assert (tmp_path / "report.html").stat().st_uid == os.getuid()
