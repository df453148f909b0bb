"""The pictures that compare an imported network with the original."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from florilege.errors import DataError
from florilege.models.images import ImageError, Preprocess, load
from florilege.models.images.sniff import ENDINGS

MOST_PHOTOS: Final = 32  # compared; of more, a sample spread evenly over the sorted list


class _ComparisonPictures(NamedTuple):
    """Pictures as a bundle's network sees them."""

    names: list[str]
    pixels: npt.NDArray[np.uint8]  # RGB, (pictures, size, size, 3)


def comparison_pictures(photos: Sequence[Path], preprocess: Preprocess) -> _ComparisonPictures:
    """Photos, given as files or folders, decoded like on the server; synthetic ones if none.

    Raises:
        DataError: A folder holds no photo, or a photo cannot be read.
    """
    if not photos:
        pictures = dict(_synthetic_pictures(preprocess.image_size))
        return _ComparisonPictures(list(pictures), np.stack(list(pictures.values())))
    paths = [path for photo_or_folder in photos for path in _photos_of(photo_or_folder)]
    rows = np.linspace(0, len(paths) - 1, min(len(paths), MOST_PHOTOS)).astype(int)
    sample = [paths[row] for row in rows]
    pixels = np.stack([_load(path, preprocess) for path in sample])
    return _ComparisonPictures(list(map(str, sample)), pixels)


def _photos_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    photos = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS)
    if not photos:
        raise DataError(f"--photos {path} holds no photo: {', '.join(sorted(ENDINGS))}")
    return photos


def _load(path: Path, preprocess: Preprocess) -> npt.NDArray[np.uint8]:
    try:
        return load(path.read_bytes(), preprocess)
    except OSError as error:
        raise DataError(f"--photos {path} cannot be read: {error.strerror}") from error
    except ImageError as error:
        raise DataError(f"--photos {path}: {error}") from error


def _synthetic_pictures(side: int) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
    """Very different pictures that reveal swapped channels or axes."""
    random = np.random.default_rng(0)
    shape = (side, side, 3)
    yield "noise", random.integers(0, 256, shape, dtype=np.uint8)
    rows, columns = np.mgrid[0:side, 0:side] * (255 / max(side - 1, 1))
    slope = np.stack([rows, columns, 255 - rows], axis=2)
    yield "slopes", slope.astype(np.uint8)
    for number in range(4):
        patches = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        steps = np.arange(side) * 4 // side
        yield f"patches {number + 1}", patches[steps][:, steps]
    yield "black", np.zeros(shape, np.uint8)
    yield "white", np.full(shape, 255, np.uint8)
