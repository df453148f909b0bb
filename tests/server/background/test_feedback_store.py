"""The files of the feedback store."""

import contextlib
import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from florilege.rotation import numbered_files
from florilege.server.background.feedback_store import MAX_BYTES, MAX_FILES, NAME, FeedbackStore


def feedback_files(folder: Path) -> list[Path]:
    return numbered_files(folder, NAME)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """All rows, in the order they were written; what is torn is left out."""
    rows = []
    for path in feedback_files(folder):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return rows


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"request_id": f"r{number}", "class_id": "1", "set": ["1"], **more}


def test_rows_come_back_in_order_also_after_a_restart(tmp_path: Path) -> None:
    for start in (0, 10):
        store = FeedbackStore(tmp_path)
        for number in range(start, start + 10):
            store.append(row(number, note="Grüße, 花"))
    assert lines_of(tmp_path) == [row(number, note="Grüße, 花") for number in range(20)]
    assert len(feedback_files(tmp_path)) == 1


def test_files_are_full_at_their_size_and_the_oldest_goes(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path, max_bytes=100, max_files=3)
    for number in range(40):
        store.append(row(number))
        files = feedback_files(tmp_path)
        assert len(files) <= 3
        assert all(path.stat().st_size >= 100 for path in files[:-1])
        assert sum(path.stat().st_size for path in files) < 3 * 200
    kept = [one["request_id"] for one in lines_of(tmp_path)]
    assert kept == [f"r{number}" for number in range(40 - len(kept), 40)]
    assert len(kept) >= 4
    assert feedback_files(tmp_path)[-1].name > "feedback-000010.jsonl"


@pytest.mark.parametrize(("beyond", "files"), [(-1, 1), (0, 2), (1, 2)])
def test_a_file_that_has_reached_its_size_is_followed_by_the_next(
    tmp_path: Path, beyond: int, files: int
) -> None:
    FeedbackStore(tmp_path).append(row(1))
    size = feedback_files(tmp_path)[0].stat().st_size
    FeedbackStore(tmp_path, max_bytes=size - beyond).append(row(2))
    assert len(feedback_files(tmp_path)) == files


def test_a_file_of_the_usual_size_is_full_and_the_usual_number_is_kept(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    store.append(row(0))
    for number in range(1, MAX_FILES + 3):
        for size, more in ((MAX_BYTES - 1, 0), (MAX_BYTES, 1)):
            os.truncate(feedback_files(tmp_path)[-1], size)  # grows, and takes no room on the disk
            store.append(row(number))
            assert len(feedback_files(tmp_path)) == min(number + more, MAX_FILES)


def test_files_of_other_names_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "feedback-old.jsonl").write_text("{}")
    FeedbackStore(tmp_path).append(row(1))
    assert [path.name for path in feedback_files(tmp_path)] == ["feedback-000001.jsonl"]


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    store.append(row(1))
    path = feedback_files(tmp_path)[0]
    with path.open("ab") as file:
        file.write(b'{"request_id": "r2", "cla')
    store.append(row(3))
    assert [one["request_id"] for one in lines_of(tmp_path)] == ["r1", "r3"]


def test_a_write_that_ends_early_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FeedbackStore(tmp_path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:5]))
    with pytest.raises(OSError, match="feedback-000001"):
        store.append(row(1))
    monkeypatch.undo()
    store.append(row(2))
    assert [one["request_id"] for one in lines_of(tmp_path)] == ["r2"]


def test_a_row_that_did_not_reach_the_disk_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"):
        FeedbackStore(tmp_path).append(row(1))


def test_one_thread_writes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2)
    met: list[int] = []

    def wait_for_another(_: int) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            met.append(together.wait(0.1))

    monkeypatch.setattr(os, "fsync", wait_for_another)
    store = FeedbackStore(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: store.append(row(number)), range(2)))
    assert met == []
    assert len(lines_of(tmp_path)) == 2


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path, max_bytes=2000, max_files=100)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.append(row(number)), range(200)))
    assert {one["request_id"] for one in lines_of(tmp_path)} == {f"r{n}" for n in range(200)}


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"max_files": 0}])
def test_a_store_needs_room(tmp_path: Path, limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FeedbackStore(tmp_path, **limits)
