r"""Find the same photo in two splits though its bytes differ: resized, re-encoded or cropped.

A 64-bit hash of each photo proposes pairs, and a look at both photos confirms them. The hash holds
the signs of the lowest frequencies of a small grey picture, which survive such changes. Photos of
one plant, or of many pale things on white, may share them; their details do not agree.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from florilege.cores import in_order
from florilege.files import read_regular
from florilege.models.images import MAX_BYTES, ImageError, Preprocess, load
from florilege.terminal import progress

Picture = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Grey = NDArray[np.float64]
_Spectrum = NDArray[np.complex128]

_HASH_SIDE: Final = 32  # pixels of the picture that is hashed
LOOK_SIDE: Final = 96  # and of the one that is looked at
_LOOKED_AT: Final = Preprocess(image_size=LOOK_SIDE)
_FREQUENCIES: Final = 8  # along each side; with the lowest one they are 64 bits
# Of 200 photos of groceries none differs from itself by more than 2 bits when it is re-encoded at
# quality 60 or halved, none by more than 10 when it is cropped by 3 %; of 4.2 million pairs of
# other photos 27 differ by 12 bits at most. More bits would mean many more pairs to look at.
MOST_BITS: Final = 12
# The same photos agree by .956 or more, the most similar others, a second apart, by .919.
_LEAST_AGREEMENT: Final = 0.94
_PAIRS_AT_ONCE: Final = 2**22
_SCALES: Final = tuple(1 + step / 100 for step in range(-6, 7))
_LARGEST_SHIFT: Final = 9  # of LOOK_SIDE pixels
_FINER: Final = 4  # shifts are found to a quarter of a pixel: edges half a pixel apart do not agree
_BLUR: Final = 0.5  # pixels


def _cosines() -> Grey:
    """The lowest frequencies of a discrete cosine transform, ``(frequencies, pixels)``."""
    pixels = np.arange(_HASH_SIDE)
    frequencies = np.arange(_FREQUENCIES)[:, np.newaxis]
    cosines: Grey = np.cos(np.pi * (2 * pixels + 1) * frequencies / (2 * _HASH_SIDE))
    return cosines


_COSINES: Final = _cosines()
_BITS: Final = np.left_shift(np.uint64(1), np.arange(64, dtype=np.uint64))


def look_at(photo: bytes | Image.Image) -> Picture:
    """A photo as it is compared, RGB, ``(LOOK_SIDE, LOOK_SIDE, 3)``; ImageError if damaged."""
    return load(photo, _LOOKED_AT)


def visual_hash(picture: Picture) -> int:
    """64 bits that a photo keeps when it is resized, re-encoded or cropped a little.

    ``picture`` is RGB, as :func:`look_at` gives it. A bit says whether a frequency is stronger
    than the median of all.

    Example:
        >>> picture = np.random.default_rng(0).integers(0, 200, (96, 96, 3), dtype=np.uint8)
        >>> visual_hash(picture) == visual_hash(picture + 20)
        True
    """
    fine = LOOK_SIDE // _HASH_SIDE
    small = grey_of(picture).reshape(_HASH_SIDE, fine, _HASH_SIDE, fine).mean((1, 3))
    strength = _COSINES @ small @ _COSINES.T
    strength[0, 0] = 0.0  # the brightness
    return int(_BITS[(strength > np.median(strength)).ravel()].sum())


def grey_of(picture: Picture) -> Grey:
    """The brightness of RGB pixels."""
    return np.asarray(picture.astype(np.float64) @ (0.299, 0.587, 0.114))


def close_pairs(ours: Sequence[int], others: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rows of two lists of hashes that differ in at most ``MOST_BITS`` bits."""
    one, two = (np.array(hashes, dtype=np.uint64) for hashes in (ours, others))
    rows = max(1, _PAIRS_AT_ONCE // max(1, len(two)))
    for start in range(0, len(one), rows):
        block = one[start : start + rows, np.newaxis]
        near = np.bitwise_count(block ^ two) <= MOST_BITS
        for row, other in zip(*np.nonzero(near), strict=True):
            yield start + int(row), int(other)


def same_photo(one: Picture, other: Picture) -> bool:
    """Whether two pictures, RGB, ``(LOOK_SIDE, LOOK_SIDE, 3)``, show the same photo."""
    return _agreement(one, other) >= _LEAST_AGREEMENT


def _agreement(one: Picture, other: Picture) -> float:
    """The correlation of the details of two pictures, in [-1, 1], where they fit best.

    Both are RGB, ``(LOOK_SIDE, LOOK_SIDE, 3)``. One may be a crop of the other, so several scales
    and shifts are tried.
    """
    ours, theirs = _details(grey_of(one)), grey_of(other)
    spectra = [ours * _details(_scaled(theirs, scale)).conj() for scale in _SCALES]
    best = int(np.argmax([_peak(spectrum, 1) for spectrum in spectra]))
    return max(_peak(spectrum, _FINER) for spectrum in spectra[max(0, best - 1) : best + 2])


def _peak(spectrum: _Spectrum, finer: int) -> float:
    """The largest correlation over the shifts in a spectrum, by steps of ``1 / finer`` pixels."""
    side, half = len(spectrum) * finer, len(spectrum) // 2
    whole = np.zeros((side, side // 2 + 1), dtype=complex)
    whole[:half, : half + 1] = spectrum[:half]
    whole[-half:, : half + 1] = spectrum[-half:]
    products = np.fft.irfft2(whole, s=(side, side)) * finer**2
    shifts = np.r_[0 : _LARGEST_SHIFT * finer + 1, -_LARGEST_SHIFT * finer : 0]
    return float(products[np.ix_(shifts, shifts)].max())


def _details(grey: Grey) -> _Spectrum:
    """The spectrum of the edges, faded out at the border, with a norm of one.

    Flat areas agree in any two photos.
    """
    edges = 4 * grey
    for axis in (0, 1):
        edges -= np.roll(grey, 1, axis) + np.roll(grey, -1, axis)
    side = len(grey)
    down, right = np.fft.fftfreq(side)[:, np.newaxis], np.fft.rfftfreq(side)
    blur = np.exp(-2 * (np.pi * _BLUR) ** 2 * (down**2 + right**2))
    edges = np.fft.irfft2(np.fft.rfft2(edges) * blur, s=edges.shape)
    window = np.hanning(side + 2)[1:-1]
    edges *= window[:, np.newaxis] * window
    edges -= edges.mean()
    norm = float(np.sqrt((edges**2).sum()))
    spectrum: _Spectrum = np.fft.rfft2(edges / norm if norm > 1e-9 else np.zeros_like(edges))
    return spectrum


def _scaled(grey: Grey, scale: float) -> Grey:
    """Enlarge a picture around its middle, by linear interpolation."""
    side = len(grey)
    places = np.clip((np.arange(side) - (side - 1) / 2) / scale + (side - 1) / 2, 0, side - 1)
    low = np.minimum(places.astype(int), side - 2)
    share = places - low
    rows = grey[low] * (1 - share)[:, np.newaxis] + grey[low + 1] * share[:, np.newaxis]
    scaled: Grey = rows[:, low] * (1 - share) + rows[:, low + 1] * share
    return scaled


def joined_groups(groups: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """The group of each photo, with groups joined that share a photo, in the same or other bytes.

    A joined group has the name of its first one. Photos that cannot be read join none; ``data
    check`` reports them.
    """
    first_of = {group: group for group in groups}

    def first(group: str) -> str:
        while first_of[group] != group:
            group = first_of[group]
        return group

    for row, other in _close_rows(paths):
        ours, theirs = first(groups[row]), first(groups[other])
        if ours != theirs and same_photo(_look_at(paths[row]), _look_at(paths[other])):
            first_of[theirs] = ours
    return [first(group) for group in groups]


def _close_rows(paths: Sequence[Path]) -> Iterator[tuple[int, int]]:
    """Pairs of rows, the smaller one first, whose photos may be the same."""
    hashes = dict[int, int]()
    with progress(len(paths), "looking for copies") as advance:
        for row, visual in enumerate(in_order(_hash_of, paths)):
            if visual is not None:
                hashes[row] = visual
            advance()
    rows, values = list(hashes), list(hashes.values())
    return ((rows[one], rows[two]) for one, two in close_pairs(values, values) if one < two)


def _hash_of(path: Path) -> int | None:
    try:
        return visual_hash(look_at(read_regular(path, most=MAX_BYTES)))
    except (OSError, ImageError):
        return None


@lru_cache(maxsize=1000)  # 28 KB each
def _look_at(path: Path) -> Picture:
    return look_at(read_regular(path, most=MAX_BYTES))
