"""Random augmentation: crop, flips, shift, rotation, colour of a picture; mixtures of a batch.

Each step on a picture is a pure function of the picture and uniform numbers in [0, 1).
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.nn import functional as F

from florilege.training.config import AugmentConfig, Border

Picture = NDArray[np.uint8]
Box = tuple[float, float, float, float]

DRAWS: Final = 14
"""How many uniform numbers :func:`augment` takes."""


def augment(
    picture: Picture | Image.Image, size: int, config: AugmentConfig, draws: Sequence[float]
) -> Picture:
    """A random square view of ``picture``, ``size`` pixels wide, made with ``DRAWS`` numbers.

    The picture is RGB, uint8 ``(height, width, 3)``, or an image in RGB; the view is such an array.
    """
    width, height = _size(picture)
    view = _resized(picture, _crop_box(width, height, config, draws[0:4]), size)
    if draws[4] < config.flip:
        view = view[:, ::-1]
    if draws[5] < config.flip_vertical:
        view = view[::-1]
    # A step keeps its numbers wherever it stands, so that a seed gives the same views if steps are
    # added.
    if draws[12] < config.transpose:
        view = view.transpose(1, 0, 2)
    if config.shift:
        steps = 2 * config.shift + 1  # all equally likely
        down, right = (int(draw * steps) - config.shift for draw in draws[6:8])
        view = _shifted(view, down, right, config.border)
    if config.rotate:
        view = _rotated(view, (2 * draws[8] - 1) * config.rotate, config.border)
    if config.colour:
        view = _recoloured(view, [1 + (2 * draw - 1) * config.colour for draw in draws[9:12]])
    if config.randaugment:
        view = _operated(view, config.randaugment, config.magnitude, seed=int(draws[13] * 2**32))
    return view


def _crop_box(width: int, height: int, config: AugmentConfig, draws: Sequence[float]) -> Box:
    """Left, top, right, bottom of a random crop, inside the picture.

    Its area (between two shares of the largest square), the logarithm of its aspect ratio and its
    position are all uniform.
    """
    square = min(width, height)
    area = config.min_area + (config.max_area - config.min_area) * draws[0]
    stretch = math.exp((2 * draws[1] - 1) * math.log(config.max_stretch) / 2)
    crop_width = min(float(width), square * math.sqrt(area) * stretch)
    crop_height = min(float(height), square * math.sqrt(area) / stretch)
    left = (width - crop_width) * draws[2]
    top = (height - crop_height) * draws[3]
    return left, top, min(left + crop_width, width), min(top + crop_height, height)


def _resized(picture: Picture | Image.Image, box: Box, size: int) -> Picture:
    """The part ``box`` of ``picture``, resized to ``size`` x ``size`` with antialiasing."""
    width, height = _size(picture)
    whole = box == (0.0, 0.0, float(width), float(height))
    if whole and width == height == size:
        return np.asarray(picture)
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    return np.array(image.resize((size, size), Image.Resampling.BILINEAR, box, reducing_gap=2.0))


def _size(picture: Picture | Image.Image) -> tuple[int, int]:
    """Width and height."""
    if isinstance(picture, Image.Image):
        return picture.size
    return picture.shape[1], picture.shape[0]


def _shifted(picture: Picture, down: int, right: int, border: Border = "reflected") -> Picture:
    """Move the picture by whole pixels."""
    height, width = picture.shape[:2]
    margin = min(max(abs(down), abs(right)), height - 1, width - 1)
    top, column = margin - np.clip((down, right), -margin, margin)
    return _padded(picture, margin, border)[top : top + height, column : column + width]


def _rotated(picture: Picture, degrees: float, border: Border = "reflected") -> Picture:
    height, width = picture.shape[:2]
    # (sqrt(2) - 1) / 2 is 0.207: so far a square turned by 45 degrees reaches beyond its sides.
    margin = min(math.ceil(0.21 * max(height, width)), height - 1, width - 1)
    padded = Image.fromarray(_padded(picture, margin, border))
    turned = np.array(padded.rotate(degrees, Image.Resampling.BILINEAR))
    return turned[margin : margin + height, margin : margin + width]


def _padded(picture: Picture, margin: int, border: Border) -> Picture:
    widths = ((margin, margin), (margin, margin), (0, 0))
    return np.pad(picture, widths, mode="reflect" if border == "reflected" else "constant")


def _recoloured(picture: Picture, factors: Sequence[float]) -> Picture:
    """Multiply brightness, contrast and saturation by ``factors``."""
    image = Image.fromarray(np.ascontiguousarray(picture))
    image = ImageEnhance.Brightness(image).enhance(factors[0])
    image = ImageEnhance.Contrast(image).enhance(factors[1])
    image = ImageEnhance.Color(image).enhance(factors[2])
    return np.array(image)


def _operated(picture: Picture, operations: int, magnitude: int, *, seed: int) -> Picture:
    """RandAugment, which draws from torch's random state: it is seeded and restored."""
    # Here, because the import takes a second.
    from torchvision.transforms.v2 import RandAugment

    image = Image.fromarray(np.ascontiguousarray(picture))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return np.array(RandAugment(operations, magnitude)(image))


def cut_mixed(
    images: Tensor, labels: Tensor, alpha: float, *, classes: int, seed: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """CutMix of a batch: images ``(batch, height, width, 3)``, and their soft targets, float32.

    The share of each picture itself is drawn from Beta(``alpha``, ``alpha``); its partner is the
    one before it. ``labels`` are int64 ``(batch,)``; the targets ``(batch, classes)``.

    References:
        Yun et al., "CutMix: Regularization strategy to train strong classifiers with localizable
        features", ICCV 2019.
    """
    from torchvision.transforms.v2 import CutMix

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.default_rng(tuple(seed)).integers(2**63)))
        mixed, targets = CutMix(alpha=alpha, num_classes=classes)(images.movedim(3, 1), labels)
    return mixed.movedim(1, 3), targets


def mixed(
    images: Tensor, labels: Tensor, alpha: float, *, classes: int, seed: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Mixup of a batch: each picture and its label mixed with those of a partner, both float32.

    One share for the batch is drawn from Beta(``alpha``, ``alpha``), and a permutation as partners.
    Shapes are those of `cut_mixed`, but images may be features as well, ``(batch, dimensions)``.

    References:
        Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018.

    Example:
        >>> images, labels = torch.tensor([[0.0], [1.0]]), torch.tensor([0, 2])
        >>> images, targets = mixed(images, labels, 0.4, classes=3, seed=(0, 0, 1))
        >>> bool((images[:, 0] == targets[:, 2]).all())
        True
    """
    random = np.random.default_rng(tuple(seed))
    share = float(random.beta(alpha, alpha))
    order = torch.from_numpy(random.permutation(len(labels)))
    partners = order.to(images.device, non_blocking=True)

    def mix(values: Tensor) -> Tensor:
        return share * values.float() + (1 - share) * values.float()[partners]

    return mix(images), mix(F.one_hot(labels, classes))
