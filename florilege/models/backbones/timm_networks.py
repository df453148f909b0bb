"""The part of a network before its last layer, known by name, and those of timm.

These are ``timm:NAME[.tag]``, ``timm:hf-hub:ORG/MODEL`` and ``timm:local-dir:PATH``; the part after
``timm:`` is passed to ``timm.create_model``. timm is imported lazily, because that takes seconds.
``known_networks.py`` has the other subclasses of `Architecture`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from florilege.errors import BundleError, UsageError, install_hint
from florilege.models.images import Preprocess
from florilege.terminal import say

PRETRAINED: Final = "pretrained"  # the value of `--weights` for the network's own

Backbone = tuple[nn.Module, int, tuple[str, ...]]
"""The module, its number of features, and the names of the last layers removed from it."""


class Pretrained(NamedTuple):
    """The file of pretrained weights."""

    path: Path
    source: str | None  # the URL that it was downloaded from
    licence: str | None  # None if unknown
    classes: Sequence[str] | None = None  # of the last layer; None if unknown


class Architecture(ABC):
    """A network by the name that ``--backbone`` takes.

    Defaults are those of a network without pretrained weights that takes pictures of any size.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def backbone(self, image_size: int | None) -> Backbone:
        """The network without its last layers, with random weights, for pictures of this size."""

    def preprocess(self, weights: str | None = None) -> Preprocess:
        """The default preprocessing with weights as ``weights.open_weights`` takes them.

        For timm's networks it comes from timm's configuration, for torchvision's pretrained weights
        from torchvision. Other networks take whole pictures at 224 px, normalised as for ImageNet.
        """
        return Preprocess(image_size=224)

    def side_taken(self, at_least: int) -> int:
        """The smallest picture side in pixels, at least ``at_least``, that the network takes."""
        return at_least

    @property
    def normalises(self) -> bool:
        """Whether it has normalisation layers, without which large steps diverge."""
        return True

    @property
    def megabytes(self) -> float | None:
        """The approximate size of its pretrained weights; None if there are none."""
        return None

    def pretrained(self) -> Pretrained:
        """Its pretrained weights, downloaded once and cached.

        Raises `BundleError` if there are none, or they cannot be downloaded.
        """
        raise BundleError(
            f"there are no pretrained weights for {self.name}; leave weights out or name a file"
        )

    def _download(self, url: str, *, check_hash: bool = False) -> Path:
        """Download a file into torch's cache, once; its name may end in digits of its hash."""
        name = url.rpartition("/")[2]
        path = Path(torch.hub.get_dir()) / "checkpoints" / name
        digest = torch.hub.HASH_REGEX.search(name) if check_hash else None
        try:
            if not path.is_file():
                self._announce(url)
                path.parent.mkdir(parents=True, exist_ok=True)
                prefix = digest and digest.group(1)
                torch.hub.download_url_to_file(url, str(path), prefix, progress=False)
        except (OSError, RuntimeError) as error:
            raise self._unreachable(error, url) from error
        return path

    def _announce(self, address: str) -> None:
        size = self.megabytes
        say(
            f"downloading the pretrained weights of {self.name}"
            f"{f', about {size:.0f} MB,' if size else ''} from {address}; they are cached for "
            "later runs (--weights FILE takes a file instead)"
        )

    def _unreachable(self, error: Exception, address: str) -> BundleError:
        message = str(error).partition("\n")[0].rstrip(".")
        return BundleError(
            f"the pretrained weights of {self.name} could not be downloaded ({message}). Download "
            f"{address} on a machine with a network connection and pass the file: --weights FILE"
        )


PREFIX: Final = "timm:"
_HUB: Final = "hf-hub:"
_FOLDER: Final = "local-dir:"
_FILES: Final = ("model.safetensors", "pytorch_model.bin")  # in a repository or folder
_STEPS: Final = (1, 8, 14, 16, 28, 32, 56, 64, 112, 224)  # sides of patches and windows


