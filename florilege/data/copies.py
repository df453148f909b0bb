r"""Find copies of photos in other bytes: resized, re-encoded or cropped.

Photos at hand: a 64-bit hash of each proposes pairs, and a look at both confirms them. The hash
holds the signs of the lowest frequencies of a small grey picture, which survive such changes.
Photos of one plant, or of many pale things on white, may share them; their details do not agree.

Photos elsewhere: a fingerprint of 40 bytes travels in their place. Its first eight bytes are the
hash, which again proposes pairs. The others hold the signs of 256 frequencies of the middle. The
second photo, whose pixels are at hand, is scaled and shifted until its own signs fit best: that is
what a crop has done. Signs alone, without strengths, make details count as much as the large areas
in which photos agree.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from florilege.cores import in_order
from florilege.data.records import Split
from florilege.files import read_regular
from florilege.models.images import MAX_BYTES, ImageError, Preprocess, load
from florilege.terminal import progress

Picture = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
_Floats = NDArray[np.float64]
_Spectrum = NDArray[np.complex128]

LOOK_SIDE: Final = 96  # pixels of a picture that is looked at
_LOOKED_AT: Final = Preprocess(image_size=LOOK_SIDE)
_SIDE: Final = 32  # pixels of the smaller one whose frequencies are taken
_FREQUENCIES: Final = 16  # along each side of the middle, for a fingerprint
_LOWEST: Final = 8  # and of the whole, for a hash; with the lowest one they are 64 bits
# Of 200 photos of groceries none differs from itself by more than 2 bits when it is re-encoded at
# quality 60 or halved, none by more than 10 when it is cropped by 3 %; of 4.2 million pairs of
# other photos 27 differ by 12 bits at most. More bits would mean many more pairs to look at.
_MOST_BITS: Final = 12
# The same photos agree by .956 or more, the most similar others, a second apart, by .919.
_LEAST_AGREEMENT: Final = 0.94
_PAIRS_AT_ONCE: Final = 2**22
_LARGEST_SHIFT: Final = 9  # of LOOK_SIDE pixels
_FINER: Final = 4  # shifts are found to a quarter of a pixel: edges half a pixel apart do not agree
_BLUR: Final = 0.5  # pixels
WORDS: Final = 5  # of a fingerprint, eight bytes each
_MIDDLE: Final = 0.88  # of the side: what a crop by 6 % and a shift still leave inside
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
_FROM_MIDDLE: Final = np.arange(LOOK_SIDE) - (LOOK_SIDE - 1) / 2
# Each enlarges a picture around its middle.
_ENLARGEMENTS: Final = tuple(
    _interpolating(_FROM_MIDDLE / (1 + step / 100) + (LOOK_SIDE - 1) / 2) for step in range(-6, 7)
)


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
    fine = LOOK_SIDE // _SIDE
    small = _grey_of(picture).reshape(_SIDE, fine, _SIDE, fine).mean((1, 3))
    strength = _COSINES[:_LOWEST] @ small @ _COSINES[:_LOWEST].T
    strength[0, 0] = 0.0  # the brightness
    return int(_BITS[(strength > np.median(strength)).ravel()].sum())


def _grey_of(picture: Picture) -> _Floats:
    """The brightness of RGB pixels."""
    return np.asarray(picture.astype(np.float64) @ (0.299, 0.587, 0.114))


def close_pairs(ours: Sequence[int], others: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rows of two lists of hashes that differ in at most ``_MOST_BITS`` bits."""
    one, two = (np.array(hashes, dtype=np.uint64) for hashes in (ours, others))
    rows = max(1, _PAIRS_AT_ONCE // max(1, len(two)))
    for start in range(0, len(one), rows):
        block = one[start : start + rows, np.newaxis]
        near = np.bitwise_count(block ^ two) <= _MOST_BITS
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
    ours, theirs = _details(_grey_of(one)), _grey_of(other)
    spectra = [ours * _details(zoom @ theirs @ zoom.T).conj() for zoom in _ENLARGEMENTS]
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


def _details(grey: _Floats) -> _Spectrum:
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
    return np.append(np.uint64(visual_hash(picture)), _signs(_grey_of(picture), _AS_IT_IS)[0])


def _is_copy(picture: Picture, fingerprints: Hashes) -> bool:
    """Whether a picture shows a photo of which a fingerprint is known, ``(photos, WORDS)``."""
    bits = np.bitwise_count(fingerprints[:, 0] ^ np.uint64(visual_hash(picture)))
    near, grey = fingerprints[bits <= _MOST_BITS, 1:], _grey_of(picture)
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
            return _is_copy(look_at(photos.read(row)), fingerprints)
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
