"""A file is replaced completely or not at all; one process at a time writes to a folder."""

import errno
import io
import os
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from florilege import files
from florilege.errors import UsageError
from florilege.files import (
    LOCK,
    check_writable,
    folder_lock,
    open_stored,
    read_written,
    write_atomic,
)


def test_the_content_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o644
    write_atomic(path, b"three", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_failure_leaves_the_old_content_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"one")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            write_atomic(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = Mock()
    for name in ("fsync", "replace"):
        order.attach_mock(Mock(wraps=getattr(os, name)), name)
        monkeypatch.setattr(os, name, getattr(order, name))
    write_atomic(tmp_path / "a", b"")
    assert [call[0] for call in order.mock_calls] == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("use", [check_writable, lambda path: write_atomic(path, b"")])
def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, use: Callable[[Path], None]
) -> None:
    (tmp_path / "file").write_bytes(b"one")
    for path, code in (
        (tmp_path / "file" / "a", errno.ENOTDIR),
        (tmp_path / "gone" / "a", errno.ENOENT),
        (tmp_path / ("a" * 255), errno.ENAMETOOLONG),
    ):
        with pytest.raises(OSError, match="Errno") as caught:
            use(path)
        assert (caught.value.errno, caught.value.filename) == (code, str(path))
    check_writable(tmp_path / "file")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"one"]


def test_a_folder_that_cannot_be_synchronised_holds_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "sync_folder", Mock(side_effect=OSError(errno.EINVAL, "no")))
    write_atomic(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"


HOLD = """
import sys
from pathlib import Path
from florilege.files import folder_lock
with folder_lock(Path(sys.argv[1])):
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
        said = rf"process \({other.pid}\) is writing to {tmp_path}"
        for _ in range(2):
            with pytest.raises(UsageError, match=said), folder_lock(tmp_path):
                pytest.fail("both hold it")
        assert other.stdin is not None
        other.stdin.close()
        other.wait()
        with folder_lock(tmp_path):
            assert (tmp_path / LOCK).exists()
    assert not list(tmp_path.iterdir())


def test_a_killed_holder_leaves_the_folder_free(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        other.kill()
    assert (tmp_path / LOCK).exists()
    with folder_lock(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_disk_without_locks_has_no_protection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr("florilege.files.fcntl.lockf", refused)
    with folder_lock(tmp_path):
        assert (tmp_path / LOCK).exists()


def test_a_failure_frees_the_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyError), folder_lock(tmp_path):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_a_start_waits_for_a_pipe_until_its_writer_ends(tmp_path: Path) -> None:
    """Such as `--keys-file <(gpg --decrypt keys.gpg)`, where somebody types a password."""
    path, parts = tmp_path / "keys", (b"a ", b"key\n")
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as pool, path.open("r+b", buffering=0) as writer:
        content = pool.submit(read_written, path)
        for part in parts:
            time.sleep(0.02)
            writer.write(part)
            assert not content.done()
    assert content.result() == b"a key\n"


@pytest.mark.parametrize("make", [Path.symlink_to, lambda path, _: os.mkfifo(path)])
def test_a_lock_in_a_strangers_folder_is_no_link_and_no_pipe(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    """A bundle from elsewhere may hold one, and a calibration would empty what it names."""
    mine = tmp_path / "mine.txt"
    mine.write_text("years of work")
    folder = tmp_path / "bundle"
    folder.mkdir()
    make(folder / LOCK, mine)
    with pytest.raises(OSError, match=r"symbolic links|not seekable"), folder_lock(folder):
        pytest.fail("it is locked")
    assert mine.read_text() == "years of work"


def test_a_file_that_its_holder_removes_between_opening_and_locking_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = tmp_path / LOCK, []
    original = files._open_lock

    def removed_once(path: Path) -> object:
        handle = original(path)
        opened.append(handle)
        if len(opened) == 1:
            path.unlink()
        return handle

    monkeypatch.setattr(files, "_open_lock", removed_once)
    with folder_lock(tmp_path):
        assert len(opened) == 2
        assert path.exists()


def test_files_of_a_zip_that_overlap_are_refused() -> None:
    """Each may hold all those after it: a few megabytes would become gigabytes."""
    inner, outer = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("b", bytes(1_000))
        size = archive.start_dir
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("a", inner.getvalue()[:size])
        entry = zipfile.ZipInfo("b")
        entry.header_offset, entry.file_size = archive.start_dir - size, 1_000
        entry.compress_size, entry.CRC = 1_000, zlib.crc32(bytes(1_000))
        archive.filelist.append(entry)
    with zipfile.ZipFile(outer) as archive:
        assert archive.read("b") == bytes(1_000)
    with pytest.raises(ValueError, match=r"damaged zip: its files overlap"):
        open_stored(outer)
