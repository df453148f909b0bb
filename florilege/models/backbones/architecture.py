"""The part of a network before its last layer, known by name: one subclass for each library."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import nn

from florilege.errors import BundleError
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
