"""Download the pretrained weights of torchvision and timm."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from florilege.errors import BundleError
from florilege.models.backbones import timm_networks
from florilege.models.backbones.provenance import Provenance, provenance_of
from florilege.models.backbones.small_networks import SMALL_NETWORKS
from florilege.models.images import Preprocess
from florilege.terminal import say

_FILES: Final = ("model.safetensors", "pytorch_model.bin")  # in a timm repository or folder


def own_preprocess(name: str) -> Preprocess | None:
    """The preprocessing of torchvision's pretrained weights; None if there are none."""
    weights = _torchvision_weights(name)
    if weights is None:
        return None
    own = weights.transforms()
    return Preprocess(
        image_size=own.crop_size[0],
        crop_fraction=own.crop_size[0] / own.resize_size[0],
        resample=own.interpolation.value,
        mean=own.mean,
        std=own.std,
    )


def megabytes(name: str) -> float | None:
    """The approximate size of a network's pretrained weights; None if there are none."""
    if timm_networks.is_timm(name):
        return timm_networks.megabytes(name)
    weights = None if name in SMALL_NETWORKS else _torchvision_weights(name)
    return None if weights is None else float(weights.meta["_file_size"])


def read_torchvision(name: str) -> tuple[Mapping[str, Tensor], Sequence[str], Provenance]:
    """Torchvision's weights, downloaded once and cached: weights, categories, provenance.

    Raises `BundleError` if there are none for this network, or they cannot be downloaded.
    """
    weights = _torchvision_weights(name)
    if weights is None:
        raise _none(name)
    licence, file = weights.meta.get("license"), weights.url.rpartition("/")[2]
    path = Path(torch.hub.get_dir()) / "checkpoints" / file
    if not path.is_file():
        _announce(name, weights.url)
    try:
        state = weights.get_state_dict(check_hash=True, progress=False)
    except (OSError, RuntimeError) as error:
        raise _unreachable(name, error, weights.url) from error
    provenance = provenance_of(path, licence=licence, source=weights.url)
    return state, weights.meta["categories"], provenance


def fetch_timm(name: str) -> tuple[Path, Provenance]:
    """The file of timm's weights, downloaded once and cached; errors as `read_torchvision`."""
    own, folder = timm_networks.configuration(name), timm_networks.weights_folder(name)
    address: str | None = own.get("url")
    if folder is not None:
        files = [folder / file for file in _FILES if (folder / file).is_file()]
        if not files:
            raise BundleError(f"{folder} holds no {' and no '.join(_FILES)}")
        path, address = files[0], None
    elif own.get("hf_hub_id"):
        path, address = _from_hub(name, own)
    elif address:
        path = _from_address(name, address)
    else:
        raise _none(name)
    return path, provenance_of(path, licence=own.get("license"), source=address)


def _from_hub(name: str, own: Mapping[str, Any]) -> tuple[Path, str]:
    """Download the file from its Hugging Face repository; returns its cached path and URL."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repository, _, tag = own["hf_hub_id"].partition("@")
    revision, own_file = tag or None, own.get("hf_hub_filename")
    files = [own_file] if own_file else list(_FILES)
    base_url = f"https://huggingface.co/{repository}/resolve/{tag or 'main'}"
    cached = {type(try_to_load_from_cache(repository, each, revision=revision)) for each in files}
    if str not in cached:
        _announce(name, f"{base_url}/{files[0]}")
    for file in files:
        try:
            path = hf_hub_download(repository, file, revision=revision)
        except LocalEntryNotFoundError as error:  # no network
            raise _unreachable(name, error, f"{base_url}/{file}") from error
        except EntryNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise _unreachable(name, error, f"{base_url}/{file}") from error
        return Path(path), f"{base_url}/{file}"
    raise BundleError(f"https://huggingface.co/{repository} holds no {' and no '.join(files)}")


def _from_address(name: str, url: str) -> Path:
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    try:
        if not path.is_file():
            _announce(name, url)
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(path), progress=False)
    except (OSError, RuntimeError) as error:
        raise _unreachable(name, error, url) from error
    return path


def _none(name: str) -> BundleError:
    return BundleError(
        f"there are no pretrained weights for {name}; leave weights out or name a file"
    )


def _announce(name: str, address: str) -> None:
    size = megabytes(name)
    say(
        f"downloading the pretrained weights of {name}{f', about {size:.0f} MB,' if size else ''} "
        f"from {address}; they are cached for later runs (--weights FILE takes a file instead)"
    )


def _unreachable(name: str, error: Exception, address: str) -> BundleError:
    message = str(error).partition("\n")[0].rstrip(".")
    return BundleError(
        f"the pretrained weights of {name} could not be downloaded ({message}). Download {address} "
        "on a machine with a network connection and pass the file: --weights FILE"
    )


def _torchvision_weights(name: str) -> Any:
    from torchvision import models  # lazy: it takes seconds

    try:
        return models.get_model_weights(name).DEFAULT
    except (ValueError, AttributeError):
        return None
