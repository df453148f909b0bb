"""A classifier trained elsewhere as a bundle: its files, its model card, and where it came from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from florilege.models.bundle import Bundle, write_bundle
from florilege.models.bundle.bundle import THUMBNAILS
from florilege.models.classes import ClassTable
from florilege.models.images import Preprocess
from florilege.models.imported.parity import OutputComparison
from florilege.models.runtime import installed

NO_SPLIT: Final = "none"
"""What ``--chosen-on`` takes where no photo of the data chose the checkpoint."""
_LIBRARIES: Final = ("florilege", "torch", "torchvision", "timm", "onnx", "onnxruntime", "numpy")


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A classifier trained elsewhere, compared with the original."""

    name: str
    model: bytes  # ONNX, with the input and outputs of a bundle
    preprocess: Preprocess
    files: Mapping[str, str]  # SHA-256 by name of the files it came in
    facts: Mapping[str, str]  # about it, by what people call them
    agreement: OutputComparison  # with the original
    pictures: Sequence[str]  # names of those compared
    synthetic: bool  # whether these are made up, not photos
    logits: npt.NDArray[np.float64]  # of these, (pictures, classes)

    @property
    def agreement_text(self) -> str:
        """How it agrees with the original, in words."""
        comparison, kind = self.agreement, "made-up pictures" if self.synthetic else "photos"
        return (
            f"original and bundle differ by at most {comparison.max_difference:.2g} (allowed "
            f"{comparison.tolerance:.2g}) on {comparison.pictures} {kind}, best class the same for "
            f"{comparison.same_best_class}"
        )


def write_imported(
    imported: ImportedModel,
    classes: ClassTable,
    thumbnails: bytes,
    out: Path,
    *,
    chosen_on: str | None = None,
) -> Bundle:
    """Write the bundle, which still has to be calibrated.

    Args:
        imported: The classifier.
        classes: What its outputs stand for.
        thumbnails: Content of ``thumbnails.zip``; may be empty.
        out: Its folder.
        chosen_on: The split whose photos chose the checkpoint, :data:`NO_SPLIT` where none did;
            None where it is unknown.

    Raises:
        BundleError: ``out`` is something else, or cannot be written.
    """
    files: dict[str, bytes | Path] = {
        "model.onnx": imported.model,
        "classes.json": classes.to_json().encode(),
        "preprocess.json": imported.preprocess.to_json().encode(),
        "metrics.json": b"{}\n",
        "MODEL_CARD.md": _model_card(imported, classes).encode(),
        "provenance.json": _provenance(imported, chosen_on),
    }
    if thumbnails:
        files[THUMBNAILS] = thumbnails
    return write_bundle(out, files, name=imported.name, version="1", heads={"linear": "logits"})


def _provenance(imported: ImportedModel, chosen_on: str | None) -> bytes:
    """Where it came from; what chose the checkpoint is left out where it is unknown."""
    selection = {"checkpoint_chosen_on": None if chosen_on == NO_SPLIT else chosen_on}
    content: dict[str, Any] = {
        **({} if chosen_on is None else selection),
        "imported_from": dict(imported.files),
        "facts": dict(imported.facts),
        "agreement": {**asdict(imported.agreement), "made_up_pictures": imported.synthetic},
        "libraries": {name: installed(name) for name in _LIBRARIES},
    }
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _model_card(imported: ImportedModel, classes: ClassTable) -> str:
    files = "\n".join(
        f"- file: `{name}`, sha256 `{digest}`" for name, digest in imported.files.items()
    )
    facts = "\n".join(f"- {name}: {fact}" for name, fact in imported.facts.items())
    return f"""# {imported.name}

A network trained elsewhere that tells {len(classes)} classes apart. It answers a photo with a set
of classes: the ones whose score reaches a threshold calibrated for a mean set size K.

## Origin

{files}
{facts}

Checked at import: {imported.agreement_text}.
How it was trained, on what, and under which licence it may be used, its makers know.

## Limits

- The sets are K classes on average on photos like those of the calibration, not on others.
- A photo of something that belongs to none of the classes still gets a set, unless the server
  rejects it.
- Scores are to be compared with the threshold calibrated for them; they promise nothing about a
  single photo.
"""
