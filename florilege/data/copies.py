"""Find copies of photos in other bytes: resized, re-encoded or cropped.

Each photo has a fingerprint of 40 bytes, which also travels in its place. The first eight bytes are
the signs of the lowest frequencies of a small grey picture; they survive such changes, and propose
pairs. The others hold the signs of 256 frequencies of its middle. The second photo, whose pixels
are at hand, is scaled and shifted until its own signs fit best: that is what a crop has done. Signs
alone, without strengths, make details count as much as the large areas in which photos agree.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from florilege.data.records import Split
from florilege.files import read_regular
from florilege.models.images import MAX_BYTES, ImageError, Preprocess, load
from florilege.terminal import with_bar

Picture = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
_Floats = NDArray[np.float64]

LOOK_SIDE: Final = 96  # pixels of a picture that is looked at
_LOOKED_AT: Final = Preprocess(image_size=LOOK_SIDE)
_SIDE: Final = 32  # pixels of the smaller one whose frequencies are taken
_FREQUENCIES: Final = 16  # along each side of the middle, for a fingerprint
_LOWEST: Final = 8  # and of the whole, for a hash; with the lowest one they are 64 bits
# Of 400 photos of groceries and 400 of objects none differs from itself by more than 6 bits when it
# is halved; cropped by 3 % at each edge, 1 % differ by more than 14. Of 4.2 million pairs of other
# photos of groceries 83 differ by 14 bits at most, but 516 by 16: each is a pair to look at.
_MOST_BITS: Final = 14
_PAIRS_AT_ONCE: Final = 2**22
WORDS: Final = 5  # of a fingerprint, eight bytes each
# Of the side: what a crop by 6 % and a shift still leave inside.
_MIDDLE: Final = 0.88
# The signs of 24 photos of groceries and objects that were re-encoded at quality 60, halved, or cut
# by 3 % at each edge differ in at most 10 of 255 places; those of other photos of one plant in 14
# or more, unless nothing moved between the two. Of 2 million pairs of photos of groceries in train
# and elsewhere none differs in so few.
_MOST_SIGNS: Final = 10
_COARSE_SIGNS: Final = 64  # where scale and shift fit only roughly
_FLAT: Final = 2.0  # standard deviation in grey levels below which a photo shows nothing


def _interpolating(places: NDArray[Any]) -> _Floats:
    """The matrix that reads a row of ``LOOK_SIDE`` pixels at these places, ``(places, pixels)``."""
    places = np.clip(places, 0, LOOK_SIDE - 1)
    low = np.minimum(places.astype(int), LOOK_SIDE - 2)
    rows, matrix = np.arange(len(places)), np.zeros((len(places), LOOK_SIDE))
    matrix[rows, low], matrix[rows, low + 1] = 1 - (places - low), places - low
    return matrix


# A discrete cosine transform, (frequencies, pixels).
_COSINES: Final[_Floats] = np.cos(
    np.pi * (2 * np.arange(_SIDE) + 1) * np.arange(_FREQUENCIES)[:, np.newaxis] / (2 * _SIDE)
)
_BITS: Final = np.left_shift(np.uint64(1), np.arange(64, dtype=np.uint64))


def look_at(photo: bytes | Image.Image) -> Picture:
    """A photo as it is compared, RGB, ``(LOOK_SIDE, LOOK_SIDE, 3)``; ImageError if damaged."""
    return load(photo, _LOOKED_AT)


def _visual_hash(picture: Picture) -> int:
    """64 bits that a photo keeps when it is resized, re-encoded or cropped a little.

    ``picture`` is RGB, as :func:`look_at` gives it. A bit says whether a frequency is stronger
    than the median of all.

    Example:
        >>> picture = np.random.default_rng(0).integers(0, 200, (96, 96, 3), dtype=np.uint8)
        >>> _visual_hash(picture) == _visual_hash(picture + 20)
        True
    """
    fine = LOOK_SIDE // _SIDE
    small = _grey_of(picture).reshape(_SIDE, fine, _SIDE, fine).mean((1, 3))
    strength = _COSINES[:_LOWEST] @ small @ _COSINES[:_LOWEST].T
    strength[0, 0] = 0.0  # the brightness
    return int(_BITS[(strength > np.median(strength)).ravel()].sum())


def _grey_of(picture: Picture) -> _Floats:
    """The brightness of RGB pixels."""
    return np.asarray(picture.astype(np.float64) @ (0.299, 0.587, 0.114))


def _middle(scale: float, shift: float) -> _Floats:
    """The frequencies of the middle of a row of pixels, as a matrix over the whole row."""
    fine, half = 3 * _SIDE, LOOK_SIDE * _MIDDLE / scale / 2
    places = LOOK_SIDE / 2 - 0.5 + shift + half * ((np.arange(fine) + 0.5) / fine * 2 - 1)
    matrix: _Floats = _COSINES @ _interpolating(places).reshape(_SIDE, 3, LOOK_SIDE).mean(1)
    return matrix


def _layers(scales: Sequence[float], shifts: Sequence[float]) -> NDArray[np.float64]:
    """Cosines of scaled and shifted rows, ``(scales, shifts, frequencies, LOOK_SIDE)``."""
    return np.array([[_middle(1 + scale, shift) for shift in shifts] for scale in scales])


_AS_IT_IS: Final = _layers([0], [0])
_STEPS: Final = (  # how photos are scaled and shifted, with the signs that may then differ
    (_layers([-0.04, 0, 0.04], [-2, 0, 2]), _COARSE_SIGNS),
    (_layers(np.linspace(-0.06, 0.06, 13).tolist(), np.linspace(-3, 3, 13).tolist()), _MOST_SIGNS),
)


def fingerprint(picture: Picture) -> Hashes:
    """Words by which copies of a photo are recognised, ``(WORDS,)``; never all zero.

    Example:
        >>> picture = np.random.default_rng(0).integers(0, 255, (96, 96, 3), dtype=np.uint8)
        >>> _is_copy(picture, fingerprint(picture)[np.newaxis])
        True
    """
    return np.append(np.uint64(_visual_hash(picture)), _signs(_grey_of(picture), _AS_IT_IS)[0])


def _copies_of(picture: Picture, fingerprints: Hashes) -> NDArray[np.bool_]:
    """Which photos a picture shows, by their fingerprints, ``(photos, WORDS)``; ``(photos,)``."""
    bits = np.bitwise_count(fingerprints[:, 0] ^ np.uint64(_visual_hash(picture)))
    grey = _grey_of(picture)
    copies: NDArray[np.bool_] = (bits <= _MOST_BITS) & (grey.std() >= _FLAT)
    for layers, most in _STEPS:
        rows = np.flatnonzero(copies)
        if rows.size:
            apart = np.bitwise_count(fingerprints[rows, np.newaxis, 1:] ^ _signs(grey, layers))
            copies[rows] = apart.sum(-1, dtype=np.int64).min(1) <= most
    return copies


def _is_copy(picture: Picture, fingerprints: Hashes) -> bool:
    """Whether a picture shows any photo of which a fingerprint is known, ``(photos, WORDS)``."""
    return bool(_copies_of(picture, fingerprints).any())


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
            return _is_copy(look_at(photos.read(row)), fingerprints)
        except (ImageError, OSError):
            return False

    return sum(with_bar(copies, rows, "comparing with training photos"))


def _signs(grey: NDArray[np.float64], layers: NDArray[np.float64]) -> Hashes:
    """The signs of all frequencies, ``(scales * shifts * shifts, WORDS - 1)``."""
    words = list[Hashes]()
    for cosines in layers:
        rows = cosines.reshape(-1, LOOK_SIDE)
        strengths = (rows @ grey @ rows.T).reshape(*cosines.shape[:2], *cosines.shape[:2])
        positive = strengths.transpose(0, 2, 1, 3).reshape(-1, _FREQUENCIES**2) > 0
        # The brightness says nothing; with its bit set no fingerprint is all zero.
        positive[:, 0] = True
        words.append(np.packbits(positive, axis=1).view("<u8"))
    return np.concatenate(words)


def _close_rows(ours: Hashes, others: Hashes) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Each row of ``others`` with the rows of ``ours`` that may show the same photo, if any.

    Both are fingerprints, ``(photos, WORDS)``.
    """
    at_once = max(1, _PAIRS_AT_ONCE // max(1, len(ours)))
    for start in range(0, len(others), at_once):
        block = others[start : start + at_once, :1]
        near = np.bitwise_count(block ^ ours[:, 0]) <= _MOST_BITS
        for place in np.flatnonzero(near.any(axis=1)).tolist():
            yield start + place, np.flatnonzero(near[place])


def same_photos(
    ours: Hashes,
    others: Hashes,
    look: Callable[[int], Picture],
    matters: Callable[[int, int], bool],
) -> Iterator[tuple[int, int]]:
    """Pairs of rows, of ``ours`` and ``others``, that show the same photo, where that matters.

    Both are fingerprints, ``(photos, WORDS)``; ``look`` gives the picture of a row of ``others``.
    """
    for other, near in _close_rows(ours, others):
        rows = [row for row in near.tolist() if matters(row, other)]
        if rows:
            copies = _copies_of(look(other), ours[rows]).tolist()
            yield from ((row, other) for row in compress(rows, copies))


def joined_groups(groups: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """The group of each photo, with groups joined that share a photo, in the same or other bytes.

    A joined group has the name of its first one. Photos that cannot be read join none; ``data
    check`` reports them.
    """
    first_of = {group: group for group in groups}
    number_of = {group: number for number, group in enumerate(first_of)}

    def first(group: str) -> str:
        while first_of[group] != group:
            group = first_of[group]
        return group

    # Both ways round: a photo that is a copy of another need not recognise it.
    def may_join(one: int, other: int) -> bool:
        return first(groups[rows[one]]) != first(groups[rows[other]])

    rows, words = _fingerprints(paths)
    for pair in same_photos(words, words, lambda row: _look_at(paths[rows[row]]), may_join):
        joined, joining = sorted(
            (first(groups[rows[row]]) for row in pair), key=number_of.__getitem__
        )
        first_of[joining] = joined
    return [first(group) for group in groups]


def _fingerprints(paths: Sequence[Path]) -> tuple[list[int], Hashes]:
    """The rows of the photos that can be read, and their fingerprints, ``(rows, WORDS)``."""
    results = with_bar(_fingerprint_of, paths, "looking for copies")
    words = {row: values for row, values in enumerate(results) if values is not None}
    return list(words), np.array([*words.values()], dtype=np.uint64).reshape(-1, WORDS)


def _fingerprint_of(path: Path) -> Hashes | None:
    try:
        return fingerprint(_look_at(path))
    except (OSError, ImageError):
        return None


def _look_at(path: Path) -> Picture:
    return look_at(read_regular(path, most=MAX_BYTES))
