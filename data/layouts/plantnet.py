"""Pl@ntNet-300K: ``images/<split>/<species id>/<photo>.jpg`` beside two JSON files.

The metadata give the observation of each photo, so that photos of one plant stay together; the
names file gives the species behind each id.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data.layouts.folder import list_folder
from data.records import Listing
from models.classes import ClassInfo
from models.errors import DataError

METADATA = "plantnet300K_metadata.json"
# The second is what old copies have.
NAMES = ("plantnet300K_species_id_2_name.json", "plantnet300K_species_names.json")
# Genus, hybrid sign, epithet, and the epithet of a subspecies, variety or form; then the authors.
_BINOMIAL = re.compile(
    r"[A-Z][\w-]+(?: [x\u00d7])?(?: \u00d7?[a-z][\w-]+)(?: (?:subsp\.|var\.|f\.) [a-z][\w-]+)?"
)


def is_plantnet(root: Path) -> bool:
    """Whether ``root`` holds the metadata file."""
    return (root / METADATA).is_file()


def list_plantnet(root: Path, source: str) -> Listing:
    """List the photos under ``images`` with their observations and species names.

    A photo missing from the metadata counts as an observation of its own.

    Raises:
        DataError: ``images`` or the names file is missing, or a JSON file is damaged.
    """
    if not (root / "images").is_dir():
        raise DataError(f"{source} has {METADATA} but no folder 'images'")
    metadata = _read_json(root / METADATA)
    listing = list_folder(root / "images", source)
    splits = {
        split: replace(each, observations=[_observation(name, metadata) for name in each.names])
        for split, each in listing.splits.items()
    }
    return replace(listing, splits=splits, known=_known(_read_json(_names_file(root, source))))


def _observation(name: str, metadata: Mapping[str, Any]) -> str:
    entry = metadata.get(Path(name).stem)
    known = entry.get("obs_id") if isinstance(entry, dict) else None
    return name if known is None else str(known)


def _known(names: Mapping[str, Any]) -> dict[str, ClassInfo]:
    full = {class_id: str(name).replace("_", " ").strip() for class_id, name in names.items()}
    short = {class_id: without_author(name) for class_id, name in full.items()}
    uses = Counter(short.values())
    return {
        class_id: ClassInfo(
            id=class_id,
            # Names may differ only in the author, who then tells them apart.
            scientific_name=name if uses[name] == 1 else full[class_id],
            genus=name.split(" ")[0] or None,
        )
        for class_id, name in short.items()
    }


def without_author(name: str) -> str:
    """The name of a species without its authors; unchanged where it does not look like one.

    Example:
        >>> without_author("Lactuca virosa L."), without_author("Mentha × piperita L.")
        ('Lactuca virosa', 'Mentha × piperita')
    """
    found = _BINOMIAL.match(name)
    return found.group() if found else name


def _names_file(root: Path, source: str) -> Path:
    for name in NAMES:
        if (root / name).is_file():
            return root / name
    raise DataError(f"{source} has {METADATA} but no {NAMES[0]}")


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold one JSON object, got {type(content).__name__}")
    return content
