"""Where weights come from: the file, its hash and its licence."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

RECORD: Final = "weights.json"  # of a run folder: the weights it began with
_BUNDLE_RECORD: Final = "provenance.json"
_LICENCE: Final = "LICENSE"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Weights that a network started from, as its model card names them."""

    file: str
    sha256: str | None  # None where the file was not found again after its download
    licence: str | None  # None where it is unknown
    source: str | None = None  # the address they were downloaded from
    made_from: dict[str, Any] | None = None  # the weights that these had started from

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def provenance_of(
    path: Path, *, licence: str | None = None, source: str | None = None
) -> Provenance:
    """The provenance of a file.

    A file without a known licence takes the first line of a ``LICENSE`` beside it, or the licence
    of the weights that it was itself made from where it is in a run folder or a bundle.
    """
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    before = None if source else _before(path)
    if licence is None and source is None:
        licence = _licence_beside(path) or (before or {}).get("licence")
    return Provenance(
        file=path.name, sha256=sha256, licence=licence, source=source, made_from=before
    )


def _licence_beside(path: Path) -> str | None:
    try:
        text = path.with_name(_LICENCE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return next((line.strip() for line in text.splitlines() if line.strip()), None)


def _before(path: Path) -> dict[str, Any] | None:
    """What the run or bundle around a file says of the weights it began with."""
    run = _read(path.with_name(RECORD))
    record = run or _read(path.with_name(_BUNDLE_RECORD)).get("starting_weights")
    return record if isinstance(record, dict) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
