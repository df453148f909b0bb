"""Weights from files and downloads: where they come from, and how a network takes them."""

import hashlib
import json
import pickle
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from florilege.errors import BundleError, first, os_error_as
from florilege.models.backbones.known_networks import PRETRAINED as PRETRAINED
from florilege.models.backbones.known_networks import architecture
from florilege.models.classes import ClassTable
from florilege.models.photo_hashes import PHOTOS, PhotoHashes

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


def _provenance_of(
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


State = Mapping[str, Tensor]
_INSIDE: Final = ("best.safetensors", "weights.safetensors")  # in a run folder, in a bundle
_HOLDERS: Final = ("network", "state_dict", "model_state_dict", "model")
_OLD_NAMES: Final = (
    (r"\b_orig_mod\.", ""),  # torch.compile
    (r"^(backbone\.|head\.)?module\.", r"\1"),  # DistributedDataParallel
    (r"(denselayer\d+\.(?:norm|conv))\.([12])\.", r"\1\2."),  # torchvision's oldest DenseNets
    (r"\.mlp\.linear_1\.", ".mlp.0."),  # torchvision's oldest vision transformers
    (r"\.mlp\.linear_2\.", ".mlp.3."),
)
_AUXILIARY_HEADS: Final = ("backbone.aux1.", "backbone.aux2.", "backbone.AuxLogits.")
_POSITIONS: Final = "encoder.pos_embedding"
_SHOWN: Final = 10  # maximum number of names in a message


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights to start from."""

    origin: str  # name in messages
    state: State  # by our names (`backbone.*`, `head.*`) or those of torchvision or timm
    classes: Sequence[str] | None  # the class id of each row of the last layer; None if unknown
    provenance: Provenance | None = None
    photos: PhotoHashes | None = None  # that trained and chose them, if they come from our own run


def open_weights(weights: str, backbone: str) -> Weights:
    """Open the weights that ``--weights`` names.

    Args:
        weights: ``pretrained`` to download the network's own; a ``.safetensors`` or ``.pt`` file;
            or the folder of a run or a bundle that contains weights. A ``classes.json`` beside a
            file names the classes of its last layer.
        backbone: Name of the network, for ``pretrained``.

    Raises:
        BundleError: They cannot be found, downloaded or read.
    """
    if weights == PRETRAINED:
        path, source, licence, classes = architecture(backbone).pretrained()
        origin, photos = f"the pretrained weights of {backbone}", None
    else:
        path, source, licence = _weights_file(Path(weights)), None, None
        origin, classes, photos = str(path), _classes_beside(path), _photos_beside(path)
    return Weights(
        origin=origin,
        state=read_weights(path),
        classes=classes,
        provenance=_provenance_of(path, licence=licence, source=source),
        photos=photos,
    )


def _weights_file(path: Path) -> Path:
    """The file itself, or the one inside the folder of a run or a bundle."""
    if not path.is_dir():
        return path
    files = [path / name for name in _INSIDE if (path / name).is_file()]
    if not files:
        raise BundleError(f"{path} holds no {' and no '.join(_INSIDE)}: name a weights file")
    return files[0]


def _classes_beside(path: Path) -> tuple[str, ...] | None:
    try:
        return ClassTable.from_json(path.with_name("classes.json").read_bytes()).ids
    except (OSError, BundleError):  # missing, or not our format
        return None


def _photos_beside(path: Path) -> PhotoHashes | None:
    """The photos of the run or bundle that contains a weights file; None for other files."""
    try:
        return PhotoHashes.from_bytes(path.with_name(PHOTOS).read_bytes())
    except FileNotFoundError:
        in_run = path.with_name("config.yaml").is_file()
        return PhotoHashes.of(complete=False) if in_run else None  # a run of an older version
    except (OSError, ValueError) as error:
        raise BundleError(f"cannot read {path.with_name(PHOTOS)}: {error}") from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a ``.safetensors`` file or a ``.pt``/``.pth`` checkpoint.

    A checkpoint is opened with ``weights_only=True``, which runs none of its code. If it holds more
    than weights, the state dict may be under ``network``, ``state_dict``, ``model_state_dict`` or
    ``model``. Raises `BundleError` if the file is missing, damaged, or holds no tensors.
    """
    try:
        with os_error_as(BundleError, f"cannot read weights from {path}"):
            if path.suffix == ".safetensors":
                return dict(load_safetensors(path.read_bytes()))
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise BundleError(  # torch's own message advises loading it unsafely
            f"{path} is not a weights file, is damaged, or holds more than tensors and plain values"
        ) from error
    return _state_dict(content, path)


def _state_dict(content: object, path: Path) -> dict[str, Tensor]:
    for key in _HOLDERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict):
        raise BundleError(f"{path} holds no state dict (names and tensors)")
    state = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if not state:
        raise BundleError(f"{path} holds no tensors")
    return state


