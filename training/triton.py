"""A bundle's network as a model repository of Triton Inference Server.

Triton runs the network and nothing else: whoever asks it decodes photos and makes sets, with the
bundle and the library (``docs/scaling.md``).
"""

import json
import re
from pathlib import Path
from typing import Final

from models.bundle import open_bundle
from models.bundle.bundle import MODEL, Bundle
from models.errors import UsageError
from models.files import files_beside
from models.session import FEATURES, INPUT, Session

CONFIG: Final = "config.pbtxt"
MOST_AT_ONCE: Final = 32
WAIT_US: Final = 2000  # for others to share a batch with


def export_triton(path: Path, out: Path) -> Path:
    """Write the network of a bundle into the model repository ``out``, which others may share.

    Returns:
        The model's folder there: ``config.pbtxt`` and ``1/model.onnx``.

    Raises:
        BundleError: No bundle, or a damaged one.
        UsageError: The repository holds a model of this name, or cannot be written.
    """
    bundle = open_bundle(path)
    folder = out / model_name(bundle)
    config = config_of(bundle, Session(bundle, device="cpu").dimensions)
    try:
        (folder / "1").mkdir(parents=True, exist_ok=False)
        with files_beside(folder / "1") as beside:
            (beside / MODEL).write_bytes(bundle.read(MODEL))
        with files_beside(folder) as beside:  # last: without it the model is none
            (beside / CONFIG).write_text(config)
    except FileExistsError as error:
        raise UsageError(
            f"{folder} is there already: remove it, or name another repository with --out"
        ) from error
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from error
    return folder


def model_name(bundle: Bundle) -> str:
    """The bundle's name as a folder and a part of Triton's addresses."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", bundle.name).strip("-.") or "florilege"


def config_of(bundle: Bundle, dimensions: int | None) -> str:
    """Triton's ``ModelConfig`` in protobuf's text format; shapes are without the batch."""
    side, classes = bundle.preprocess.image_size, len(bundle.classes)
    outputs = [(name, classes) for name in bundle.heads.values()]
    if dimensions is not None:
        outputs.append((FEATURES, dimensions))
    listed = ",\n".join(
        f'  {{ name: "{name}" data_type: TYPE_FP32 dims: [ {width} ] }}' for name, width in outputs
    )
    return f"""\
name: {json.dumps(model_name(bundle))}
backend: "onnxruntime"
max_batch_size: {MOST_AT_ONCE}
input [
  {{ name: "{INPUT}" data_type: TYPE_UINT8 dims: [ {side}, {side}, 3 ] }}
]
output [
{listed}
]
dynamic_batching {{ max_queue_delay_microseconds: {WAIT_US} }}
parameters {{ key: "bundle_sha256" value {{ string_value: "{bundle.sha256}" }} }}
"""
