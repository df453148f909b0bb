"""Outputs for a split are those of the server's own pipeline, kept in files, read in blocks."""

import gc
import hashlib
import io
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from florilege.calibration.calibrate import photo_outputs
from florilege.calibration.calibrate.photo_outputs import (
    SplitOutputs,
    outputs_of,
    photos_for,
)
from florilege.calibration.record.record_file import read_record
from florilege.data.records import Split
from florilege.data.sources import open_dataset
from florilege.errors import DataError
from florilege.models.bundle import Bundle, open_bundle
from florilege.models.images import load
from florilege.models.runtime import CUDA
from florilege.models.session import FEATURES, Outputs, Session
from tests.calibration.command_line import run
from tests.calibration.small_bundle import make_bundle, make_data

ROWS, CLASSES, DIMENSIONS = 22, 3, 40


def filled(rows: int = ROWS) -> tuple[SplitOutputs, dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    expected = {
        "sccp": random.normal(size=(rows, CLASSES)).astype(np.float32),
        FEATURES: random.normal(size=(rows, DIMENSIONS)).astype(np.float32),
    }
    store = SplitOutputs({"sccp": CLASSES, FEATURES: DIMENSIONS}, np.arange(rows) % CLASSES)
    for row in range(rows):
        store.append({name: values[[row]] for name, values in expected.items()})
    return store, expected


@pytest.mark.parametrize(
    ("rows", "numbers", "alone", "together"),
    [
        (99, 9999, [22], [22]),
        (7, 9999, [7, 7, 7, 1], [7, 7, 7, 1]),
        (99, 21, [7, 7, 7, 1], [1] * 22),
    ],
)
def test_blocks_hold_the_same_rows_of_every_output(
    monkeypatch: pytest.MonkeyPatch, rows: int, numbers: int, alone: list[int], together: list[int]
) -> None:
    monkeypatch.setattr(photo_outputs, "ROWS_AT_ONCE", rows)
    monkeypatch.setattr(photo_outputs, "NUMBERS_AT_ONCE", numbers)
    store, expected = filled()
    for names, lengths in ((("sccp",), alone), ((FEATURES, "sccp"), together)):
        for _ in range(2):  # as often as wanted
            blocks = list(store.blocks(*names))
            assert [len(labels) for _, labels in blocks] == lengths
            assert (np.concatenate([labels for _, labels in blocks]) == store.labels).all()
            for place, name in enumerate(names):
                result = np.concatenate([outputs[place] for outputs, _ in blocks])
                assert result.tobytes() == expected[name].tobytes()
    mask = np.isin(np.arange(ROWS), (1, 2, 20))
    store.photos.extend(bytes([row]) for row in range(ROWS))
    part = store.part(mask)
    parts = list(part.blocks("sccp"))
    assert part.photos == [b"\1", b"\2", b"\24"]
    assert (part.rows("sccp", np.array([2, 0])) == expected["sccp"][[20, 1]]).all()
    assert part.part(np.array([True, False, True])).photos == [b"\1", b"\24"]
    assert np.concatenate([labels for _, labels in parts]).tolist() == [1, 2, 2]
    assert (np.concatenate([values for (values,), _ in parts]) == expected["sccp"][mask]).all()
    store.close()


def test_a_part_reads_the_files_when_nobody_holds_the_whole_any_more() -> None:
    store, expected = filled()
    part = store.part(np.arange(ROWS) > 3)
    del store
    gc.collect()
    assert (part.rows("sccp", np.array([0])) == expected["sccp"][[4]]).all()
    part.close()


@given(rows=st.lists(st.integers(0, ROWS - 1), max_size=5))
def test_any_rows_come_in_the_order_asked_for(rows: list[int]) -> None:
    store, expected = filled()
    places = np.array(rows, dtype=np.int64)
    for name, values in expected.items():
        assert store.rows(name, places).tobytes() == values[places].tobytes()
    store.close()


def test_without_a_temporary_folder_or_room_in_it_a_message_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(DataError, match="TMPDIR"):
        SplitOutputs({"sccp": 1}, np.zeros(1, np.int64))

    class Full(io.BytesIO):
        def write(self, content: object) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    store = SplitOutputs({"sccp": 1}, np.zeros(1, np.int64))
    with pytest.raises(DataError, match=r"No space left.*TMPDIR"):
        store.append({"sccp": np.zeros((1, 1), np.float32)})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("bundle") / "b")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, bundle: Bundle) -> Split:
    data = make_data(tmp_path_factory.mktemp("data") / "d", rows=4, splits=("val",))
    return open_dataset(str(data), splits=["val"], classes=bundle.classes).split("val")


def scored(bundle: Bundle, split: Split) -> SplitOutputs:
    return outputs_of(Session(bundle, device="cpu"), split)


