"""``bundle.json``: the name of a bundle, its heads, and the hash of each of its files."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from florilege.errors import BundleError

SCHEMA_VERSION: Final = 1
MANIFEST: Final = "bundle.json"
_HEADS: Final = {"linear", "cosine", "multi_label", "sccp"}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of ``bundle.json``."""

    name: str  # of the model
    version: str  # of the model, as given at export
    created: str  # UTC time in ISO 8601
    heads: Mapping[str, str]  # ONNX output name by head name
    files: Mapping[str, str]  # SHA-256 in hexadecimal by file name
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        for label in ("name", "version", "created"):
            if not isinstance(getattr(self, label), str) or not getattr(self, label):
                raise ValueError(f"{label} must be a string, got {getattr(self, label)!r}")
        if not _maps_texts(self.heads) or not self.heads or not set(self.heads) <= _HEADS:
            raise ValueError(f"heads must map names among {sorted(_HEADS)}, got {self.heads!r}")
        if not _maps_texts(self.files):
            raise ValueError(f"files must map names to SHA-256, got {self.files!r}")
        for name, digest in self.files.items():
            _check_file_name(name)
            if len(digest) != 64:
                raise ValueError(f"files: {name} must have a SHA-256, got {digest!r}")

    @property
    def sha256(self) -> str:
        """The identity of the bundle: SHA-256 of its content in canonical form."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes, *, where: Path) -> "Manifest":
        """Read ``bundle.json``.

        Raises:
            BundleError: It is damaged or has a newer schema; the message names ``where``.
        """
        try:
            entry = json.loads(text)
            version = entry["schema_version"]
            if type(version) is not int or version < 1:
                raise ValueError(f"schema_version must be a positive integer, got {version!r}")
            if version > SCHEMA_VERSION:
                raise BundleError(
                    f"{where} has schema {version}, but this florilege supports up to"
                    f" {SCHEMA_VERSION}: upgrade florilege"
                )
            return cls(**{key: entry[key] for key in cls.__dataclass_fields__})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BundleError(
                f"{where} is damaged ({error!r}): copy or export the bundle again"
            ) from error


def _maps_texts(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())


def _check_file_name(name: str) -> None:
    """Raise ``ValueError`` for a name that leaves the folder, is hidden or is a staging name."""
    plain = name and name == Path(name).name and name.isprintable() and "\\" not in name
    if not plain or name.startswith(".") or name == MANIFEST or ".new-" in name:
        raise ValueError(f"files: each name must be a plain file name, got {name!r}")


def sha256_of(source: bytes | Path) -> str:
    """SHA-256 of bytes or of a file's content, in hexadecimal."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