def load_into(network: nn.Module, state: State, *, origin: str) -> None:
    """Load ``state`` into ``network``; every name and shape must match.

    The `BundleError` about others names ``origin`` and the weights that are missing, unknown or of
    another shape.
    """
    expected = network.state_dict()
    if problems := list(_differences(expected, state)):
        details = "; ".join(problems[:6]) + ("; ..." if len(problems) > 6 else "")
        raise BundleError(
            f"{origin} belongs to another architecture, {len(problems)} weights differ: {details}"
        )
    # Not `load_state_dict`, which may need metadata that files lack.
    for key, value in expected.items():
        value.copy_(state[key])


def _differences(expected: State, state: State) -> Iterator[str]:
    for key, value in expected.items():
        if key in state and state[key].shape != value.shape:
            yield f"{key} is {tuple(state[key].shape)} instead of {tuple(value.shape)}"
    yield from (f"{key} is missing" for key in expected if key not in state)
    yield from (f"{key} is unknown" for key in state if key not in expected)


def warm_start(network: nn.Module, weights: Weights, classes: Sequence[str] | None = None) -> str:
    """Load the weights of a trained network into ``network``, perhaps for other classes.

    The backbone must fit. Older names, missing batch norm counters, auxiliary heads and the
    picture size of a transformer are converted. If the last layer is of the same kind, the rows of
    classes known on both sides are loaded and the others stay unchanged. If the classes of one side
    are unknown, all rows are loaded, provided their number is the same. ``classes`` holds the id of
    each row of logits of ``network``.

    Returns one line that says what was loaded; a `BundleError` for another architecture.
    """
    expected = network.state_dict()
    state = _our_names(weights.state, getattr(network, "last_layers", ()))
    head, note = _last_layer(expected, state, weights.classes, classes)
    state = {key: value for key, value in state.items() if not key.startswith("head.")}
    _fit_positions(network, expected, state)
    state = _fit_timm(network, expected, state)
    counters = {key: value for key, value in expected.items() if key.endswith("_batches_tracked")}
    load_into(network, counters | state | head, origin=weights.origin)
    return f"{weights.origin}: the backbone is loaded, {note}"


def _our_names(state: State, last_layers: Sequence[str]) -> dict[str, Tensor]:
    """Current names, with the prefix ``backbone.`` or ``head.`` for those of a plain network.

    With several last layers, none is the head: the network averages their outputs.
    """
    for old, new in _OLD_NAMES:
        state = {re.sub(old, new, key): value for key, value in state.items()}
    if not any(key.startswith("backbone.") for key in state):
        state = {_with_prefix(key, last_layers): value for key, value in state.items()}
    return {key: value for key, value in state.items() if not key.startswith(_AUXILIARY_HEADS)}


def _with_prefix(key: str, last_layers: Sequence[str]) -> str:
    head = "head." if len(last_layers) == 1 else "head.several."
    for layer in last_layers:
        if key.startswith(f"{layer}."):
            return head + key.removeprefix(f"{layer}.")
    return f"backbone.{key}"


