r"""Recognise a photo that was resized, re-encoded or cropped, by 40 bytes of the first version.

The first eight bytes are a :func:`.near_duplicates.visual_hash` of the whole photo, which proposes
pairs. The others hold the signs of 256 frequencies of its middle. The second photo, whose pixels
are at hand, is scaled and shifted until its own signs fit best: that is what a crop has done. Signs
alone, without strengths, make details count as much as the large areas in which photos agree.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from florilege.cores import in_order
from florilege.data.copies.near_duplicates import (
    LOOK_SIDE,
    MOST_BITS,
    Hashes,
    Picture,
    grey_of,
    look_at,
    visual_hash,
)
from florilege.data.dataset import Split
from florilege.models.images import ImageError
from florilege.terminal import progress

WORDS: Final = 5  # of a fingerprint, eight bytes each
_FREQUENCIES: Final = 16  # along each side
_SIDE: Final = 32  # pixels of the middle, whose frequencies these are
_MIDDLE: Final = 0.88  # of the side: what a crop by 6 % and a shift still leave inside
# The signs of 24 photos of groceries and objects that were re-encoded at quality 60, halved, or cut
# by 3 % at each edge differ in at most 10 of 255 places; those of other photos of one plant in 14
# or more, unless nothing moved between the two. Of 2 million pairs of photos of groceries in train
# and elsewhere none differs in so few.
_MOST_SIGNS: Final = 10
_COARSE_SIGNS: Final = 64  # where scale and shift fit only roughly
_FLAT: Final = 2.0  # standard deviation in grey levels below which a photo shows nothing


def _cosines(scale: float, shift: float) -> NDArray[np.float64]:
    """The frequencies of the middle of a row of pixels, as a matrix over the whole row."""
    fine, half = 3 * _SIDE, LOOK_SIDE * _MIDDLE / scale / 2
    places = LOOK_SIDE / 2 - 0.5 + shift + half * ((np.arange(fine) + 0.5) / fine * 2 - 1)
    places = np.clip(places, 0, LOOK_SIDE - 1)
    low = np.minimum(places.astype(int), LOOK_SIDE - 2)
    rows, resize = np.arange(fine), np.zeros((fine, LOOK_SIDE))
    resize[rows, low], resize[rows, low + 1] = 1 - (places - low), places - low
    angles = np.pi * (2 * np.arange(_SIDE) + 1) * np.arange(_FREQUENCIES)[:, np.newaxis]
    cosines: NDArray[np.float64] = np.cos(angles / (2 * _SIDE)) @ resize.reshape(
        _SIDE, 3, LOOK_SIDE
    ).mean(1)
    return cosines


def _layers(scales: Sequence[float], shifts: Sequence[float]) -> NDArray[np.float64]:
    """Cosines of scaled and shifted rows, ``(scales, shifts, frequencies, LOOK_SIDE)``."""
    return np.array([[_cosines(1 + scale, shift) for shift in shifts] for scale in scales])


_AS_IT_IS: Final = _layers([0], [0])
_STEPS: Final = (  # how photos are scaled and shifted, with the signs that may then differ
    (_layers([-0.04, 0, 0.04], [-2, 0, 2]), _COARSE_SIGNS),
    (_layers(np.linspace(-0.06, 0.06, 13).tolist(), np.linspace(-3, 3, 13).tolist()), _MOST_SIGNS),
)


def fingerprint(picture: Picture) -> Hashes:
    """Words by which copies of a photo are recognised, ``(WORDS,)``; never all zero.

    Example:
        >>> picture = np.random.default_rng(0).integers(0, 255, (96, 96, 3), dtype=np.uint8)
        >>> is_copy(picture, fingerprint(picture)[np.newaxis])
        True
    """
    return np.append(np.uint64(visual_hash(picture)), _signs(grey_of(picture), _AS_IT_IS)[0])


def is_copy(picture: Picture, fingerprints: Hashes) -> bool:
    """Whether a picture shows a photo of which a fingerprint is known, ``(photos, WORDS)``."""
    bits = np.bitwise_count(fingerprints[:, 0] ^ np.uint64(visual_hash(picture)))
    near, grey = fingerprints[bits <= MOST_BITS, 1:], grey_of(picture)
    if grey.std() < _FLAT:
        return False
    for layers, most in _STEPS:
        if not len(near):
            return False
        apart = np.bitwise_count(near[:, np.newaxis] ^ _signs(grey, layers))
        near = near[apart.sum(-1, dtype=np.int64).min(1) <= most]
    return len(near) > 0


def count_copies(
    photos: Split | None, among: NDArray[np.bool_], fingerprints: Hashes | None
) -> int | None:
    """How many photos ``among`` those of a split show one with a fingerprint; None if unknown.

    A photo that cannot be read is no copy; whoever scores it reports it.
    """
    if photos is None or fingerprints is None:
        return None
    rows = np.flatnonzero(among).tolist()

    def copies(row: int) -> bool:
        try:
            return is_copy(look_at(photos.read(row)), fingerprints)
        except (ImageError, OSError):
            return False

    copied = 0
    with progress(len(rows), "comparing with training photos") as advance:
        for copy in in_order(copies, rows):
            copied += copy
            advance()
    return copied


def _signs(grey: NDArray[np.float64], layers: NDArray[np.float64]) -> Hashes:
    """The signs of all frequencies, ``(scales * shifts * shifts, WORDS - 1)``."""
    words = list[Hashes]()
    for cosines in layers:
        rows = cosines.reshape(-1, LOOK_SIDE)
        strengths = (rows @ grey @ rows.T).reshape(*cosines.shape[:2], *cosines.shape[:2])
        positive = strengths.transpose(0, 2, 1, 3).reshape(-1, _FREQUENCIES**2) > 0
        positive[:, 0] = True  # the brightness says nothing; with it no fingerprint is all zero
        words.append(np.packbits(positive, axis=1).view("<u8"))
    return np.concatenate(words)
