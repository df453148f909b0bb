"""The score log: what is written is read back, whatever restarts, a crash or a full disk leave."""

import json
import os
import stat
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.calibration.monitoring.score_log import (
    COUNTS,
    FILES,
    NAME,
    PHOTOS_AT_ONCE,
    ScoreLog,
    ScoreLogWriter,
    Scorer,
    open_score_log,
)
from florilege.errors import DataError
from tests.calibration.command_line import write_log

SCORER = Scorer(network="n" * 64, head="linear", classes=3)
MUCH = 2**30
WHOSE = {"network": SCORER.network, "head": SCORER.head}
LINE = len(json.dumps({**WHOSE, "logits": ["A" * 16]})) + 1
"""Bytes of a request with one photo."""


def logits_of(request: int, photos: int = 1) -> np.ndarray:
    return (np.arange(photos * 3).reshape(photos, 3) / 7 - request).astype(np.float32)


def written(
    folder: Path, requests: range, *, photos: int = 1, scorer: Scorer = SCORER, at_most: int = MUCH
) -> None:
    """What one server logs between its start and its end."""
    write_log(folder, scorer, (logits_of(each, photos) for each in requests), max_bytes=at_most)


def log_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(NAME))


def read(log: ScoreLog, photos: int = 1) -> list[list[list[float]]]:
    result: list[list[list[float]]] = np.concatenate(
        [np.empty((0, photos, 3)), *log.blocks(photos=photos)]
    ).tolist()
    return result


def expected(requests: range, photos: int = 1) -> list[list[list[float]]]:
    return [logits_of(request, photos).tolist() for request in requests]


@settings(max_examples=40)
@given(photos=st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_every_request_is_read_back_bit_for_bit_in_order(
    tmp_path_factory: pytest.TempPathFactory, photos: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    requests = [logits_of(request, count) for request, count in enumerate(photos)]
    write_log(folder, SCORER, requests)
    with open_score_log(folder, SCORER) as log:
        assert (log.damaged, log.others, log.repeated) == (0, 0, 0)
        assert log.requests == {count: photos.count(count) for count in set(photos)}
        for count in range(1, 6):
            assert read(log, count) == [
                logits.tolist() for logits in requests if len(logits) == count
            ]


def test_blocks_are_bounded(tmp_path: Path) -> None:
    for photos in (1, 5):
        written(tmp_path, range(PHOTOS_AT_ONCE + 1), photos=photos)
    with open_score_log(tmp_path, SCORER) as log:
        assert [len(block) for block in log.blocks()] == [PHOTOS_AT_ONCE, 1]
        fives = [len(block) for block in log.blocks(photos=5)]
        assert max(fives) * 5 <= PHOTOS_AT_ONCE
        assert sum(fives) == PHOTOS_AT_ONCE + 1
        assert read(log, 5) == expected(range(PHOTOS_AT_ONCE + 1), 5)


def test_restarts_and_many_writers_in_one_folder_lose_nothing(tmp_path: Path) -> None:
    written(tmp_path, range(2000))
    for restart in range(2000, 2008):
        written(tmp_path, range(restart, restart + 1))
    writers = [ScoreLogWriter(tmp_path, SCORER, max_bytes=MUCH) for _ in range(12)]
    for request in range(2008, 2600):
        writers[request % 12].append(logits_of(request))
    assert len(log_files(tmp_path)) == 21
    with open_score_log(tmp_path, SCORER) as log:
        requests = read(log)
    assert requests[:2008] == expected(range(2008))
    assert sorted(requests) == sorted(expected(range(2600)))


def test_many_threads_may_write(tmp_path: Path) -> None:
    writer = ScoreLogWriter(tmp_path, SCORER, max_bytes=MUCH)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: writer.append(logits_of(n, 1 + n % 3)), range(600)))
    with open_score_log(tmp_path, SCORER) as log:
        assert (log.requests, log.damaged) == ({1: 200, 2: 200, 3: 200}, 0)
        assert sorted(read(log)) == sorted(expected(range(0, 600, 3)))


