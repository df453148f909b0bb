"""Write files so that a crash or a full disk leaves either the old or the new content.

And read those of the web pages, as a server sends them and as the offline page holds them.
"""

import fcntl
import hashlib
import json
import math
import os
import stat
import struct
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from errno import EACCES, EAGAIN, EFBIG, EINVAL, ETIMEDOUT
from importlib.resources import files
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, TextIO

from florilege.errors import UsageError, os_error_as

LOCK: Final = ".lock"
_ZIP_FAULTS: Final = (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, struct.error)
"""What reading a damaged zip raises. `RuntimeError` is one with a password."""


def write_atomic(path: Path, content: bytes | memoryview, *, mode: int = 0o644) -> None:
    """Write ``content`` to ``path``: all of it or, on any failure, nothing.

    ``mode`` are the permissions of the file, by default that everybody may read it.

    Raises:
        OSError: The disk is full or the folder cannot be written; the error names ``path``.
    """
    with _naming(path), atomic_writer(path, mode=mode) as file:
        file.write(content)
    with suppress(OSError):  # the file is in place already
        sync_folder(path.parent)


def read_regular(path: Path, *, most: int) -> bytes:
    """The content of a file; ``OSError`` if it has more than ``most`` bytes.

    Also one for a pipe, a device or a link to them: reading these may never end.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(EFBIG, f"more than {most:,} bytes", str(path))
        return file.read()


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read it; ``OSError`` also for a pipe, a device or a link to them."""
    # Asked of the open file: whatever has this name may be replaced meanwhile.
    file = open_written(path)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(EINVAL, "not a regular file", str(path))
    return file


def open_written(path: Path) -> BufferedReader:
    """Open a file or a pipe to read it; one that nobody writes is empty, and keeps none waiting."""
    # Not by `os.fdopen`, which leaves the file descriptor of a folder open.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115  # the caller closes it
    os.set_blocking(file.fileno(), True)  # for the rest of what somebody writes
    return file


PIPE_WAIT_S: Final = ContextVar("PIPE_WAIT_S", default=math.inf)
"""How long `read_written` waits for a pipe. A program that starts may wait for a password."""


def read_written(path: Path) -> bytes:
    """All of a file or a pipe; one that nobody writes is empty.

    ``OSError`` also if whoever writes a pipe has not ended it within `PIPE_WAIT_S`.
    """
    content, ends_at = b"", time.monotonic() + PIPE_WAIT_S.get()
    with open_written(path) as file:
        os.set_blocking(file.fileno(), False)  # no other thread can end a read that waits
        while (part := file.raw.read()) != b"":
            if part:  # None where there is nothing yet
                content += part
            elif time.monotonic() > ends_at:
                raise OSError(ETIMEDOUT, "it is a pipe, and its writer has not ended it", str(path))
            else:
                time.sleep(0.01)
    return content


def check_writable(path: Path) -> None:
    """Raise ``OSError`` before long work if `write_atomic` cannot write ``path``."""
    with _naming(path), tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
        pass


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make errors name ``path`` instead of the hidden file beside it."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def atomic_writer(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A file to write, which replaces ``path`` if the block ends without an error."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # `mkstemp` makes it readable for its owner alone.
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the renames inside ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes while the block runs.

    The lock is on the file ``.lock`` in the folder, which names this process. It ends with this
    process, however that happens. Child processes do not share it, and a file left by a killed
    process locks nothing. See `lock_file`.

    Raises:
        UsageError: Another process holds the lock.
        OSError: The lock file cannot be written.
    """
    path = folder / LOCK
    with _locked(path) as handle:
        try:
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def new_folder_lock(folder: Path, failure: str, advice: str = "") -> Iterator[None]:
    """Create a folder if missing, and lock it like `folder_lock`.

    Raises:
        UsageError: Another process holds the lock, or the folder cannot be created or written:
            ``failure``, the reason and ``advice``.
    """
    with ExitStack() as stack:
        with os_error_as(UsageError, failure, advice):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(folder_lock(folder))
        yield


def lock_file(file: IO[Any]) -> bool:
    """Lock an open file until it is closed; False if another process has locked it.

    On a file system without locks, the result is always True.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (EACCES, EAGAIN)
    return True


def _open_lock(path: Path) -> TextIO:
    # Through a link of somebody else's folder, any file would be emptied; a pipe would wait.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.fdopen(os.open(path, flags, 0o666), "a+")


def _locked(path: Path) -> TextIO:
    while True:
        handle = _open_lock(path)
        if not lock_file(handle):
            with handle:
                handle.seek(0)
                process_id = handle.read() or "just started"
            raise UsageError(
                f"another process ({process_id}) is writing to {path.parent}: wait until it ends, "
                "or choose another folder"
            )
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                return handle
        # Another process has removed this file meanwhile: the lock on it locks nothing.
        handle.close()


def open_stored(file: Path | BinaryIO) -> zipfile.ZipFile:
    """Open a zip whose files are stored as they are, and check all of it.

    Compressed files may unpack to more than fits in memory, and so may files that overlap.

    Raises:
        ValueError: The zip is damaged, or not of this kind.
    """
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(file))
            _check_stored(archive)
        except _ZIP_FAULTS as error:
            raise ValueError(f"a damaged zip: {error}") from error
        # All of it is sound: the caller closes it.
        stack.pop_all()
    return archive


def _check_stored(archive: zipfile.ZipFile) -> None:
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED:
            raise zipfile.BadZipFile(f"{member.filename} is compressed")
    # The list of files stands after the files themselves.
    if sum(member.file_size for member in archive.infolist()) > archive.start_dir:
        raise zipfile.BadZipFile("its files overlap")
    if (damaged := archive.testzip()) is not None:
        raise zipfile.BadZipFile(f"{damaged} is damaged")


SERVICE_WORKER: Final = "sw.js"
HEAD: Final = "head.html"
_PARTS: Final = (HEAD, "screen.html", "mark.html")
"""What several pages hold, in place of a comment with its name; one part may hold a later one."""


def page_files() -> dict[str, bytes]:
    """The files of the pages by name, each page with the parts that it shares with others.

    The service worker is not among them: it names the files of its version.
    """
    folder = files("florilege.server") / "web"
    contents = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    for name in (SERVICE_WORKER, *_PARTS):
        contents.pop(name)
    return {
        name: with_parts(content.decode()).encode() if name.endswith(".html") else content
        for name, content in contents.items()
    }


def with_parts(page: str) -> str:
    """A page with the parts that it shares with others."""
    folder = files("florilege.server") / "web"
    for name in _PARTS:
        comment = f"<!-- {name.removesuffix('.html')} -->"
        page = page.replace(comment, (folder / name).read_text("utf-8").rstrip())
    return page


def service_worker(contents: Mapping[str, bytes], large: Iterable[str] = ()) -> bytes:
    """The service worker that keeps ``contents`` in the browser, each under its hash.

    ``large`` are the paths of files that the page stores itself.
    """
    hashes = {path: hashlib.sha256(body).hexdigest()[:12] for path, body in contents.items()}
    lines = (f"const FILES = {json.dumps(hashes)};", f"const LARGE = {json.dumps([*large])};")
    source = (files("florilege.server") / "web" / SERVICE_WORKER).read_bytes()
    return "\n".join((*lines, "")).encode() + source
