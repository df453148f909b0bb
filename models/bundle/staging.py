"""Replace the files of a bundle atomically by way of staging names.

A change is written beside the old files under staging names (``calibration.json.new-1a2b3c4d``).
Then ``bundle.json`` is replaced atomically, and only then are the staged files renamed. A process
killed before the replacement leaves the old bundle; one killed after it leaves the new bundle,
because a file is found under either name.
"""

import fcntl
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from florilege.errors import BundleError
from florilege.files import sync_folder, write_atomic
from florilege.models.bundle.bundle_manifest import MANIFEST, Manifest, sha256_of
from florilege.models.json_file import read_json
from florilege.suggestions import did_you_mean, nearest_paths

_STAGED: Final = ".new-"


def read_manifest(folder: Path) -> Manifest:
    """Read ``bundle.json``; a :class:`BundleError` if it is missing, damaged or newer."""
    try:
        text = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BundleError(
            f"{folder} is not a bundle because it has no {MANIFEST}:"
            " make one with `florilege export RUN --out BUNDLE`"
            f"{'' if folder.exists() else did_you_mean(nearest_paths(folder))}"
        ) from error
    except OSError as error:
        raise BundleError(f"{folder / MANIFEST} cannot be read: {error.strerror}") from error
    return read_json(Manifest, text, folder / MANIFEST)


def old_manifest(folder: Path) -> Manifest | None:
    """The existing manifest, or None if it is too damaged to keep."""
    with suppress(BundleError):
        return read_manifest(folder)
    return None


def find_file(folder: Path, name: str, digest: str) -> Path:
    """Path of the file with this SHA-256, under its own or its staging name.

    Raises `BundleError` if it is missing or unreadable, or its content differs.
    """
    own = folder / name
    for candidate in (own, folder / _staged_name(name, digest)):
        try:
            if sha256_of(candidate) == digest:
                return candidate
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BundleError(f"{candidate} cannot be read: {error.strerror}") from error
    if not own.exists():
        raise BundleError(f"{own} is missing: copy or export the bundle again")
    raise BundleError(
        f"{own} does not match the SHA-256 in {MANIFEST}: copy or export the bundle again"
    )


def read_file(folder: Path, name: str, digest: str) -> bytes:
    """Content of the file with this SHA-256; errors as in :func:`find_file`."""
    for _attempt in range(3):  # a staged file may be renamed between finding and reading
        with suppress(FileNotFoundError):
            content = find_file(folder, name, digest).read_bytes()
            if sha256_of(content) == digest:
                return content
    raise BundleError(f"{folder / name} changed while it was read: open the bundle again")


def _staged_name(name: str, digest: str) -> str:
    return f"{name}{_STAGED}{digest[:8]}"


@contextmanager
def failures_named(folder: Path) -> Iterator[None]:
    """Turn a disk failure into a :class:`BundleError` that says the old files are unchanged."""
    try:
        yield
    except OSError as error:
        raise BundleError(
            f"writing {folder} failed: {error.strerror or error};"
            " existing files are unchanged: free some space or choose another path"
        ) from error


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Allow one writer at a time, with :func:`failures_named`."""
    with failures_named(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def build(folder: Path, manifest: Manifest, files: Mapping[str, bytes | Path]) -> None:
    """Write a new bundle into a hidden folder beside ``folder``, then rename it: all or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}{_STAGED}"))
    try:
        building.chmod(0o755)
        for name, source in files.items():
            _write(building / name, source)
        write_atomic(building / MANIFEST, manifest.to_json())
        building.rename(folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    with suppress(OSError):  # the bundle is in place already
        sync_folder(folder.parent)


def exchange(
    folder: Path, old: Manifest | None, new: Manifest, files: Mapping[str, bytes | Path]
) -> None:
    """Stage the changes, replace ``bundle.json`` atomically, then rename the staged files.

    Call it inside :func:`writing`; if the disk fails, the old bundle remains. ``old`` is None if it
    is too damaged to keep; ``files`` holds at least the new files.
    """
    if old is not None:
        _settle(folder, old)
    try:
        for name, source in files.items():
            if not _holds(folder / name, new.files[name]):
                _write(folder / _staged_name(name, new.files[name]), source)
        sync_folder(folder)
        write_atomic(folder / MANIFEST, new.to_json())
    except BaseException as error:
        if old_manifest(folder) != new:
            _remove_leftovers(folder)
            raise
        if not isinstance(error, OSError):
            raise
    with suppress(OSError):  # the new bundle is in place; only cleanup remains
        _settle(folder, new)
        for name in set(old.files if old else ()) - set(new.files):
            (folder / name).unlink(missing_ok=True)


def _settle(folder: Path, manifest: Manifest) -> None:
    """Rename the staged files of the bundle and remove all others."""
    for name, digest in manifest.files.items():
        staged = folder / _staged_name(name, digest)
        if _holds(staged, digest):
            staged.replace(folder / name)
    _remove_leftovers(folder)
    sync_folder(folder)


def _remove_leftovers(folder: Path) -> None:
    for pattern in (f"*{_STAGED}????????", f".{MANIFEST}.*"):
        for leftover in folder.glob(pattern):
            leftover.unlink(missing_ok=True)


def _holds(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_of(path) == digest


def _write(path: Path, source: bytes | Path) -> None:
    with path.open("wb") as file:
        opened = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
        with opened as origin:
            shutil.copyfileobj(origin, file)
        file.flush()
        os.fsync(file.fileno())
