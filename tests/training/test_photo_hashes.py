"""The hashes that a run writes of its training and validation photos."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.view import PLAIN
from florilege.cli import app
from florilege.data.copies import WORDS, _is_copy, look_at
from florilege.data.records import _LOOKED_AT, FileReader
from florilege.data.sources import open_dataset
from florilege.errors import BundleError
from florilege.models.bundle import open_bundle
from florilege.models.photo_hashes import PHOTOS, PhotoHashes, photo_hash
from florilege.training.batches import run_photos
from florilege.training.batches.run_photos import RunPhotos, _hash_photos, _numbers_of
from florilege.training.run_export import export_run
from tests.training.small import (
    Killed,
    before_step,
    checkpoint_of,
    small_config,
    train_quietly,
    write_photos,
)

NAMED: dict[str, Any] = {"head": "linear", "score_kind": "softmax"}
SHORT: dict[str, Any] = {"loss": {"name": "cross_entropy"}, "epochs": 1}


def trained(photos: Path | str, run: Path, **changes: Any) -> PhotoHashes:
    train_quietly(small_config(photos, **{**SHORT, **changes}), run)
    return PhotoHashes.from_bytes((run / PHOTOS).read_bytes())


def hashes(folder: Path) -> list[bytes]:
    return [photo_hash(photo.read_bytes()) for photo in folder.rglob("*.png")]


def overlap(reference: PhotoHashes, folder: Path) -> tuple[int, int]:
    """How many photos of a folder trained the network, and how many chose it."""
    photos = hashes(folder)
    return int(reference.trained(photos).sum()), int(reference.chose(photos).sum())


def test_the_run_and_its_bundle_record_its_photos(photos: Path, tmp_path: Path) -> None:
    reference = trained(photos, tmp_path / "run")
    assert (reference.train.size, reference.selection.size, reference.complete) == (36, 15, True)
    assert overlap(reference, photos / "train") == (36, 0)
    assert overlap(reference, photos / "val") == (0, 15)
    bundle = export_run(tmp_path / "run", tmp_path / "bundle")
    assert bundle.read(PHOTOS) == (tmp_path / "run" / PHOTOS).read_bytes()


@pytest.mark.parametrize(
    ("options", "epochs", "sizes"), [(":per_class=5", 1, (15, 15)), ("", 0, (0, 0))]
)
def test_a_run_records_the_photos_it_uses(
    photos: Path, tmp_path: Path, options: str, epochs: int, sizes: tuple[int, int]
) -> None:
    reference = trained(f"{photos}{options}", tmp_path / "run", epochs=epochs)
    assert (reference.train.size, reference.selection.size) == sizes
    assert reference.complete


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No photo is read only to identify it."""
    monkeypatch.setattr(run_photos, "_hash_photos", lambda *_, **__: pytest.fail("read again"))


FROM_DISK: dict[str, Any] = {"cache_mb": 0, "workers": 0, "batch_size": 4}


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cached", [False, True])
def test_photos_are_identified_when_they_are_read_to_train(
    photos: Path, tmp_path: Path, workers: int, cached: bool
) -> None:
    folder = {"picture_cache": str(tmp_path / "cache")} if cached else {}
    changes = {**FROM_DISK, "workers": workers, **folder}
    in_memory = trained(photos, tmp_path / "memory")
    assert trained(photos, tmp_path / "disk", **changes).to_bytes() == in_memory.to_bytes()
    assert in_memory.train.size == 36
    if cached:  # a second run decodes nothing, and still knows the photos
        assert trained(photos, tmp_path / "next", **changes).to_bytes() == in_memory.to_bytes()


