"""Scores of a split are those of the server's own road, photo by photo."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

import calibration.offline.scoring
from calibration.offline.scoring import score_split
from data.dataset import Split
from data.sources import open_dataset
from models.bundle import Bundle
from models.errors import DataError
from models.images import load
from models.session import Session
from tests.calibration.small_bundle import make_bundle, make_data


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("bundle") / "b")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, bundle: Bundle) -> Split:
    data = make_data(tmp_path_factory.mktemp("data") / "d", rows=4, splits=("val",))
    return open_dataset(str(data), splits=["val"], classes=bundle.classes).split("val")


def test_logits_are_those_of_one_photo_at_a_time_in_order(bundle: Bundle, split: Split) -> None:
    session = Session(bundle, device="cpu")
    scoring = score_split(Session(bundle, device="cpu"), split)
    for head in bundle.heads:
        found = np.concatenate([logits for (logits,), _ in scoring.outputs.blocks(head)])
        labels = np.concatenate([labels for _, labels in scoring.outputs.blocks(head)])
        assert (labels == split.labels).all()
        for row in range(len(split)):
            image = load(split.read(row), bundle.preprocess)
            alone = session.logits(image[np.newaxis])[head]
            assert found[row].tobytes() == alone[0].tobytes()
    scoring.close()


def test_the_data_hash_covers_bytes_order_and_classes(bundle: Bundle, split: Split) -> None:
    def hashed(changed: Split) -> str:
        return score_split(Session(bundle, device="cpu"), changed).data_sha256

    first = hashed(split)
    assert first == hashed(split)
    expected = hashlib.sha256()
    for row in range(len(split)):
        expected.update(hashlib.sha256(split.read(row)).digest())
        expected.update(f"c{split.labels[row]}".encode() + b"\0")
    assert first == expected.hexdigest()
    assert hashed(replace(split, labels=np.roll(split.labels, 1))) != first
    assert hashed(replace(split, read=lambda row: split.read(row ^ 1))) != first


def test_photos_that_cannot_be_read_are_listed(bundle: Bundle, split: Split) -> None:
    def read(row: int) -> bytes:
        if row == 3:
            raise FileNotFoundError(2, "No such file", "gone.png")
        return b"no picture" if row == 5 else split.read(row)

    with pytest.raises(DataError) as refused:
        score_split(Session(bundle, device="cpu"), replace(split, read=read))
    message = str(refused.value)
    assert "2 of 24 photos" in message
    assert split.names[3] in message
    assert split.names[5] in message


def test_many_failures_are_listed_in_part(
    bundle: Bundle, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="and 14 more"):
        score_split(Session(bundle, device="cpu"), replace(split, read=lambda row: b"no picture"))
    for shown, rest in ((23, "and 1 more"), (24, "")):
        monkeypatch.setattr(calibration.offline.scoring, "NAMES_SHOWN", shown)
        with pytest.raises(DataError) as refused:
            score_split(
                Session(bundle, device="cpu"), replace(split, read=lambda row: b"no picture")
            )
        assert str(refused.value).count(".png: ") == shown
        assert ("more" in str(refused.value).splitlines()[-1]) == bool(rest)


def test_a_split_without_photos_is_refused(bundle: Bundle, split: Split) -> None:
    empty = replace(split, labels=split.labels[:0], names=[], observations=None)
    with pytest.raises(DataError, match="'val' has no photos"):
        score_split(Session(bundle, device="cpu"), empty)
