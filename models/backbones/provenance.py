"""The origin of weights: the file, its hash and its licence."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

RECORD: Final = "weights.json"  # in a run folder: the weights that the run started from
_BUNDLE_RECORD: Final = "provenance.json"
_LICENCE: Final = "LICENSE"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The weights that a network started from, for its model card."""

    file: str
    sha256: str | None  # None if the downloaded file is missing from the cache
    licence: str | None  # None if unknown
    source: str | None = None  # the URL that they were downloaded from
    made_from: dict[str, Any] | None = None  # the weights that these started from

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def provenance_of(
    path: Path, *, licence: str | None = None, source: str | None = None
) -> Provenance:
    """The provenance of a file.

    The licence of a file without a known one is the first line of a ``LICENSE`` beside it. In a run
    folder or a bundle, it may also be the licence of the weights that the file started from.
    """
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    made_from = None if source else _starting_weights(path)
    if licence is None and source is None:
        licence = _licence_beside(path) or (made_from or {}).get("licence")
    return Provenance(
        file=path.name, sha256=sha256, licence=licence, source=source, made_from=made_from
    )


def _licence_beside(path: Path) -> str | None:
    try:
        text = path.with_name(_LICENCE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return next((line.strip() for line in text.splitlines() if line.strip()), None)


def _starting_weights(path: Path) -> dict[str, Any] | None:
    """The recorded starting weights of the run or bundle that contains a file."""
    run = _read(path.with_name(RECORD))
    record = run or _read(path.with_name(_BUNDLE_RECORD)).get("starting_weights")
    return record if isinstance(record, dict) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
