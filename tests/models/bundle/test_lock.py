"""One process at a time writes into a folder, and a killed one leaves it free."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from models.bundle.lock import LOCK, held
from models.errors import UsageError

HOLD = """
import sys
from pathlib import Path
from models.bundle.lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the folder until its input ends."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        yield other


def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("99")  # left by a killed one
    with holder(tmp_path) as other:
        for _ in range(2):
            with (
                pytest.raises(UsageError, match=rf"process \({other.pid}\) writes into {tmp_path}"),
                held(tmp_path),
            ):
                pytest.fail("both hold it")
        assert other.stdin is not None
        other.stdin.close()
        other.wait()
        with held(tmp_path):
            assert (tmp_path / LOCK).exists()
    assert not list(tmp_path.iterdir())


def test_a_killed_holder_leaves_the_folder_free(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        other.kill()
    assert (tmp_path / LOCK).exists()
    with held(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_failure_frees_the_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyError), held(tmp_path):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_a_file_that_its_holder_removes_between_opening_and_locking_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = tmp_path / LOCK, []
    original = Path.open

    def removed_once(self: Path, mode: str) -> object:
        handle = original(self, mode)
        opened.append(handle)
        if len(opened) == 1:
            path.unlink()
        return handle

    monkeypatch.setattr(Path, "open", removed_once)
    with held(tmp_path):
        assert len(opened) == 2
        assert path.exists()
