"""`florilege predict --ray` writes what the local run writes, whoever is killed on the way."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilege.errors import UsageError
from tests.server import garden
from tests.server.predict.predict_command import run
from tests.server.server_thread import wait_for

ROOT = Path(__file__).parents[3]
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None,
    reason="the extra `ray` is not installed",
)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About a hundred photos in folders of four; one is suspect, one is not a photo."""
    folder = tmp_path_factory.mktemp("photos")
    for index in range(120):
        (folder / f"{index // 4:02}").mkdir(exist_ok=True)
        photo = garden.photo(index % 11, blur=0.1, other=index % 7)
        (folder / f"{index // 4:02}" / f"{index:03}.png").write_bytes(photo)
    (folder / "00" / "003.png").write_bytes(garden.DULL)
    (folder / "09" / "037.png").write_text("no picture")
    return folder


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of photos that take about 20 ms each; the third is not a photo."""
    folder = tmp_path_factory.mktemp("slow")
    for index in range(4):
        (folder / f"{index}.png").write_bytes(garden.photo(index, side=600))
    (folder / "none.png").write_text("no picture")
    names = ["0.png", "1.png", "none.png", *(f"{index % 4}.png" for index in range(197))]
    (folder / "slow.csv").write_text("\n".join(["path", *names]))
    return folder / "slow.csv"


@contextmanager
def started(*what: Any) -> Iterator[subprocess.Popen[str]]:
    """A run on Ray that ends with the block, its pipes read to the end."""
    with start(*what, "--ray", "--ray-workers", "2") as job:
        try:
            yield job
        finally:
            job.kill()
            job.communicate()


def start(bundle: Path, photos: Path, output: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "florilege", "predict", str(bundle), photos.name]
    return subprocess.Popen(
        [*command, "-o", str(output), *flags],
        cwd=photos.parent,  # so that paths are relative
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """The output of a completed run; one file is not a photo, so the exit code is 6."""
    out, err = process.communicate()
    assert process.returncode == 6, err
    assert out == ""
    return err


def finished(output: Path) -> int:
    part = output.with_name(f"{output.name}.part")
    return len(part.read_text().splitlines()) if part.exists() else 0


def _workers() -> list[int]:
    """Ray processes that answer photos."""
    results = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if each.read_bytes().startswith(b"ray::MapWorker"):
                results.append(int(each.parent.name))
        except OSError:
            continue
    return results


@needs_ray
@pytest.mark.parametrize(
    ("ending", "flags"),
    [("csv", []), ("parquet", []), ("jsonl", ["--group-by", "folder", "--include", "scores"])],
)
def test_files_are_those_of_the_local_run(
    ending: str, flags: list[str], bundle: Path, photos: Path, tmp_path: Path
) -> None:
    here, there = tmp_path / f"here.{ending}", tmp_path / f"there.{ending}"
    features = [] if ending == "parquet" else ["--embeddings"]

    def named(path: Path) -> list[str]:
        return [*flags, *([*features, str(path.with_suffix(".npy"))] if features else [])]

    answer = ended(start(bundle, photos, here, *named(here)))
    assert ended(
        start(bundle, photos, there, "--ray", "--ray-workers", "2", *named(there))
    ).splitlines()[-2:] == [line.replace("here.", "there.") for line in answer.splitlines()[-2:]]
    assert there.read_bytes() == here.read_bytes()
    if features:
        np.testing.assert_array_equal(
            np.load(there.with_suffix(".npy")), np.load(here.with_suffix(".npy"))
        )


@needs_ray
def test_a_killed_job_resumes_and_loses_nothing(bundle: Path, slow: Path, tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.csv", tmp_path / "sets.csv"
    ended(start(bundle, slow, whole))
    before = set(_workers())
    with started(bundle, slow, output) as job:
        wait_for(lambda: finished(output) > 10, seconds=120)
        job.kill()
    remaining = finished(output)
    assert 10 < remaining < 200
    wait_for(lambda: set(_workers()) <= before, seconds=120)  # nobody works on for nothing
    again = ended(start(bundle, slow, output, "--ray", "--ray-workers", "2", "--resume"))
    assert f"resuming after {remaining}" in again
    assert output.read_bytes() == whole.read_bytes()


@needs_ray
def test_killed_workers_lose_nothing(bundle: Path, slow: Path, tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.jsonl", tmp_path / "sets.jsonl"
    ended(start(bundle, slow, whole))
    before = set(_workers())
    job = start(bundle, slow, output, "--ray", "--ray-workers", "2")
    wait_for(lambda: finished(output) > 10, seconds=120)
    victims = set(_workers()) - before
    assert len(victims) == 2
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    assert finished(output) < 200
    ended(job)
    assert output.read_bytes() == whole.read_bytes()


@needs_ray
def test_ctrl_c_ends_it_and_tells_how_to_resume(bundle: Path, slow: Path, tmp_path: Path) -> None:
    output = tmp_path / "sets.csv"
    with started(bundle, slow, output) as job:
        wait_for(lambda: finished(output) > 10, seconds=120)
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=90)
    assert job.returncode == 130, err
    assert "repeat the command with --resume" in err


def test_without_the_extra_it_says_how_to_get_it(
    bundle: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[ray\]'"):
        run(bundle, photos, "-o", tmp_path / "sets.csv", "--ray")
    assert not list(tmp_path.glob("sets.csv*"))