def _last_layer(
    expected: State, state: State, theirs: Sequence[str] | None, ours: Sequence[str] | None
) -> tuple[dict[str, Tensor], str]:
    """The head of ``expected`` with the rows of ``state`` that match, and a note for the user."""
    head = {key: value.clone() for key, value in _head_of(expected).items()}
    layers = {key: value for key, value in head.items() if value.ndim}  # a scale has no rows
    source, name = _head_of(state), next(iter(layers))
    if source.keys() != head.keys() or not _same_kind(layers, source):
        return head, "the last layer starts from scratch: the file has none of this kind"
    rows, classes = len(source[name]), len(head[name])
    if ours is not None and theirs is not None and len(theirs) == rows:
        source_row, note = _rows_by_class(theirs, ours)
    else:
        source_row, note = _rows_in_order(rows, classes)
    for key, value in layers.items():
        value[list(source_row)] = source[key][list(source_row.values())].to(value)
    return head, note


def _head_of(state: State) -> State:
    return {key: value for key, value in state.items() if key.startswith("head.")}


def _same_kind(layers: State, source: State) -> bool:
    """Whether all layers of ``source`` have one number of rows, with rows as long as ours."""
    rows = source[next(iter(layers))].shape[:1]
    return all(source[key].shape == (*rows, *value.shape[1:]) for key, value in layers.items())


def _rows_in_order(rows: int, classes: int) -> tuple[dict[int, int], str]:
    """The file's row for each of our classes if the file does not name its classes."""
    if rows != classes:
        return {}, f"the last layer starts from scratch: the file does not name its {rows} classes"
    return {row: row for row in range(rows)}, (
        f"and the last layer row by row: no classes.json beside it names its {rows} classes, so "
        "they are assumed to be yours in the same order"
    )


def _rows_by_class(theirs: Sequence[str], ours: Sequence[str]) -> tuple[dict[int, int], str]:
    row_of = {name: row for row, name in enumerate(theirs)}
    source_row = {row: row_of[name] for row, name in enumerate(ours) if name in row_of}
    note = f"and the last layer for {len(source_row)} of {len(ours)} classes"
    if fresh := [name for name in ours if name not in row_of]:
        note += f"; the others start from scratch: {first(fresh, _SHOWN)}"
    own = set(ours)
    if unused := [name for name in theirs if name not in own]:
        note += f"; classes you do not have are left out: {first(unused, _SHOWN)}"
    return source_row, note


def _fit_positions(network: nn.Module, expected: State, state: dict[str, Tensor]) -> None:
    """Interpolate a vision transformer's position embeddings to our picture size."""
    key = f"backbone.{_POSITIONS}"
    if key not in expected or key not in state or expected[key].shape == state[key].shape:
        return
    from torchvision.models.vision_transformer import interpolate_embeddings

    transformer = network.get_submodule("backbone")
    try:
        state[key] = interpolate_embeddings(
            transformer.image_size, transformer.patch_size, {_POSITIONS: state[key]}
        )[_POSITIONS]
    except (ValueError, RuntimeError):  # the rows are not a square of patches
        return  # load_into refuses them


def _fit_timm(network: nn.Module, expected: State, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Let timm convert weights that do not fit its network: from other names, to our size."""
    backbone = network.get_submodule("backbone")
    fits = all(
        key in state and state[key].shape == value.shape
        for key, value in expected.items()
        if key.startswith("backbone.")
    )
    module = type(backbone).__module__
    convert = getattr(sys.modules[module], "checkpoint_filter_fn", None)
    if fits or convert is None or not module.startswith("timm."):
        return state
    plain = {key.removeprefix("backbone."): value for key, value in state.items()}
    try:
        converted = convert(plain, backbone)
    except Exception:  # each network raises its own kind; `load_into` then lists the differences
        return state
    return {f"backbone.{key}": value for key, value in converted.items()}
