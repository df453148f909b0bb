"""Weights from files and downloads, and how they are fitted into a network."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
import torchvision
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from models.errors import BundleError

State = Mapping[str, Tensor]


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a state dict from a ``.safetensors`` file or a ``.pt``/``.pth`` checkpoint.

    A checkpoint is opened with ``weights_only=True``: nothing in it is run. One that holds
    more than weights is searched for its state dict under ``network``, ``state_dict`` or
    ``model``.

    Raises:
        BundleError: The file is missing, damaged, or holds no tensors.
    """
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            return dict(load_safetensors(path.read_bytes()))
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BundleError(f"cannot read weights from {path}: {error.strerror}") from error
    except (SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise BundleError(  # torch's own words advise opening it unsafely
            f"{path} is no file of weights, is damaged, or holds more than tensors and plain values"
        ) from error
    return _state_dict(content, path)


def _state_dict(content: object, path: Path) -> dict[str, Tensor]:
    for key in ("network", "state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict):
        raise BundleError(f"{path} holds no state dict (names and tensors)")
    state = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if not state:
        raise BundleError(f"{path} holds no tensors")
    return state


def read_imagenet(name: str) -> dict[str, Tensor]:
    """Torchvision's own ImageNet weights of a network, downloaded once and then kept.

    Raises:
        BundleError: There are none for this network, or they cannot be downloaded.
    """
    try:
        weights = torchvision.models.get_model_weights(name).DEFAULT
    except (ValueError, AttributeError) as error:
        raise BundleError(
            f"there are no ImageNet weights for {name}; leave weights out or name a file"
        ) from error
    try:  # torchvision renames the weights of its oldest files while it loads them
        network = torchvision.models.get_model(name, weights=weights)
    except (OSError, RuntimeError) as error:
        raise BundleError(
            f"the ImageNet weights of {name} could not be downloaded ({error}). Download "
            f"{weights.url} where there is a network and name the file as weights"
        ) from error
    return dict(network.state_dict())


def load_into(
    network: nn.Module, state: State, *, origin: str, head_must_fit: bool = False
) -> None:
    """Fill ``network`` with ``state``; only the last layer may be left as it is.

    Args:
        network: What ``models.backbones.build`` returns.
        state: A state dict of ours (``backbone.*``, ``head.*``) or of the plain torchvision
            network.
        origin: What the error message calls the weights.
        head_must_fit: Refuse a last layer of another kind or size instead of skipping it.

    Raises:
        BundleError: Names the weights that are missing, not known, or of another shape.
    """
    expected = network.state_dict()
    found = _our_names(state, str(getattr(network, "classifier", "")))
    if not head_must_fit and _head_differs(expected, found):
        found = {key: value for key, value in found.items() if not key.startswith("head.")}
        found |= {key: value for key, value in expected.items() if key.startswith("head.")}
    problems = _problems(expected, found)
    if problems:
        shown = "; ".join(problems[:6]) + ("; ..." if len(problems) > 6 else "")
        raise BundleError(
            f"{origin} belongs to another architecture, {len(problems)} weights differ: {shown}"
        )
    network.load_state_dict(found)


def _our_names(state: State, classifier: str) -> dict[str, Tensor]:
    """Put ``backbone.`` before the names of a plain network and drop its last layer."""
    if any(key.startswith("backbone.") for key in state):
        return dict(state)
    return {
        f"backbone.{key}": value
        for key, value in state.items()
        if not (classifier and key.startswith(f"{classifier}."))
    }


def _head_differs(expected: State, found: State) -> bool:
    ours = {key: value.shape for key, value in expected.items() if key.startswith("head.")}
    theirs = {key: value.shape for key, value in found.items() if key.startswith("head.")}
    return ours != theirs


def _problems(expected: State, found: State) -> list[str]:
    missing = [f"{key} is missing" for key in expected if key not in found]
    unknown = [f"{key} is not known" for key in found if key not in expected]
    shapes = [
        f"{key} is {tuple(found[key].shape)} instead of {tuple(value.shape)}"
        for key, value in expected.items()
        if key in found and found[key].shape != value.shape
    ]
    return [*shapes, *missing, *unknown]