class TimmNetwork(Architecture):
    """A network of timm."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._plain = name.removeprefix(PREFIX)

    def known_names(self) -> list[str]:
        """The names of timm's networks and, if this one has a tag, its name with each tag."""
        plain, _, tag = self._plain.partition(".")
        tagged = _timm().list_pretrained(f"{plain}.*") if tag else []
        return [PREFIX + name for name in (*_timm().list_models(), *tagged)]

    @property
    def is_known(self) -> bool:
        """Whether timm has this network; folders and repositories are checked when opened."""
        if self._plain.startswith((_HUB, _FOLDER)):
            return True
        architecture, _, tag = self._plain.partition(".")
        return bool(_timm().is_model(architecture)) and (not tag or self.name in self.known_names())

    @property
    def folder(self) -> Path | None:
        """The folder of a ``timm:local-dir:`` network, otherwise None."""
        plain = self._plain
        return Path(plain.removeprefix(_FOLDER)) if plain.startswith(_FOLDER) else None

    @property
    def configuration(self) -> Mapping[str, Any]:
        """timm's ``pretrained_cfg``, which describes a network and its weights.

        Raises `ValueError` if a folder holds no network, `BundleError` if a repository cannot be
        read.
        """
        return _configuration(self._plain)

    def preprocess(self, weights: str | None = None) -> Preprocess:
        own = self.configuration
        return Preprocess(
            image_size=int(own["input_size"][-1]),
            crop_fraction=float(own["crop_pct"]),
            resample="bilinear" if own["interpolation"] == "bilinear" else "bicubic",
            mean=own["mean"],
            std=own["std"],
        )

    def side_taken(self, at_least: int) -> int:
        """The smallest usual side of at least ``at_least`` that works; otherwise its own."""
        own = self.preprocess().image_size
        sides = {-(-at_least // step) * step for step in _STEPS}
        sides |= {own} if own >= at_least else set()
        return next((side for side in sorted(sides) if _features(self._plain, side)), own)

    def backbone(self, image_size: int | None) -> Backbone:
        side = image_size or self.preprocess().image_size
        features = _features(self._plain, side)
        if features is None:
            message = f"{self.name} does not turn a picture of {side} px into one feature vector"
            raise ValueError(message)
        network = _create(self._plain, _fixed_side(self._plain, side))
        return network, features, _last_layers(network, self.configuration)

    @property
    def normalises(self) -> bool:
        modules = _blank(self._plain, None, _version(self._plain)).modules()
        norms = (module for module in modules if "norm" in type(module).__name__.lower())
        return any("weight" in norm._parameters for norm in norms)

    @property
    def megabytes(self) -> float | None:
        own = self.configuration
        if not (own.get("hf_hub_id") or own.get("url") or self.folder):
            return None
        with torch.device("meta"):
            network = _timm().create_model(self._plain, pretrained=False)
        return float(sum(tensor.nbytes for tensor in network.state_dict().values())) / 1e6

    def pretrained(self) -> Pretrained:
        own, folder = self.configuration, self.folder
        address: str | None = own.get("url")
        if folder is not None:
            files = [folder / file for file in _FILES if (folder / file).is_file()]
            if not files:
                raise BundleError(f"{folder} holds no {' and no '.join(_FILES)}")
            path, address = files[0], None
        elif own.get("hf_hub_id"):
            path, address = self._from_hub(own)
        elif address:
            path = self._download(address)
        else:
            return super().pretrained()
        return Pretrained(path, address, own.get("license"))

    def _from_hub(self, own: Mapping[str, Any]) -> tuple[Path, str]:
        """Download the file from its Hugging Face repository; returns its cached path and URL."""
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        repository, _, tag = own["hf_hub_id"].partition("@")
        revision, own_file = tag or None, own.get("hf_hub_filename")
        files = [own_file] if own_file else list(_FILES)
        base_url = f"https://huggingface.co/{repository}/resolve/{tag or 'main'}"
        cached = {type(try_to_load_from_cache(repository, f, revision=revision)) for f in files}
        if str not in cached:
            self._announce(f"{base_url}/{files[0]}")
        for file in files:
            try:
                path = hf_hub_download(repository, file, revision=revision)
            except EntryNotFoundError as error:
                if isinstance(error, LocalEntryNotFoundError):  # no network
                    raise self._unreachable(error, f"{base_url}/{file}") from error
            except (OSError, ValueError) as error:
                raise self._unreachable(error, f"{base_url}/{file}") from error
            else:
                return Path(path), f"{base_url}/{file}"
        raise BundleError(f"https://huggingface.co/{repository} holds no {' and no '.join(files)}")


def _configuration(plain: str) -> Mapping[str, Any]:
    return _configuration_of(plain, _version(plain))


def _version(plain: str) -> int:
    """When the file that describes a folder's network was written; 0 for any other network.

    What is cached belongs to one: a program may save another network to the same folder.
    """
    if not plain.startswith(_FOLDER):
        return 0
    file = Path(plain.removeprefix(_FOLDER)) / "config.json"
    return file.stat().st_mtime_ns if file.is_file() else 0


@cache
def _configuration_of(plain: str, version: int) -> Mapping[str, Any]:
    try:
        own: Mapping[str, Any] = _blank(plain, None, version).pretrained_cfg
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        message = str(error).partition("\n")[0]
        if not plain.startswith(_HUB):
            raise ValueError(
                f"{PREFIX}{plain} is not a timm network ({message}); a folder needs config.json "
                "and model.safetensors, as timm saves them"
            ) from error
        repository = plain.removeprefix(_HUB)
        raise BundleError(
            f"the configuration of {PREFIX}{plain} could not be downloaded ({message}). Download "
            f"config.json and model.safetensors of https://huggingface.co/{repository} on a "
            "machine with a network connection and pass their folder: "
            "timm:local-dir:FOLDER"
        ) from error
    return own


def _features(plain: str, side: int) -> int | None:
    """Features of a picture of ``side`` pixels; None if the network does not take this size."""
    return _features_of(plain, side, _version(plain))


@cache
def _features_of(plain: str, side: int, version: int) -> int | None:
    try:
        with torch.device("meta"), torch.no_grad():  # shapes without computation
            network = _blank(plain, _fixed_side(plain, side), version).eval()
            output = network(torch.zeros(1, 3, side, side))
    except Exception:  # each network refuses a size in its own way
        return None
    patch = getattr(getattr(network, "patch_embed", None), "patch_size", 1)
    patch_side = patch[0] if isinstance(patch, tuple) else patch
    whole = side % patch_side == 0  # otherwise it ignores a border
    one_vector = isinstance(output, Tensor) and output.ndim == 2
    return int(output.shape[1]) if whole and one_vector else None


# Ten sides may be tried on a network that is asked for its configuration first.
@lru_cache(2)
def _blank(plain: str, side: int | None, version: int) -> Any:
    """The network without memory for its weights, and without its last layers."""
    with torch.device("meta"):
        return _create(plain, side)


def _fixed_side(plain: str, side: int) -> int | None:
    """The side that a network must be built for; None for its own, and if it takes any."""
    own = _configuration(plain)
    return side if own.get("fixed_input_size") and own["input_size"][-1] != side else None


def _create(plain: str, side: int | None) -> Any:
    options = {} if side is None else {"img_size": (side, side)}
    return _timm().create_model(plain, pretrained=False, num_classes=0, **options)


def _last_layers(network: nn.Module, own: Mapping[str, Any]) -> tuple[str, ...]:
    """The layers, or the blocks around them, that timm removed, from its configuration."""
    default = _timm().get_pretrained_cfg(own["architecture"])  # a folder may not name them
    names = own.get("classifier") or default.classifier or ()
    modules, removed = dict(network.named_modules()), []
    for name in (names,) if isinstance(names, str) else names:
        blocks = accumulate(name.split("."), "{}.{}".format)  # from the outermost
        identities = (block for block in blocks if isinstance(modules.get(block), nn.Identity))
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