def test_logits_are_those_of_one_photo_at_a_time_in_order(bundle: Bundle, split: Split) -> None:
    session = Session(bundle, device="cpu")
    scoring = scored(bundle, split)
    for head in bundle.heads:
        result = np.concatenate([logits for (logits,), _ in scoring.blocks(head)])
        labels = np.concatenate([labels for _, labels in scoring.blocks(head)])
        assert (labels == split.labels).all()
        for row in range(len(split)):
            image = load(split.read(row), bundle.preprocess)
            alone = session.logits(image[np.newaxis])[head]
            assert result[row].tobytes() == alone[0].tobytes()
    scoring.close()


def test_a_gpu_gets_batches_of_one_size_and_every_photo_its_own_outputs(
    bundle: Bundle, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, sizes = scored(bundle, split), list[int]()
    session = Session(bundle, device="cpu")
    session.provider = CUDA  # pretended

    def outputs(of: Session, images: np.ndarray, **options: bool) -> Outputs:
        sizes.append(len(images))
        return real(of, images, **options)

    real = Session.outputs
    monkeypatch.setattr(Session, "outputs", outputs)
    monkeypatch.setattr("florilege.models.session.BATCH", 5)
    monkeypatch.setattr(photo_outputs, "BATCH", 5)
    assert len(split) % 5
    stored = replace(split, names=split.names[:3], labels=split.labels[:3], observations=None)
    outputs_of(session, stored, cache=tmp_path).close()
    assert sizes == [1, 1, 1, 5, 5]  # the first batch is compared
    scoring = outputs_of(session, split, cache=tmp_path)
    assert {*sizes[3:]} == {5}
    for head in bundle.heads:
        ours, theirs = (
            np.concatenate([logits for (logits,), _ in of.blocks(head)])
            for of in (scoring, expected)
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert scoring.photos == expected.photos
    scoring.close()


def test_a_gpu_whose_batches_disagree_gets_one_photo_at_a_time(
    bundle: Bundle, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = scored(bundle, split)
    session = Session(bundle, device="cpu")
    session.provider = CUDA  # pretended

    def outputs(of: Session, images: np.ndarray, **options: bool) -> Outputs:
        result = real(of, images, **options)
        if len(images) > 1:
            next(iter(result.logits.values()))[1] *= 1.0001
        return result

    real = Session.outputs
    monkeypatch.setattr(Session, "outputs", outputs)
    assert _equal(outputs_of(session, split), expected)


def test_the_data_hash_covers_bytes_order_and_classes(bundle: Bundle, split: Split) -> None:
    def hashed(changed: Split) -> str:
        return scored(bundle, changed).data_sha256

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
        scored(bundle, replace(split, read=read))
    message = str(refused.value)
    assert "2 of 24 photos" in message
    assert split.names[3] in message
    assert split.names[5] in message


def test_many_failures_are_listed_in_part(
    bundle: Bundle, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="and 14 more"):
        scored(bundle, replace(split, read=lambda row: b"no picture"))
    for limit, rest in ((23, "and 1 more"), (24, "")):
        monkeypatch.setattr(photo_outputs, "NAMES_SHOWN", limit)
        with pytest.raises(DataError) as refused:
            scored(bundle, replace(split, read=lambda row: b"no picture"))
        assert str(refused.value).count(".png: ") == limit
        assert ("more" in str(refused.value).splitlines()[-1]) == bool(rest)


def test_a_split_without_photos_is_refused(bundle: Bundle, split: Split) -> None:
    empty = replace(split, labels=split.labels[:0], names=[], observations=None)
    with pytest.raises(DataError, match="photos"):
        scored(bundle, empty)


def _equal(first: SplitOutputs, second: SplitOutputs) -> bool:
    everything = np.arange(len(first.labels))
    return (
        first.data_sha256 == second.data_sha256
        and first.photos == second.photos
        and first.columns == second.columns
        and all(
            first.rows(name, everything).tobytes() == second.rows(name, everything).tobytes()
            for name in first.columns
        )
    )


@pytest.mark.parametrize("features", [False, True])
def test_the_network_runs_once_for_a_photo_with_a_cache(
    features: bool, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(tmp_path / "bundle", features=features)
    session, cache = Session(bundle, device="cpu"), tmp_path / "cache"
    expected = outputs_of(session, split, features=features)
    outputs_of(session, split, cache=cache).close()  # stores the features too
    runs = _counted(session, monkeypatch)
    assert _equal(outputs_of(session, split, features=features, cache=cache), expected)
    assert not runs
    other_order = replace(split, read=lambda row: split.read(row ^ 1))
    swapped = outputs_of(session, other_order, cache=cache)
    assert not runs
    assert swapped.photos == [expected.photos[row ^ 1] for row in range(len(split))]
    new = replace(split, read=lambda row: split.read(row) + (b"x" if row == 2 else b""))
    outputs_of(session, new, cache=cache).close()
    assert len(runs) == 1


def test_an_interruption_loses_no_outputs_and_a_damaged_photo_no_others(
    bundle: Bundle, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, cache = Session(bundle, device="cpu"), tmp_path / "cache"
    expected = scored(bundle, split)

    def stop(row: int) -> bytes:
        if row == 3:
            raise KeyboardInterrupt
        return split.read(row)

    with pytest.raises(KeyboardInterrupt):
        outputs_of(session, replace(split, read=stop), cache=cache)
    damaged = replace(split, read=lambda row: b"no photo" if row == 0 else split.read(row))
    runs = _counted(session, monkeypatch)
    with pytest.raises(
        DataError, match=rf"1 of {len(split)} photos cannot be read.*--skip-damaged"
    ):
        outputs_of(session, damaged, cache=cache)
    assert len(runs) == len(split) - 3  # of the others the interrupted run stored the outputs
    assert _equal(outputs_of(session, split, cache=cache), expected)
    assert len(runs) == len(split) - 3


def test_damaged_photos_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    """Training leaves them out with --skip-damaged, so what follows must be able to."""
    data, bundle = make_data(tmp_path / "d", rows=9), make_bundle(tmp_path / "b").path
    for split in ("val", "test"):
        (data / split / "c1" / "004.png").write_bytes(b"no picture")
    words = (bundle, "--data", data, "--score-kind", "softmax", "--head", "sccp", "--k", "1,2,3")
    refused = run("calibrate", *words).exception
    assert isinstance(refused, DataError)
    result = run("calibrate", *words, "--skip-damaged", "--label-noise", "0.01")
    assert result.exit_code == 0, result.output
    expected = "skipped because they cannot be read: 1 photo of {}\n  {}/c1/004.png: "
    assert expected.format("val", "val") in result.stderr
    assert "--skip-damaged" in result.stderr.rpartition("next: ")[2]
    record = read_record(open_bundle(bundle))
    assert record.measured.rows == 9 * 6 - 1
    refused = run("evaluate", bundle, "--data", data).exception
    assert isinstance(refused, DataError)
    again = run("evaluate", bundle, "--data", data, "--skip-damaged", "--baseline", bundle)
    assert again.exit_code == 0, again.output
    assert again.stderr.count(expected.format("test", "test")) == 1
    assert f"{9 * 6 - 1} photos of test" in again.stdout


def test_corrected_labels_of_other_splits_are_named(bundle: Bundle, tmp_path: Path) -> None:
    data, told = make_data(tmp_path / "d", rows=3), list[str]()
    (tmp_path / "labels.csv").write_text("path,class_id\nval/c0/000.png,c1\ntest/c0/001.png,c2\n")
    source = f"{data}:labels={tmp_path / 'labels.csv'}"
    photos = photos_for(bundle, source, "val:0-0.9", say=told.append)
    assert photos.labels[photos.names.index("val/c0/000.png")] == 1
    assert told == ["1 corrected label is of photos that val lacks and not used: 'test/c0/001.png'"]
    photos_for(bundle, str(data), "val", say=told.append)
    assert len(told) == 1


def _counted(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each photo that the network sees."""
    run, runs = session.outputs, list[int]()

    def outputs(images: np.ndarray, **options: bool) -> object:
        runs.append(1)
        return run(images, **options)

    monkeypatch.setattr(session, "outputs", outputs)
    return runs


def test_a_cache_that_cannot_be_written_costs_only_time(
    bundle: Bundle, split: Split, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    session = Session(bundle, device="cpu")
    outputs = outputs_of(session, split, cache=tmp_path / "file" / "cache")
    assert _equal(outputs, scored(bundle, split))


def test_the_commands_read_what_earlier_ones_have_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, cache = make_bundle(tmp_path / "bundle", features=True), tmp_path / "cache"
    data = make_data(tmp_path / "data", rows=4, splits=("train", "val", "test"))
    photos = (bundle.path, "--data", data, "--json")

    def results() -> list[str]:
        commands = [("calibrate", "--k", "2"), ("evaluate",)]
        done = [run(verb, *photos, *words, "--output-cache", cache) for verb, *words in commands]
        assert [result.exit_code for result in done] == [0, 0]
        return [done[0].stdout.split('"calibration_id"')[0], done[1].stdout]

    first = results()
    assert len([*cache.iterdir()]) == 1  # one network, three splits
    monkeypatch.setattr(Session, "outputs", None)
    assert results()[0] == first[0]
    assert run("calibrate", *photos, "--output-cache", "none").exit_code != 0
