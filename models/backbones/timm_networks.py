"""Networks of timm: ``timm:NAME[.tag]``, ``timm:hf-hub:ORG/MODEL`` and ``timm:local-dir:PATH``.

The part after ``timm:`` is passed to ``timm.create_model``. timm is imported lazily, because that
takes seconds.
"""

import sys
from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from florilege.errors import BundleError, UsageError, install_hint
from florilege.models.images import Preprocess

PREFIX: Final = "timm:"
_HUB: Final = "hf-hub:"
FOLDER: Final = "local-dir:"
_STEPS: Final = (1, 8, 14, 16, 28, 32, 56, 64, 112, 224)  # sides of patches and windows


def is_timm(name: str) -> bool:
    """Whether a backbone name belongs to timm."""
    return name.startswith(PREFIX)


def models() -> list[str]:
    """The names of timm's networks, with our prefix."""
    return [PREFIX + name for name in _timm().list_models()]


def tagged(name: str) -> list[str]:
    """The tagged names of a timm network, one for each set of pretrained weights."""
    plain = name.removeprefix(PREFIX).partition(".")[0]
    return [PREFIX + tag for tag in _timm().list_pretrained(f"{plain}.*")]


def is_known(name: str) -> bool:
    """Whether timm has this network; folders and repositories are checked when opened."""
    plain = name.removeprefix(PREFIX)
    if plain.startswith((_HUB, FOLDER)):
        return True
    architecture, _, tag = plain.partition(".")
    return bool(_timm().is_model(architecture)) and (not tag or name in tagged(name))


def weights_folder(name: str) -> Path | None:
    """The folder of a ``timm:local-dir:`` network, otherwise None."""
    plain = name.removeprefix(PREFIX)
    return Path(plain.removeprefix(FOLDER)) if plain.startswith(FOLDER) else None


@cache
def configuration(name: str) -> Mapping[str, Any]:
    """timm's ``pretrained_cfg``, which describes a network and its weights.

    Raises `ValueError` if a folder holds no network, `BundleError` if a repository cannot be read.
    """
    source = name.removeprefix(PREFIX)
    try:
        with torch.device("meta"):
            own: Mapping[str, Any] = _create(name).pretrained_cfg
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        message = str(error).partition("\n")[0]
        if not source.startswith(_HUB):
            raise ValueError(
                f"{name} is not a timm network ({message}); a folder needs config.json and "
                "model.safetensors, as timm saves them"
            ) from error
        repository = source.removeprefix(_HUB)
        raise BundleError(
            f"the configuration of {name} could not be downloaded ({message}). Download "
            f"config.json and model.safetensors of https://huggingface.co/{repository} on a "
            "machine with a network connection and pass their folder: "
            "timm:local-dir:FOLDER"
        ) from error
    return own


@cache
def megabytes(name: str) -> float | None:
    """The approximate size of a timm network's pretrained weights; None if there are none."""
    own = configuration(name)
    if not (own.get("hf_hub_id") or own.get("url") or weights_folder(name)):
        return None
    with torch.device("meta"):
        network = _timm().create_model(name.removeprefix(PREFIX), pretrained=False)
    return float(sum(tensor.nbytes for tensor in network.state_dict().values())) / 1e6


def own_preprocess(name: str) -> Preprocess:
    """The preprocessing of a timm network."""
    own = configuration(name)
    return Preprocess(
        image_size=int(own["input_size"][-1]),
        crop_fraction=float(own["crop_pct"]),
        resample="bilinear" if own["interpolation"] == "bilinear" else "bicubic",
        mean=own["mean"],
        std=own["std"],
    )


@cache
def normalises(name: str) -> bool:
    """Whether a timm network has normalisation layers."""
    configuration(name)  # refuses an unknown network
    with torch.device("meta"):
        modules = _create(name).modules()
    norms = (each for each in modules if "norm" in type(each).__name__.lower())
    return any("weight" in each._parameters for each in norms)


def side_taken(name: str, at_least: int) -> int:
    """The smallest usual side of at least ``at_least`` that works; otherwise the network's own."""
    own = own_preprocess(name).image_size
    sides = {-(-at_least // step) * step for step in _STEPS} | ({own} if own >= at_least else set())
    return next((side for side in sorted(sides) if _features(name, side)), own)


def build(name: str, image_size: int | None) -> tuple[nn.Module, int, tuple[str, ...]]:
    """The network without its last layers: module, features, names of those layers.

    Raises `ValueError` if it does not turn a picture into one feature vector.
    """
    side = image_size or own_preprocess(name).image_size
    features = _features(name, side)
    if features is None:
        raise ValueError(f"{name} does not turn a picture of {side} px into one feature vector")
    network = _create(name, side)
    return network, features, _last_layers(network, configuration(name))


def convert_state(backbone: nn.Module, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """``state`` converted by timm: from the names of its authors, and to our picture size."""
    convert = getattr(sys.modules[type(backbone).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return state
    try:
        converted: Mapping[str, Tensor] = convert(dict(state), backbone)
    except Exception:  # each network raises its own kind; `load_into` then lists the differences
        return state
    return converted


@cache
def _features(name: str, side: int) -> int | None:
    """Features of a picture of ``side`` pixels; None if the network does not take this size."""
    try:
        with torch.device("meta"), torch.no_grad():  # shapes without computation
            network = _create(name, side).eval()
            output = network(torch.zeros(1, 3, side, side))
    except Exception:  # each network refuses a size in its own way
        return None
    patch = getattr(getattr(network, "patch_embed", None), "patch_size", 1)
    patch_side = patch[0] if isinstance(patch, tuple) else patch
    whole = side % patch_side == 0  # otherwise it ignores a border
    one_vector = isinstance(output, Tensor) and output.ndim == 2
    return int(output.shape[1]) if whole and one_vector else None


def _create(name: str, side: int | None = None) -> Any:
    sized = side is not None and configuration(name).get("fixed_input_size")
    options = {"img_size": (side, side)} if sized else {}
    return _timm().create_model(
        name.removeprefix(PREFIX), pretrained=False, num_classes=0, **options
    )


def _last_layers(network: nn.Module, own: Mapping[str, Any]) -> tuple[str, ...]:
    """The layers, or the blocks around them, that timm removed, from its configuration."""
    default = _timm().get_pretrained_cfg(own["architecture"])  # a folder may not name them
    names = own.get("classifier") or default.classifier or ()
    modules, removed = dict(network.named_modules()), []
    for name in (names,) if isinstance(names, str) else names:
        blocks = accumulate(name.split("."), "{}.{}".format)  # from the outermost
        identities = (each for each in blocks if isinstance(modules.get(each), nn.Identity))
        removed.append(next(identities, name))
    return tuple(dict.fromkeys(removed))


def _timm() -> Any:
    try:
        import timm
    except ModuleNotFoundError as error:
        raise UsageError(
            f"a {PREFIX} backbone needs {error.name}: {install_hint('train')}"
        ) from error
    return timm
