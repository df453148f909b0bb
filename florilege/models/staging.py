"""``bundle.json``, the hashes of all files of a bundle, how they are read and replaced atomically.

A change is written beside the old files under staging names (``calibration.json.new-1a2b3c4d``).
Then ``bundle.json`` is replaced atomically, and only then are the staged files renamed. A process
killed before the replacement leaves the old bundle; one killed after it leaves the new bundle,
because a file is found under either name.
"""

import fcntl
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from florilege.errors import BundleError, did_you_mean, nearest_paths, os_error_as, way_out
from florilege.files import open_regular, read_regular, sync_folder, write_atomic

Content = TypeVar("Content")
_UNKNOWN_KEY: Final = ("extra_forbidden", "unexpected_keyword_argument")


def read_json(kind: type[Content], text: str | bytes, where: str | Path) -> Content:
    """Read a file of a bundle; a `BundleError` that names ``where`` if it is damaged or newer."""
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        fault, advice = _first_fault(error), "copy or export the bundle again"
        kinds = {(fault["loc"], fault["type"]) for fault in error.errors()}
        too_high = (("schema_version",), "less_than_equal")
        if too_high in kinds or any(kind in _UNKNOWN_KEY for _, kind in kinds):
            advice = "a newer florilege may have written it: upgrade florilege"
        raise BundleError(f"{where} is damaged: {fault}; {advice}") from error


def _first_fault(error: ValidationError) -> str:
    """The first refused key, with the reason and its value."""
    first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    message = f"{message[0].lower()}{message[1:]}"
    if first["type"] in _UNKNOWN_KEY:
        return f"unknown key {name!r}"
    if not name:
        return message
    value = "" if first["type"] == "missing" else f", got {first['input']!r}"
    return f"{name}: {message}{value}"


SCHEMA_VERSION: Final = 1
MANIFEST: Final = "bundle.json"
_MOST_BYTES: Final = 1_000_000  # of the manifest; ours have 2,000
_STAGED: Final = ".new-"


def _plain_name(name: str) -> str:
    """Refuse a name that leaves the folder, is hidden or is a staging name."""
    plain = name and name == Path(name).name and name.isprintable() and "\\" not in name
    if not plain or name.startswith(".") or name == MANIFEST or _STAGED in name:
        raise ValueError("each file must have a plain file name")
    return name


_Text = Annotated[str, Field(pattern=r"^\P{Cc}+$")]  # no line break: it is logged
_HeadName = Annotated[str, Field(pattern="^(linear|cosine|multi_label|sccp)$")]
_FileName = Annotated[str, AfterValidator(_plain_name)]
_Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of ``bundle.json``."""

    name: _Text  # of the model
    version: _Text  # of the model, as given at export
    created: _Text  # UTC time in ISO 8601
    heads: Annotated[Mapping[_HeadName, str], Field(min_length=1)]  # ONNX output by head
    files: Mapping[_FileName, _Digest]  # SHA-256 in hexadecimal by file name
    schema_version: Annotated[int, Field(strict=True, ge=1, le=SCHEMA_VERSION)]

    @property
    def sha256(self) -> str:
        """The identity of the bundle: SHA-256 of its content in canonical form."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False).encode() + b"\n"


