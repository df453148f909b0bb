"""``bundle.json``: the name of a bundle, its heads, and the hash of each of its files."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

SCHEMA_VERSION: Final = 1
MANIFEST: Final = "bundle.json"


def _plain_name(name: str) -> str:
    """Refuse a name that leaves the folder, is hidden or is a staging name."""
    plain = name and name == Path(name).name and name.isprintable() and "\\" not in name
    if not plain or name.startswith(".") or name == MANIFEST or ".new-" in name:
        raise ValueError("each file must have a plain file name")
    return name


_Text = Annotated[str, Field(min_length=1)]
_HeadName = Annotated[str, Field(pattern="^(linear|cosine|multi_label|sccp)$")]
_FileName = Annotated[str, AfterValidator(_plain_name)]
_Digest = Annotated[str, Field(min_length=64, max_length=64)]


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
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
