"""The bundle of an imported network: its files, and what its papers say of where it came from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from florilege.data.layouts.class_file import read_classes
from florilege.models.bundle import Bundle, write_bundle
from florilege.models.bundle.bundle import THUMBNAILS
from florilege.models.classes import ClassTable
from florilege.models.images import Preprocess
from florilege.models.imported.parity import Agreement
from florilege.models.thumbnails import pack, read_thumbnails

NO_SPLIT: Final = "none"
"""What ``--chosen-on`` takes where no photo of the data chose the checkpoint."""
_LIBRARIES: Final = ("florilege", "torch", "torchvision", "timm", "onnx", "onnxruntime", "numpy")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A network made elsewhere, as what a bundle holds, with what is known of it."""

    name: str
    model: bytes
    preprocess: Preprocess
    files: Mapping[str, str]  # SHA-256 by name of the files it came in
    facts: Mapping[str, str]  # what was found out, by what people call it
    agreement: Agreement  # with the original
    pictures: Sequence[str]  # names of those compared
    made_up: bool  # whether these are no photos
    logits: npt.NDArray[np.float64]  # of these

    @property
    def agreed(self) -> str:
        """How it agrees with the original, in words."""
        held, kind = self.agreement, "made-up pictures" if self.made_up else "photos"
        return (
            f"original and bundle differ by at most {held.max_difference:.2g} (allowed "
            f"{held.tolerance:.2g}) on {held.pictures} {kind}, best class the same for "
            f"{held.same_best_class}"
        )


def read_class_table(path: Path) -> tuple[ClassTable, bytes]:
    """The classes of a table in the order of its rows, which is that of the outputs.

    Returns:
        Them, and the content of ``thumbnails.zip``, empty where none has a picture.

    Raises:
        DataError: It cannot be read, has no column ``class_id``, a class without an id or twice, or
            names a thumbnail that cannot be used.
    """
    told = read_classes(path)
    classes = ClassTable(tuple(told.known.values()))
    pictures = read_thumbnails(str(path), told.thumbnails)
    return classes, pack(classes, pictures) if pictures else b""


def write_imported(
    found: Imported,
    classes: ClassTable,
    thumbnails: bytes,
    out: Path,
    *,
    chosen_on: str | None = None,
) -> Bundle:
    """Write the bundle, which still has to be calibrated.

    Args:
        found: The network.
        classes: What its outputs stand for.
        thumbnails: Content of ``thumbnails.zip``; may be empty.
        out: Its folder.
        chosen_on: The split whose photos chose the checkpoint, :data:`NO_SPLIT` where none did;
            None where nobody says.

    Raises:
        BundleError: ``out`` is something else, or cannot be written.
    """
    files: dict[str, bytes | Path] = {
        "model.onnx": found.model,
        "classes.json": classes.to_json().encode(),
        "preprocess.json": found.preprocess.to_json().encode(),
        "metrics.json": b"{}\n",
        "MODEL_CARD.md": _card(found, classes).encode(),
        "provenance.json": _provenance(found, chosen_on),
    }
    if thumbnails:
        files[THUMBNAILS] = thumbnails
    return write_bundle(out, files, name=found.name, version="1", heads={"linear": "logits"})


def _provenance(found: Imported, chosen_on: str | None) -> bytes:
    """Where it came from; what chose the checkpoint is left out where nobody says."""
    chosen = {"checkpoint_chosen_on": None if chosen_on == NO_SPLIT else chosen_on}
    content: dict[str, Any] = {
        **({} if chosen_on is None else chosen),
        "imported_from": dict(found.files),
        "facts": dict(found.facts),
        "agreement": {**asdict(found.agreement), "made_up_pictures": found.made_up},
        "libraries": {name: _version(name) for name in _LIBRARIES},
    }
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _card(found: Imported, classes: ClassTable) -> str:
    files = "\n".join(
        f"- file: `{name}`, sha256 `{digest}`" for name, digest in found.files.items()
    )
    facts = "\n".join(f"- {name}: {fact}" for name, fact in found.facts.items())
    return f"""# {found.name}

A network trained elsewhere that tells {len(classes)} classes apart. It answers a photo with a set
of classes: the ones whose score reaches a threshold calibrated for a mean set size K.

## Origin

{files}
{facts}

Checked at import: {found.agreed}.
How it was trained, on what, and under which licence it may be used, its makers know.

## Limits

- The sets are K classes on average on photos like those of the calibration, not on others.
- A photo of something that belongs to none of the classes still gets a set, unless the server
  rejects it.
- Scores are to be compared with the threshold calibrated for them; they promise nothing about a
  single photo.
"""