def sha256_of(source: bytes | Path) -> str:
    """SHA-256 of bytes or of a file's content, in hexadecimal."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with open_regular(source) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


Files = Mapping[str, bytes | Path]
"""Content, or the file to copy, by file name."""


class BundleFolder:
    """The folder of a bundle."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def read_manifest(self) -> Manifest:
        """Read ``bundle.json``; a :class:`BundleError` if it is missing, damaged or newer."""
        file = self.path / MANIFEST
        try:
            return read_json(Manifest, read_regular(file, most=_MOST_BYTES), file)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BundleError(self._without_manifest()) from error
        except OSError as error:
            raise BundleError(f"{file} cannot be read: {error.strerror}") from error

    def _without_manifest(self) -> str:
        """The message where there is no ``bundle.json``."""
        if not self.path.exists():
            return f"no such bundle: {self.path}{did_you_mean(nearest_paths(self.path))}"
        if self.path.is_file():
            return f"{self.path} is a file; a bundle is the folder that holds {MANIFEST}"
        message = f"{self.path} is not a bundle because it has no {MANIFEST}"
        if (inner := self.path / "bundle").is_dir():  # of a run, or of `florilege fit`
            return message + did_you_mean([str(inner)])
        return (
            f"{message}: make one of photos with `florilege fit PHOTOS`, of a run with "
            "`florilege export RUN --out BUNDLE`"
        )

    def find_file(self, name: str, digest: str) -> Path:
        """Path of the file with this SHA-256, under its own or its staging name.

        Raises `BundleError` if it is missing or unreadable, or its content differs.
        """
        own = self.path / name
        for candidate in (own, self._staged(name, digest)):
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

    def read_file(self, name: str, digest: str) -> bytes:
        """Content of the file with this SHA-256; errors as in :meth:`find_file`."""
        # A staged file may get its own name between being found and being read.
        for _attempt in range(3):
            with suppress(FileNotFoundError):
                content = self.find_file(name, digest).read_bytes()
                if sha256_of(content) == digest:
                    return content
        raise BundleError(f"{self.path / name} changed while it was read: open the bundle again")

    def failures_named(self) -> AbstractContextManager[None]:
        """Turn a disk failure into a :class:`BundleError` that says the old files are unchanged."""
        failure = f"writing {self.path} failed and changed nothing"
        return os_error_as(BundleError, failure, way_out)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Allow one writer at a time, with :meth:`failures_named`."""
        with self.failures_named():
            handle = os.open(self.path, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)

    def build(self, manifest: Manifest, files: Files) -> None:
        """Write a new bundle into a hidden folder beside it, then rename that: all or nothing."""
        parent = self.path.parent
        with self.failures_named():
            parent.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(dir=parent, prefix=f".{self.path.name}{_STAGED}"))
            try:
                # `mkdtemp` makes it for its owner alone, and others may serve the bundle.
                building.chmod(0o755)
                for name, source in files.items():
                    _write(building / name, source)
                write_atomic(building / MANIFEST, manifest.to_json())
                building.rename(self.path)
            except BaseException:
                shutil.rmtree(building, ignore_errors=True)
                raise
        with suppress(OSError):  # the bundle is in place already
            sync_folder(parent)

    def exchange(self, new: Manifest, files: Files) -> None:
        """Stage the changes, replace ``bundle.json`` atomically, then rename the staged files.

        Call it inside :meth:`writing`; if the disk fails, the old bundle remains. ``files`` holds
        at least the new files.
        """
        old = self._whole_manifest()
        if old is not None:
            self._settle(old)
        try:
            for name, source in files.items():
                if not _holds(self.path / name, new.files[name]):
                    _write(self._staged(name, new.files[name]), source)
            sync_folder(self.path)
            write_atomic(self.path / MANIFEST, new.to_json())
        except BaseException as error:
            # An interruption may come after the replacement: then the new bundle is there and
            # stays.
            if self._whole_manifest() != new:
                self._remove_leftovers()
                raise
            if not isinstance(error, OSError):
                raise
        with suppress(OSError):  # the new bundle is in place; only cleanup remains
            self._settle(new)
            for name in set(old.files if old else ()) - set(new.files):
                (self.path / name).unlink(missing_ok=True)

    def _whole_manifest(self) -> Manifest | None:
        """The manifest, or None if it is too damaged to keep."""
        with suppress(BundleError):
            return self.read_manifest()
        return None

    def _settle(self, manifest: Manifest) -> None:
        """Rename the staged files of the bundle and remove all others."""
        for name, digest in manifest.files.items():
            staged = self._staged(name, digest)
            if _holds(staged, digest):
                staged.replace(self.path / name)
        self._remove_leftovers()
        sync_folder(self.path)

    def _remove_leftovers(self) -> None:
        # With the eight digits of `_staged`, and what `write_atomic` has left.
        for pattern in (f"*{_STAGED}????????", f".{MANIFEST}.*"):
            for leftover in self.path.glob(pattern):
                leftover.unlink(missing_ok=True)

    def _staged(self, name: str, digest: str) -> Path:
        return self.path / f"{name}{_STAGED}{digest[:8]}"


def _holds(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_of(path) == digest


def _write(path: Path, source: bytes | Path) -> None:
    with path.open("wb") as file:
        opened = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
        with opened as origin:
            shutil.copyfileobj(origin, file)
        file.flush()
        os.fsync(file.fileno())
