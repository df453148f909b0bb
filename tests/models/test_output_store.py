"""Outputs by photo on disk: the same bytes come back, whoever wrote, damaged or interrupted."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from florilege.models import output_store
from florilege.models.output_store import OutputStore, cache_folder, photo_id
from florilege.models.session import FEATURES, Session
from tests.calibration.small_bundle import make_bundle

WIDTHS = {"sccp": 3, FEATURES: 2}
PHOTOS = [photo_id(bytes([number])) for number in range(6)]
ROWS = {
    name: np.random.default_rng(width).normal(size=(6, width)).astype(np.float32)
    for name, width in WIDTHS.items()
}


def _fill(folder: Path, *numbers: int) -> OutputStore:
    store = OutputStore(folder, WIDTHS)
    for number in numbers:
        store.add([PHOTOS[number]], {name: rows[[number]] for name, rows in ROWS.items()})
    return store


def _check(store: OutputStore, *numbers: int) -> None:
    for number, photo in enumerate(PHOTOS):
        outputs = store.find(photo)
        assert (photo in store) == (outputs is not None) == (number in numbers)
        for name in outputs or ():
            assert outputs is not None
            assert outputs[name].tobytes() == ROWS[name][[number]].tobytes()
            assert outputs[name].shape == (1, WIDTHS[name])


def test_features_alone_say_how_many_they_are(tmp_path: Path) -> None:
    for _ in range(2):  # no folder, then one without photos
        with pytest.raises(ValueError, match="no features"):
            OutputStore.of_features(tmp_path / "features")
        (tmp_path / "features").mkdir(exist_ok=True)
    OutputStore(tmp_path / "features", {FEATURES: 2}).add(PHOTOS, {FEATURES: ROWS[FEATURES]})
    assert (OutputStore.of_features(tmp_path / "features").values(FEATURES) == ROWS[FEATURES]).all()
    os.truncate(tmp_path / "features" / "features.f32", 5 * 8 + 4)
    with pytest.raises(ValueError, match="interrupted"):
        OutputStore.of_features(tmp_path / "features")


def test_what_was_added_is_found_again_by_others(tmp_path: Path) -> None:
    _check(_fill(tmp_path / "new" / "folder", 4, 1), 1, 4)
    other = OutputStore(tmp_path / "new" / "folder", WIDTHS)
    _check(other, 1, 4)
    places = other.rows_of([PHOTOS[1], PHOTOS[4], PHOTOS[1]])
    assert places.tolist() == [1, 0, 1]
    for name, rows in ROWS.items():
        assert (other.values(name)[places] == rows[[1, 4, 1]]).all()
    assert OutputStore(tmp_path / "none", WIDTHS).values("sccp").shape == (0, 3)


def test_stores_that_are_open_together_add_after_each_other(tmp_path: Path) -> None:
    first, second = OutputStore(tmp_path, WIDTHS), OutputStore(tmp_path, WIDTHS)
    for store, number in ((first, 0), (second, 1), (first, 2), (second, 3)):
        store.add([PHOTOS[number]], {name: rows[[number]] for name, rows in ROWS.items()})
    _check(second, 0, 1, 2, 3)
    _check(OutputStore(tmp_path, WIDTHS), 0, 1, 2, 3)


def test_threads_that_add_wait_for_each_other(tmp_path: Path) -> None:
    threads = [threading.Thread(target=_fill, args=(tmp_path, number)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _check(OutputStore(tmp_path, WIDTHS), *range(6))


def test_threads_that_share_a_store_add_after_each_other(tmp_path: Path) -> None:
    store = OutputStore(tmp_path, WIDTHS)

    def add(number: int) -> None:
        store.add([PHOTOS[number]], {name: rows[[number]] for name, rows in ROWS.items()})

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, range(6)))
    assert len(store) == 6
    _check(store, *range(6))
    _check(OutputStore(tmp_path, WIDTHS), *range(6))


@pytest.mark.parametrize("name", ["sccp.f32", f"{FEATURES}.f32", output_store._RECORDS])
def test_half_a_row_is_written_over(tmp_path: Path, name: str) -> None:
    _fill(tmp_path, 0, 1, 2)
    file = tmp_path / name
    os.truncate(file, file.stat().st_size - 3)
    store = OutputStore(tmp_path, WIDTHS)
    _check(store, 0, 1)
    store.add(PHOTOS[3:4], {name: rows[3:4] for name, rows in ROWS.items()})
    _check(store, 0, 1, 3)
    _check(OutputStore(tmp_path, WIDTHS), 0, 1, 3)


@pytest.mark.parametrize("name", ["sccp.f32", f"{FEATURES}.f32"])
def test_a_changed_byte_is_noticed_and_the_row_replaced(tmp_path: Path, name: str) -> None:
    _fill(tmp_path, 0, 1, 2)
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    store = OutputStore(tmp_path, WIDTHS)
    assert store.find(PHOTOS[1]) is None
    store.add(PHOTOS[1:2], {name: rows[1:2] for name, rows in ROWS.items()})
    _check(OutputStore(tmp_path, WIDTHS), 0, 1, 2)


def test_a_store_without_its_files_is_empty_not_broken(tmp_path: Path) -> None:
    store = _fill(tmp_path, 0, 1)
    (tmp_path / "sccp.f32").unlink()
    assert store.find(PHOTOS[0]) is None
    _check(OutputStore(tmp_path, WIDTHS))


def test_the_folder_follows_all_that_the_outputs_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(make_bundle(tmp_path / "b"), device="cpu")

    def folder() -> Path:
        store = OutputStore.of_network(session, tmp_path / "root", 1)
        assert store is not None
        return store.folder

    first = folder()
    assert first == folder()
    monkeypatch.setattr(output_store, "DECODER_VERSION", "another")
    assert folder() != first
    monkeypatch.undo()
    monkeypatch.setattr(session, "provider", "CUDAExecutionProvider")
    assert folder() != first
    monkeypatch.undo()
    monkeypatch.setattr(output_store, "installed", lambda name: f"{name} 99")
    assert folder() != first
    monkeypatch.undo()
    monkeypatch.setattr(session, "runtime", session.runtime._replace(precision="bf16"))
    assert folder() != first
    monkeypatch.undo()
    session = Session(make_bundle(tmp_path / "other", sharper=2.0), device="cpu")
    assert folder() != first


def test_stores_used_longest_ago_make_room_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    for age, name in enumerate(("old", "older", "oldest")):
        _fill(root / name, 0, 1, 2)
        os.utime(root / name, (1000 - age, 1000 - age))
    (root / "mine").mkdir()
    (root / "mine" / "notes.txt").write_text("mine")
    session = Session(make_bundle(tmp_path / "b"), device="cpu")
    size, numbers = output_store._size(root / "old"), sum(session.widths.values())
    monkeypatch.setattr(output_store, "MOST_BYTES", 2 * size + 36 + 4 * numbers)
    store = OutputStore.of_network(session, root, 1)
    assert store is not None
    assert sorted(path.name for path in root.iterdir()) == ["mine", "old", "older"]
    assert (root / "mine" / "notes.txt").read_text() == "mine"
    store.folder.mkdir()
    os.utime(store.folder, (5, 5))
    OutputStore.of_network(session, root, 1)
    assert store.folder.stat().st_mtime > 1000  # so that it is not the oldest next time
    assert OutputStore.of_network(session, root, 10**6) is None  # more than everything may take
    assert (root / "old").is_dir()


def test_the_option_names_a_folder_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder("none") is None
    assert cache_folder(str(tmp_path / "new" / "here")) == tmp_path / "new" / "here"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / "florilege" / "outputs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder(None) == tmp_path / "home" / ".cache" / "florilege" / "outputs"


@pytest.mark.parametrize("name", ["file", "file/cache"])
def test_a_folder_that_was_asked_for_and_keeps_nothing_is_worth_a_warning(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    assert cache_folder(str(tmp_path / name)) == tmp_path / name
    message = capsys.readouterr().err
    assert message.startswith(f"warning: --output-cache {tmp_path / name} keeps nothing: ")
    assert message.count("warning:") == 1
    assert cache_folder(str(tmp_path / "cache"))
    assert capsys.readouterr().err == ""
    assert not list((tmp_path / "cache").iterdir())


def test_a_user_without_a_home_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder(None) is None
    assert cache_folder(str(tmp_path / "new" / "here")) == tmp_path / "new" / "here"


def test_a_folder_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    session = Session(make_bundle(tmp_path / "b"), device="cpu")
    monkeypatch.setattr(output_store, "_folders", refused)
    assert OutputStore.of_network(session, tmp_path, 1) is None