def test_few_photos_are_read_before_the_first_step(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, rows = FileReader.__call__, list[int]()

    def counted(reader: FileReader, row: int) -> bytes:
        rows.append(row)
        return read(reader, row)

    monkeypatch.setattr(FileReader, "__call__", counted)
    config = small_config(photos, **SHORT, **FROM_DISK)
    with before_step(0), pytest.raises(Killed):
        train_quietly(config, tmp_path / "run")
    assert len(rows) <= 2 * _LOOKED_AT + config.batch_size


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("weights", [False, True])
def test_a_run_resumed_in_its_first_epoch_knows_the_photos_of_both_parts(
    photos: Path, first: Path, tmp_path: Path, weights: bool
) -> None:
    other = write_photos(tmp_path / "other", side=24)
    start = {"weights": str(first / "run")} if weights else {}
    changes = {**SHORT, **FROM_DISK, **start, "checkpoint": {"every_steps": 1}}
    whole = trained(other, tmp_path / "whole", **changes)
    assert whole.complete
    with before_step(5), pytest.raises(Killed):
        trained(other, tmp_path / "cut", **changes)
    assert not (tmp_path / "cut" / PHOTOS).exists()
    with pytest.raises(BundleError, match="has no best"):  # nothing without photos is exported
        export_run(tmp_path / "cut", tmp_path / "bundle")
    assert set(checkpoint_of(tmp_path / "cut")["photos"]) == {
        "train",
        "val",
        "fingerprints",
        "before",
    }
    train_quietly(small_config(other, **changes), tmp_path / "cut", resume=True)
    assert (tmp_path / "cut" / PHOTOS).read_bytes() == whole.to_bytes()
    assert not checkpoint_of(tmp_path / "cut")["photos"]
    assert whole.train.size == (72 if weights else 36)


def test_features_are_of_the_same_photos(photos: Path, tmp_path: Path) -> None:
    reference = trained(photos, tmp_path / "run")
    weights = str(tmp_path / "run" / "best.safetensors")
    frozen = trained(photos, tmp_path / "frozen", freeze="backbone", weights=weights)
    assert frozen.to_bytes() == reference.to_bytes()


@pytest.fixture(scope="module")
def first(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and the bundle of it."""
    folder = tmp_path_factory.mktemp("first")
    trained(photos, folder / "run")
    export_run(folder / "run", folder / "bundle")
    return folder


@pytest.mark.parametrize("of", ["run", "bundle", "run/best.safetensors"])
def test_photos_of_the_run_it_started_from_count(
    photos: Path, first: Path, tmp_path: Path, of: str
) -> None:
    weights = first / of
    other = write_photos(tmp_path / "other", side=24)
    reference = trained(other, tmp_path / "second", weights=str(weights))
    assert (reference.train.size, reference.selection.size, reference.complete) == (72, 30, True)
    for source in (photos, other):
        assert overlap(reference, source) == (36, 15)


def test_photos_of_an_older_run_are_not_known(photos: Path, tmp_path: Path) -> None:
    trained(photos, tmp_path / "old")
    (tmp_path / "old" / PHOTOS).unlink()
    reference = trained(photos, tmp_path / "new", weights=str(tmp_path / "old"))
    assert (reference.train.size, reference.complete) == (36, False)
    foreign = tmp_path / "foreign.safetensors"
    shutil.copy(tmp_path / "old" / "best.safetensors", foreign)
    assert trained(photos, tmp_path / "newer", weights=str(foreign)).complete


def test_resuming_an_older_run_writes_them_down(photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    before = trained(photos, run)
    (run / PHOTOS).unlink()
    train_quietly(small_config(photos, **SHORT), run, resume=True)
    assert (run / PHOTOS).read_bytes() == before.to_bytes()


def test_workers_hash_what_one_process_does(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = open_dataset(str(photos), splits=["train"]).split("train")
    monkeypatch.setattr(run_photos, "CHUNK", 4)
    assert _hash_photos(split, workers=2) == _hash_photos(split, workers=0)
    ours = [photo for photo, _ in _hash_photos(split, workers=0)]
    assert sorted(ours) == sorted(hashes(photos / "train"))


def test_the_run_knows_what_its_training_photos_show(photos: Path, tmp_path: Path) -> None:
    reference = trained(photos, tmp_path / "run", epochs=1)
    assert reference.fingerprints is not None
    assert reference.fingerprints.shape == (36, WORDS)
    for split, copies in (("train", 36), ("val", 0)):
        pictures = [look_at(photo.read_bytes()) for photo in (photos / split).rglob("*.png")]
        assert sum(_is_copy(picture, reference.fingerprints) for picture in pictures) == copies
    first = PhotoHashes(train=reference.train, selection=reference.selection)
    assert (first | reference).fingerprints is None  # those of some photos are unknown
    assert (PhotoHashes.of() | reference).to_bytes() == reference.to_bytes()


def test_photos_that_an_older_version_hashed_are_read_for_their_fingerprints(
    photos: Path,
) -> None:
    dataset = open_dataset(str(photos), splits=["train", "val"])
    run = RunPhotos({name: dataset.split(name) for name in ("train", "val")})
    for name, known in run.hashes.items():
        known[:] = _numbers_of(hashes(photos / name))
    photo_hashes = run.all(workers=0)
    assert photo_hashes.fingerprints is not None
    assert photo_hashes.fingerprints.any(axis=1).all()


def test_splits_drawn_with_another_seed_make_no_guarantee(photos: Path, tmp_path: Path) -> None:
    """The usual way to calibrate on training photos by mistake."""
    run = CliRunner()
    for seed in (0, 1):
        arguments = [
            *("data", "split", str(photos), "--out", str(tmp_path / f"{seed}.csv")),
            *("--val", "0.2", "--test", "0.2", "--seed", str(seed)),
        ]
        assert run.invoke(app, arguments, catch_exceptions=False).exit_code == 0
    first, second = (f"{tmp_path / str(seed)}.csv" for seed in (0, 1))
    train_quietly(small_config(first, **SHORT), tmp_path / "run")
    bundle = export_run(tmp_path / "run", tmp_path / "bundle").path
    record = calibrate_bundle(bundle, first, "test", **NAMED)
    assert record.point(PLAIN, record.setting("coverage")).guaranteed
    record = calibrate_bundle(bundle, second, "test", **NAMED)
    assert record.measured.train_photos
    assert not record.point(PLAIN, record.setting("coverage")).guaranteed
    assert open_bundle(bundle).has(PHOTOS)
