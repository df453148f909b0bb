"""A file is replaced whole or not at all; numbered files follow each other."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from models import files
from models.files import RotatingFiles, check_writable, numbered_files, write_atomic


def test_the_content_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_failure_leaves_the_old_content_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"one")

    def full(*arguments: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        with pytest.raises(OSError, match="No space left"):
            write_atomic(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(name: str) -> Callable[..., object]:
        original = getattr(os, name)

        def run(*arguments: Any) -> object:
            order.append(name)
            return original(*arguments)

        return run

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, noted(name))
    write_atomic(tmp_path / "a", b"")
    assert order == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("use", [check_writable, lambda path: write_atomic(path, b"")])
def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, use: Callable[[Path], None]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path, code in (
        (tmp_path / "file" / "a", errno.ENOTDIR),
        (tmp_path / "gone" / "a", errno.ENOENT),
        (tmp_path / ("a" * 255), errno.ENAMETOOLONG),
    ):
        with pytest.raises(OSError, match="Errno") as caught:
            use(path)
        assert (caught.value.errno, caught.value.filename) == (code, str(path))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_look_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    check_writable(tmp_path / "a")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"one"]


def test_a_folder_that_cannot_be_synchronised_holds_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "sync_folder", Mock(side_effect=OSError(errno.EINVAL, "no")))
    write_atomic(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"


def test_numbered_files_follow_each_other_and_the_oldest_goes(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "log"
    kept = RotatingFiles(folder, "log-*.txt", max_bytes=10, max_files=3)
    begun = [kept.begin() for _ in range(5)]
    assert [path.name for path in begun] == [f"log-00000{number}.txt" for number in range(1, 6)]
    (folder / "log-old.txt").touch()
    (folder / "log-000009.bin").touch()
    assert numbered_files(folder, "log-*.txt") == begun[2:]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(begun[4].stat().st_mode) == 0o600
    RotatingFiles(folder, "log-*.txt", max_bytes=10, max_files=1).begin()
    assert [path.name for path in numbered_files(folder, "log-*.txt")] == ["log-000006.txt"]


def test_a_number_that_another_process_took_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = RotatingFiles(tmp_path, "log-*.txt", max_bytes=10, max_files=3)
    monkeypatch.setattr(files, "numbered_files", lambda folder, name: [])
    assert [kept.begin().name for _ in range(2)] == ["log-000001.txt", "log-000002.txt"]


@pytest.mark.parametrize(
    "limits", [{"max_bytes": 0, "max_files": 1}, {"max_bytes": 1, "max_files": 0}]
)
def test_rotating_files_need_room(tmp_path: Path, limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RotatingFiles(tmp_path, "log-*.txt", **limits)