def test_nothing_is_deleted_below_the_bytes_allowed_and_the_oldest_beyond(tmp_path: Path) -> None:
    allowed = 64 * LINE
    for request in range(200):  # a restart for each: every file holds one request
        written(tmp_path, range(request, request + 1), at_most=allowed)
        assert len(log_files(tmp_path)) == min(request + 1, 64)
    with open_score_log(tmp_path, SCORER) as log:
        assert read(log) == expected(range(136, 200))


def test_one_file_in_sixteen_is_deleted_at_a_time(tmp_path: Path) -> None:
    allowed = 16 * 10 * LINE
    writer = ScoreLogWriter(tmp_path, SCORER, max_bytes=allowed)
    for request in range(1000):
        writer.append(logits_of(request))
        total_bytes = sum(path.stat().st_size for path in log_files(tmp_path))
        least = min(LINE * (request + 1), allowed - 10 * LINE)
        assert least <= total_bytes <= allowed
    assert len(log_files(tmp_path)) == FILES
    with open_score_log(tmp_path, SCORER) as log:
        assert read(log) == expected(range(1000 - log.requests[1], 1000))


def test_several_writers_keep_to_the_bytes_together(tmp_path: Path) -> None:
    allowed = 64 * 4 * LINE
    writers = [ScoreLogWriter(tmp_path, SCORER, max_bytes=allowed) for _ in range(4)]
    for request in range(2000):
        writers[request % 4].append(logits_of(request))
        total_bytes = sum(path.stat().st_size for path in log_files(tmp_path))
        assert total_bytes <= allowed + 3 * allowed // COUNTS
    assert total_bytes > allowed * 3 / 4
    with open_score_log(tmp_path, SCORER) as log:
        assert {-value for [[value, *_]] in read(log)} >= set(range(1900, 2000))


def test_a_writer_whose_file_another_has_deleted_begins_another(tmp_path: Path) -> None:
    quiet = ScoreLogWriter(tmp_path, SCORER, max_bytes=MUCH)
    quiet.append(logits_of(0))
    [path] = log_files(tmp_path)
    path.unlink()
    quiet.append(logits_of(1))
    with open_score_log(tmp_path, SCORER) as log:
        assert read(log) == expected(range(1, 2))


def test_a_torn_end_costs_its_request_alone_and_is_counted(tmp_path: Path) -> None:
    written(tmp_path, range(3), photos=2)
    [path] = log_files(tmp_path)
    content = path.read_bytes()
    length = len(content) // 3
    for end in range(length, len(content)):
        path.write_bytes(content[:end])
        with open_score_log(tmp_path, SCORER) as log:
            whole, rest = divmod(end, length)
            whole += rest == length - 1  # nothing but the end of the line is missing
            assert log.requests == {2: whole}
            assert log.damaged == (0 < rest < length - 1)
            assert read(log, 2) == expected(range(whole), 2)


@pytest.mark.parametrize(
    "line",
    [
        b"\0" * 300,  # as a power cut may leave
        b"no json",
        b"[]",
        b"{}",
        b"[" * 100_000,
        json.dumps(WHOSE).encode(),
        json.dumps({**WHOSE, "logits": []}).encode(),
        json.dumps({**WHOSE, "logits": [1, 2]}).encode(),
        json.dumps({**WHOSE, "logits": ["AAAA", "AAAA"]}).encode(),
        json.dumps({**WHOSE, "logits": ["A*==" * 4]}).encode(),
        json.dumps(
            {"network": "n" * 64, "head": "linear", "logits": ["//////////////8A"]}
        ).encode(),
    ],
)
def test_a_damaged_line_costs_itself_alone(tmp_path: Path, line: bytes) -> None:
    written(tmp_path, range(2))
    [path] = log_files(tmp_path)
    first, second, _ = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([first, line, second, b""]))
    with open_score_log(tmp_path, SCORER) as log:
        assert (log.requests, log.damaged) == ({1: 2}, 1)
        assert read(log) == expected(range(2))


