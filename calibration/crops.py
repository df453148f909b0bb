"""Ten crops of one photo, to be scored each and fused like photos of one plant."""

import numpy as np
from numpy.typing import NDArray

CROPS = 10


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
