"""A copy of a photo is recognised by the fingerprint of the original; other photos are not."""

import numpy as np
import pytest

from florilege.data.copies import LOOK_SIDE, WORDS, _is_copy, fingerprint, look_at
from tests.data.copies.test_near_duplicates import changed, encoded, scene

PHOTOS = range(6)


@pytest.fixture(scope="module")
def known() -> np.ndarray:
    return np.stack([fingerprint(look_at(encoded(scene(seed)))) for seed in PHOTOS])


@pytest.mark.parametrize("how", ["re-encoded", "halved", "cropped", "cropped at one side"])
def test_copies_in_other_bytes_are_recognised(known: np.ndarray, how: str) -> None:
    assert known.shape == (len(PHOTOS), WORDS)
    for seed in PHOTOS:
        picture = look_at(changed(scene(seed), how))
        assert _is_copy(picture, known)
        assert not _is_copy(picture, np.delete(known, seed, axis=0))
        assert _is_copy(look_at(encoded(scene(seed))), fingerprint(picture)[np.newaxis])


def test_other_photos_are_not(known: np.ndarray) -> None:
    for seed in PHOTOS:
        assert not _is_copy(look_at(encoded(scene(100 + seed))), known)
        assert not _is_copy(look_at(encoded(scene(seed, moved=6.0))), known)


def test_what_the_first_word_proposes_is_decided_by_the_others(known: np.ndarray) -> None:
    picture = look_at(encoded(scene(0)))
    other = known[:1].copy()
    other[0, 1:] = known[1, 1:]
    assert not _is_copy(picture, other)
    few, many = known[:1].copy(), known[:1].copy()
    few[0, 2] ^= np.uint64(2**10 - 1)
    many[0, 2] ^= np.uint64(2**11 - 1)
    assert [_is_copy(picture, words) for words in (few, many)] == [True, False]


def test_flat_pictures_are_copies_of_nothing() -> None:
    for level in (0, 200):
        flat = np.full((LOOK_SIDE, LOOK_SIDE, 3), level, dtype=np.uint8)
        assert fingerprint(flat).any()
        assert not _is_copy(flat, fingerprint(flat)[np.newaxis])


def test_without_photos_there_are_no_copies() -> None:
    assert not _is_copy(look_at(encoded(scene(0))), np.empty((0, WORDS), np.uint64))