def test_only_numbers_are_kept_and_only_for_the_owner(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "log"
    written(folder, range(1), photos=2)
    [path] = log_files(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    request = json.loads(path.read_bytes())
    assert set(request) == {"network", "head", "logits"}
    assert [np.frombuffer(b64decode(photo), "<f4").tolist() for photo in request["logits"]] == (
        logits_of(0, 2).tolist()
    )


def test_a_disk_that_is_full_is_an_error_and_spoils_nothing_written_before_or_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ScoreLogWriter(tmp_path, SCORER, max_bytes=MUCH)
    writer.append(logits_of(0))
    write = os.write

    def short(file: int, content: bytes) -> int:
        return write(file, content[:20])

    def full(file: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    for broken, message in ((short, "only 20 of"), (full, "No space")):
        monkeypatch.setattr("florilege.calibration.monitoring.score_log.os.write", broken)
        with pytest.raises(OSError, match=message):
            writer.append(logits_of(1))
    for _ in range(5):  # a busy server keeps trying
        with pytest.raises(OSError, match="No space"):
            writer.append(logits_of(1))
    assert len(log_files(tmp_path)) == 1
    monkeypatch.undo()
    writer.append(logits_of(2))
    with open_score_log(tmp_path, SCORER) as log:
        assert (log.requests, log.damaged) == ({1: 2}, 1)
        assert read(log) == [*expected(range(1)), *expected(range(2, 3))]


def test_networks_and_heads_are_never_mixed(tmp_path: Path) -> None:
    other = replace(SCORER, network="o" * 64)
    head = replace(SCORER, head="sccp")
    for number, scorer in enumerate((SCORER, other, head)):
        written(tmp_path, range(number, number + 1), scorer=scorer)
    whole = b"".join(path.read_bytes() for path in log_files(tmp_path))
    for path in log_files(tmp_path):
        path.unlink()
    (tmp_path / NAME.replace("*", "joined")).write_bytes(whole)  # files may be put together
    for number, scorer in enumerate((SCORER, other, head)):
        with open_score_log(tmp_path, scorer) as log:
            assert (log.requests, log.others) == ({1: 1}, 2)
            assert read(log) == expected(range(number, number + 1))
    with (
        pytest.raises(DataError, match="no request of this network and head, only 3 of others"),
        open_score_log(tmp_path, replace(SCORER, network="x" * 64)),
    ):
        pass


def test_requests_that_repeat_another_count_once(tmp_path: Path) -> None:
    written(tmp_path, range(3))
    written(tmp_path, range(1, 4))
    with open_score_log(tmp_path, SCORER) as log:
        assert (log.requests, log.repeated) == ({1: 4}, 2)
        assert read(log) == expected(range(4))


def test_a_log_is_read_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    writer = ScoreLogWriter(tmp_path, SCORER, max_bytes=MUCH)
    writer.append(logits_of(0))
    with open_score_log(tmp_path, SCORER) as log:
        writer.append(logits_of(1))
        for path in log_files(tmp_path):
            path.unlink()
        assert read(log) == read(log) == expected(range(1))


def test_a_file_that_is_deleted_while_the_folder_is_read_or_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for request in range(2):
        written(tmp_path, range(request, request + 1))
    paths = log_files(tmp_path)
    listed = Path.glob

    def also_gone(folder: Path, name: str) -> Iterator[Path]:
        yield from (paths[0] for _ in range(name == NAME))
        yield from (path for path in listed(folder, name) if path != paths[0])

    paths[0].unlink()
    monkeypatch.setattr(Path, "glob", also_gone)
    with open_score_log(tmp_path, SCORER) as log:
        assert read(log) == expected(range(1, 2))
    written(tmp_path, range(3), at_most=LINE)  # which counts, and deletes, for each request


def test_a_folder_without_requests_or_that_cannot_be_read_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME.replace("*", "empty")).touch()
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match="wait for traffic"), open_score_log(folder, SCORER):
            pass
    (tmp_path / NAME.replace("*", "folder")).mkdir()
    with pytest.raises(DataError, match="cannot be read"), open_score_log(tmp_path, SCORER):
        pass


def test_wrong_shapes_are_named(tmp_path: Path) -> None:
    writer = ScoreLogWriter(tmp_path, SCORER, max_bytes=MUCH)
    for wrong in (np.zeros(3), np.zeros((1, 4)), np.zeros((0, 3))):
        with pytest.raises(ValueError, match=r"logits must have shape \(photos, 3\), got"):
            writer.append(wrong)
    assert log_files(tmp_path) == []
