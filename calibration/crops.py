"""Ten crops of one photo, to be scored each and fused like photos of one plant."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.images import Preprocess, decode

CROPS = 10
LARGER = Fraction(8, 7)
"""The picture is this much larger than a crop: 256 for crops of 224."""


def ten_crops(picture: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """The four corners and the centre, then the same five mirrored left to right.

    Args:
        picture: Shape ``(height, width, 3)``, both sides at least ``size``.
        size: Side of a crop in pixels.

    Returns:
        Shape ``(10, size, size, 3)``.

    Raises:
        ValueError: Another shape, or a side shorter than ``size``.

    References:
        Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural
        networks", 2012.

    Example:
        >>> ten_crops(np.zeros((9, 12, 3), dtype=np.uint8), 8).shape
        (10, 8, 8, 3)
    """
    if picture.ndim != 3 or not 1 <= size <= min(picture.shape[:2]):
        raise ValueError(
            "picture must have shape (height, width, 3) and size be in [1, its shorter side], "
            f"got {picture.shape} and {size}"
        )
    down, right = picture.shape[0] - size, picture.shape[1] - size
    places = [(0, 0), (0, right), (down, 0), (down, right), (down // 2, right // 2)]
    crops = np.stack([picture[top : top + size, left : left + size] for top, left in places])
    return np.concatenate([crops, crops[:, :, ::-1]])


def crops_of(content: bytes, preprocess: Preprocess) -> NDArray[np.uint8]:
    """Ten crops of an encoded photo, each as large as the input of the network.

    The whole photo is resized, antialiased, so that its short side is 8/7 of a crop, or what
    ``crop_fraction`` asks for where that is more.

    Args:
        content: An encoded picture.
        preprocess: Of the bundle.

    Returns:
        Shape ``(10, image_size, image_size, 3)``.

    Raises:
        ImageError: The picture cannot be decoded.
    """
    short = max(preprocess.resize_side, round(preprocess.image_size * LARGER))
    picture = decode(content, target=short)
    scale = short / min(picture.size)
    size = (max(short, round(picture.width * scale)), max(short, round(picture.height * scale)))
    resample = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    resized = picture.resize(size, resample[preprocess.resample])
    return ten_crops(np.asarray(resized), preprocess.image_size)
