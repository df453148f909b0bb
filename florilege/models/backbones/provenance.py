"""The origin of weights: the file, its hash and its licence."""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

RECORD: Final = "weights.json"  # in a run folder: the weights that the run started from


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The weights that a network started from, for its model card."""

    file: str
    sha256: str
    licence: str | None  # None if unknown
    source: str | None = None  # the URL that they were downloaded from
    made_from: dict[str, Any] | None = None  # the weights that these started from

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def provenance_of(
    path: Path, *, licence: str | None = None, source: str | None = None
) -> Provenance:
    """The provenance of a file.

    An unknown licence is read from the first line of a ``LICENSE`` beside the file. In a run folder
    or a bundle, it may also be the licence of the weights that the file started from.
    """
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    run = _read(path.with_name(RECORD))  # the starting weights of a run, or of a bundle
    record = run or _read(path.with_name("provenance.json")).get("starting_weights")
    made_from = record if isinstance(record, dict) and not source else None
    if licence is None and source is None:
        licence = _first_line(path.with_name("LICENSE")) or (made_from or {}).get("licence")
    return Provenance(
        file=path.name, sha256=sha256, licence=licence, source=source, made_from=made_from
    )


def _first_line(path: Path) -> str | None:
    with suppress(OSError, UnicodeDecodeError):
        lines = map(str.strip, path.read_text(encoding="utf-8").splitlines())
        return next(filter(None, lines), None)
    return None


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        content = json.loads(path.read_bytes())
        return content if isinstance(content, dict) else {}
    return {}
