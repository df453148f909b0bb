"""Hashes of photos that travel with a network."""

import hashlib
import io
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.models.photo_hashes import PhotoHashes, photo_hash
from tests.models.bundles import npy_of_shape

PHOTOS = [bytes([number]) * 100 for number in range(20)]
HASHES = [photo_hash(photo) for photo in PHOTOS]


def overlap(hashes: PhotoHashes, photos: list[bytes]) -> tuple[int, int]:
    return int(hashes.trained(photos).sum()), int(hashes.chose(photos).sum())


def test_a_photo_is_met_under_any_name_and_both_uses_are_counted() -> None:
    hashes = PhotoHashes.of(HASHES[:10], HASHES[8:15])
    again = [hashlib.sha256(photo).digest() for photo in [*PHOTOS[5:12], PHOTOS[5], b"new"]]
    assert overlap(hashes, again) == (6, 4)
    assert overlap(hashes, []) == (0, 0)
    assert overlap(PhotoHashes.of(), again) == (0, 0)


def test_what_is_read_is_what_was_written() -> None:
    hashes = PhotoHashes.of([*HASHES[:10], HASHES[3]], HASHES[8:], complete=False)
    content = hashes.to_bytes()
    again = PhotoHashes.from_bytes(content)
    assert (np.diff(again.train.astype(object)) > 0).all()
    assert (again.train.size, again.selection.size, again.complete) == (10, 12, False)
    np.testing.assert_array_equal(again.train, hashes.train)
    assert PhotoHashes.of(HASHES[:10], HASHES[:7:-1], complete=False).to_bytes() == content


def test_a_network_has_met_the_photos_of_those_it_was_made_from() -> None:
    both = PhotoHashes.of(HASHES[:3], HASHES[3:5]) | PhotoHashes.of(HASHES[2:7], complete=False)
    assert overlap(both, HASHES) == (7, 2)
    assert not both.complete
    assert (PhotoHashes.of() | PhotoHashes.of()).complete


def test_three_hundred_thousand_photos_take_thirteen_megabytes() -> None:
    random = np.random.default_rng(0).integers(0, 2**63, (300_000, 5)).astype(np.uint64)
    hashes, trained = random[:, 0], random[:260_000]
    many = PhotoHashes(train=hashes[:260_000], selection=hashes[260_000:], fingerprints=trained)
    assert len(many.to_bytes()) < 12_850_000


def test_fingerprints_are_of_all_training_photos_or_unknown() -> None:
    words = np.arange(20, dtype=np.uint64).reshape(4, 5)
    hashes = np.arange(4, dtype=np.uint64)
    one, two = (
        PhotoHashes(train=hashes[:3], selection=hashes[3:], fingerprints=words[part])
        for part in (slice(3), slice(1, 4))
    )
    again = PhotoHashes.from_bytes((one | two).to_bytes())
    np.testing.assert_array_equal(again.fingerprints, words)
    assert (one | PhotoHashes.of(HASHES)).fingerprints is None
    both = (one | PhotoHashes.of()).fingerprints  # a network without photos adds none
    np.testing.assert_array_equal(both, words[:3])


def _archive(kind: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def _saved(save: Callable[..., None] = np.savez, **changes: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    arrays = {name: np.zeros(1, np.uint64) for name in ("train", "selection")}
    save(file, **{**arrays, "complete": np.array(True), **changes})
    return file.getvalue()


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"PK\x03\x04", b"not a zip file"),
        _archive(train=b"\x80\x04K\x01.", selection=b"", complete=b""),  # a pickle, no array
        _saved(train=np.array([{}])),
        _saved(complete=np.zeros(3, bool)),
        _saved(complete=np.array("yes")),
        _saved(fingerprints=np.zeros(5, np.uint64)),
        _saved(fingerprints=np.zeros((1, 5))),
        _archive(train=npy_of_shape(2**44), selection=b"", complete=b""),
        _saved(save=np.savez_compressed),
    ],
)
def test_a_damaged_file_is_refused(damage: bytes) -> None:
    assert len(PhotoHashes.from_bytes(_saved()).train) == 1
    with pytest.raises(ValueError, match=r"not a list|must be"):
        PhotoHashes.from_bytes(damage)
    content = PhotoHashes.of(HASHES).to_bytes()
    with pytest.raises(ValueError, match="list"):
        PhotoHashes.from_bytes(content[: len(content) // 2])
