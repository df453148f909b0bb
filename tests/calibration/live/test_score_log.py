"""The score log: what is written is read back, whatever a crash or a full disk leaves."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calibration.live.score_log_reader
from calibration.live.score_log import (
    MAX_BYTES,
    MAX_FILES,
    MOST_PHOTOS,
    NAME,
    LogHeader,
    ScoreLogWriter,
)
from calibration.live.score_log_reader import PHOTOS_AT_ONCE, ScoreLog, open_score_log
from models.errors import DataError
from models.rotating import numbered_files

HEADER = LogHeader(classes=3, head="linear", score_kind="softmax", model_sha256="m" * 64)
RECORD = HEADER.photo.itemsize


def logits_of(request: int, photos: int = 1) -> np.ndarray:
    return (np.arange(photos * 3).reshape(photos, 3) / 7 - request).astype(np.float32)


def log_files(folder: Path) -> list[Path]:
    return numbered_files(folder, NAME)


def read(log: ScoreLog, photos: int = 1) -> np.ndarray:
    return np.concatenate([np.empty((0, photos, 3)), *log.blocks(photos=photos)])


@settings(max_examples=40, deadline=None)
@given(
    photos=st.lists(st.integers(1, 5), min_size=1, max_size=40),
    max_bytes=st.sampled_from([1, 300, 10**6]),
)
def test_every_request_is_read_back_bit_for_bit_in_order(
    tmp_path_factory: pytest.TempPathFactory, photos: list[int], max_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    writer = ScoreLogWriter(folder, HEADER, max_bytes=max_bytes, max_files=100)
    written = [logits_of(request, count) for request, count in enumerate(photos)]
    for logits in written:
        writer.append(logits)
    writer.close()
    log = open_score_log(folder)
    assert (log.torn, log.header) == (0, HEADER)
    assert log.requests == {count: photos.count(count) for count in sorted(set(photos))}
    for count in range(1, 6):
        expected = [logits.tolist() for logits in written if len(logits) == count]
        assert read(log, count).tolist() == expected


def test_blocks_are_bounded_and_requests_are_whole_across_them(tmp_path: Path) -> None:
    writer = ScoreLogWriter(tmp_path, HEADER)
    for request in range(700):
        writer.append(logits_of(request, 1 + request % 5))
    log = open_score_log(tmp_path)
    for count in range(1, 6):
        blocks = list(log.blocks(photos=count))
        assert len(blocks) > 1
        assert all(block.shape[0] * count <= PHOTOS_AT_ONCE + 5 for block in blocks)
        assert len(np.concatenate(blocks)) == log.requests[count] == 140


@settings(max_examples=60, deadline=None)
@given(
    photos=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    damaged=st.sets(st.integers(0, 30)),
    at_once=st.integers(1, 40),
)
def test_blocks_of_any_length_give_the_same_requests(
    tmp_path_factory: pytest.TempPathFactory, photos: list[int], damaged: set[int], at_once: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    writer = ScoreLogWriter(folder, HEADER)
    for request, count in enumerate(photos):
        writer.append(logits_of(request, count))
    writer.close()
    [path] = log_files(folder)
    content = bytearray(path.read_bytes())
    for record in damaged & set(range(sum(photos))):
        content[len(HEADER.line()) + record * RECORD + record % 2] ^= 1
    path.write_bytes(content)
    expected = open_score_log(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration.live.score_log_reader, "PHOTOS_AT_ONCE", at_once)
        found = open_score_log(folder)
        assert (found.requests, found.torn) == (expected.requests, expected.torn)
        several = [read(found, count).tolist() for count in range(1, 6)]
    assert several == [read(expected, count).tolist() for count in range(1, 6)]


def test_a_first_line_longer_than_any_header_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ScoreLogWriter(tmp_path, HEADER)
    writer.append(logits_of(0))
    writer.close()
    monkeypatch.setattr(calibration.live.score_log_reader, "HEADER_BYTES", len(HEADER.line()))
    assert open_score_log(tmp_path).requests == {1: 1}
    monkeypatch.setattr(calibration.live.score_log_reader, "HEADER_BYTES", len(HEADER.line()) - 1)
    with pytest.raises(DataError, match="holds no score log"):
        open_score_log(tmp_path)


def test_a_torn_end_is_left_out_at_every_byte(tmp_path: Path) -> None:
    writer = ScoreLogWriter(tmp_path, HEADER)
    for request in range(4):
        writer.append(logits_of(request, 2))
    writer.close()
    (path,) = log_files(tmp_path)
    content = path.read_bytes()
    start = len(HEADER.line())
    assert len(content) == start + 8 * RECORD
    for end in range(start, len(content)):
        path.write_bytes(content[:end])
        log = open_score_log(tmp_path)
        whole = (end - start) // (2 * RECORD)
        assert log.requests.get(2, 0) == whole == len(read(log, 2))
        assert (log.torn > 0) == ((end - start) % (2 * RECORD) > 0)
        assert read(log, 2).tolist() == [logits_of(n, 2).tolist() for n in range(whole)]
    path.write_bytes(content[: start - 1])
    with pytest.raises(DataError, match="holds no score log"):
        open_score_log(tmp_path)


def test_a_photo_that_is_of_no_whole_request_costs_its_request_only(tmp_path: Path) -> None:
    writer = ScoreLogWriter(tmp_path, HEADER)
    for request in range(3):
        writer.append(logits_of(request, 2))
    (path,) = log_files(tmp_path)
    sound = path.read_bytes()
    start = len(HEADER.line())
    for at in (start + photo * RECORD + byte for photo in (2, 3) for byte in (0, 1)):
        content = bytearray(sound)
        content[at] ^= 4
        path.write_bytes(content)
        log = open_score_log(tmp_path)
        assert (log.requests, log.torn) == ({2: 2}, 2)
        assert read(log, 2).tolist() == [logits_of(0, 2).tolist(), logits_of(2, 2).tolist()]


def test_files_are_rotated_and_the_oldest_deleted(tmp_path: Path) -> None:
    limit = len(HEADER.line()) + 10 * RECORD
    writer = ScoreLogWriter(tmp_path, HEADER, max_bytes=limit, max_files=3)
    for request in range(96):
        writer.append(logits_of(request))
        assert sum(path.stat().st_size for path in log_files(tmp_path)) <= 3 * limit
    assert [path.name for path in log_files(tmp_path)] == [
        f"scores-{number:06d}.log" for number in (8, 9, 10)
    ]
    found = read(open_score_log(tmp_path))[:, 0].tolist()
    assert found == [logits_of(request)[0].tolist() for request in range(70, 96)]


def test_a_file_of_the_usual_size_is_full_and_the_usual_number_is_kept(tmp_path: Path) -> None:
    writer = ScoreLogWriter(tmp_path, HEADER)
    writer.append(logits_of(0))
    for bytes_written, files in ((MAX_BYTES - 1, 1), (MAX_BYTES, 2)):
        writer._bytes = bytes_written  # as if so many were in the file
        writer.append(logits_of(1))
        assert len(log_files(tmp_path)) == files
    writer.close()
    for number in range(3, MAX_FILES + 3):
        writer.append(logits_of(number))
        writer.close()
        assert len(log_files(tmp_path)) == min(number, MAX_FILES)


def test_a_request_may_have_so_many_photos_and_no_more(tmp_path: Path) -> None:
    writer = ScoreLogWriter(tmp_path, HEADER)
    writer.append(logits_of(0, MOST_PHOTOS))
    with pytest.raises(
        ValueError, match=rf"1 to {MOST_PHOTOS} photos, 3\), got \({MOST_PHOTOS + 1},"
    ):
        writer.append(logits_of(0, MOST_PHOTOS + 1))
    writer.close()
    [found] = read(open_score_log(tmp_path), MOST_PHOTOS)
    assert found.tolist() == logits_of(0, MOST_PHOTOS).tolist()


def test_a_new_writer_goes_on_in_a_new_file_and_leaves_the_old_ones(tmp_path: Path) -> None:
    for request in range(3):
        writer = ScoreLogWriter(tmp_path, HEADER)
        writer.append(logits_of(request))
        writer.close()
    assert len(log_files(tmp_path)) == 3
    assert len(read(open_score_log(tmp_path))) == 3


def test_two_writers_never_share_a_file(tmp_path: Path) -> None:
    first, second = (ScoreLogWriter(tmp_path, HEADER) for _ in range(2))
    for request in range(5):
        first.append(logits_of(request))
        second.append(logits_of(request))
    assert len(log_files(tmp_path)) == 2
    assert open_score_log(tmp_path).requests == {1: 10}


def test_a_number_that_another_process_took_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.rotating.numbered_files", lambda folder, name: [])
    for request in range(2):
        ScoreLogWriter(tmp_path, HEADER).append(logits_of(request))
    assert [path.name for path in log_files(tmp_path)] == [
        "scores-000001.log",
        "scores-000002.log",
    ]
    assert open_score_log(tmp_path).requests == {1: 2}


def test_many_threads_may_write(tmp_path: Path) -> None:
    writer = ScoreLogWriter(tmp_path, HEADER, max_bytes=2000, max_files=1000)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: writer.append(logits_of(n, 1 + n % 3)), range(600)))
    log = open_score_log(tmp_path)
    assert (log.requests, log.torn) == ({1: 200, 2: 200, 3: 200}, 0)
    assert sorted(read(log)[:, 0, 0].tolist()) == [-float(n) for n in range(597, -1, -3)]


def test_only_numbers_are_kept_and_only_for_the_owner(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "log"
    ScoreLogWriter(folder, HEADER).append(logits_of(0))
    (path,) = log_files(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    line, rest = path.read_bytes().split(b"\n", 1)
    assert set(json.loads(line)) == {
        "format", "version", "classes", "head", "score_kind", "model_sha256",
    }  # fmt: skip
    assert len(rest) == RECORD == 2 + 3 * 4
    (photo,) = np.fromfile(path, HEADER.photo, offset=len(line) + 1)
    assert (photo["photos"], photo["number"]) == (1, 0)
    assert photo["logits"].tolist() == logits_of(0)[0].tolist()


def test_a_disk_that_is_full_is_an_error_and_spoils_nothing_written_before_or_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ScoreLogWriter(tmp_path, HEADER)
    writer.append(logits_of(0, 2))
    write = os.write

    def short(file: int, content: bytes) -> int:
        return write(file, content[: RECORD + 3])

    def full(file: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    for broken, message in ((short, "bytes were written"), (full, "No space")):
        monkeypatch.setattr("calibration.live.score_log.os.write", broken)
        with pytest.raises(OSError, match=message):
            writer.append(logits_of(1, 2))
    monkeypatch.undo()
    writer.append(logits_of(2, 2))
    log = open_score_log(tmp_path)
    assert log.requests == {2: 2}
    assert log.torn > 0
    assert read(log, 2)[:, 0, 0].tolist() == [0.0, -2.0]


def test_only_files_of_the_wanted_network_are_read(tmp_path: Path) -> None:
    other = LogHeader(classes=5, head="sccp", score_kind="sigmoid", model_sha256="o" * 64)
    ScoreLogWriter(tmp_path, HEADER).append(logits_of(0))
    ScoreLogWriter(tmp_path, other).append(np.zeros((1, 5)))
    newest = open_score_log(tmp_path)
    assert (newest.header, newest.requests) == (other, {1: 1})
    assert open_score_log(tmp_path, model_sha256="m" * 64).header == HEADER
    with pytest.raises(DataError, match="a different network"):
        open_score_log(tmp_path, model_sha256="x" * 64)


def test_another_head_of_the_same_network_is_not_mixed_in(tmp_path: Path) -> None:
    ScoreLogWriter(tmp_path, HEADER.model_copy(update={"head": "sccp"})).append(logits_of(0))
    ScoreLogWriter(tmp_path, HEADER).append(logits_of(1))
    log = open_score_log(tmp_path)
    assert (log.header.head, log.requests) == ("linear", {1: 1})
    assert read(log)[:, 0, 0].tolist() == [-1.0]


def test_a_log_that_grows_while_it_is_read_is_read_as_it_was(tmp_path: Path) -> None:
    writer = ScoreLogWriter(tmp_path, HEADER)
    writer.append(logits_of(0))
    log = open_score_log(tmp_path)
    writer.append(logits_of(1))
    assert len(read(log)) == log.requests[1] == 1


def test_files_that_are_rotated_away_while_a_log_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ScoreLogWriter(tmp_path, HEADER, max_bytes=1)
    for request in range(3):
        writer.append(logits_of(request))
    listed = log_files(tmp_path)
    monkeypatch.setattr(
        calibration.live.score_log_reader, "numbered_files", lambda folder, name: listed
    )
    listed[0].unlink()  # listed and gone before its header was read
    assert len(read(open_score_log(tmp_path))) == 2


def test_a_file_that_was_rotated_away_is_named(tmp_path: Path) -> None:
    ScoreLogWriter(tmp_path, HEADER).append(logits_of(0))
    log = open_score_log(tmp_path)
    log_files(tmp_path)[0].unlink()
    with pytest.raises(DataError, match="rotated away"):
        read(log)


@pytest.mark.parametrize(
    "line",
    [
        b"no json\n",
        b"[]\n",
        b'{"format": "florilege-scores", "version": 2}\n',
        HEADER.line().replace(b'"classes":3', b'"classes":0'),
        HEADER.line().replace(b'"classes":3', b'"classes":"3"'),
        HEADER.line().replace(b'"head"', b'"tail"'),
    ],
)
def test_another_file_under_the_name_is_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "scores-000001.log").write_bytes(line)
    with pytest.raises(DataError, match=r"scores-000001\.log: the first line is not a header"):
        open_score_log(tmp_path)


def test_a_log_of_an_earlier_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    line = HEADER.line().replace(b'"version":2', b'"version":1')
    (tmp_path / "scores-000001.log").write_bytes(line + bytes(18))
    ScoreLogWriter(tmp_path, HEADER).append(logits_of(0))
    with pytest.raises(DataError, match=r"an earlier version of .* log to a new folder"):
        open_score_log(tmp_path)


def test_an_end_of_zeros_as_a_power_cut_may_leave_is_left_out(tmp_path: Path) -> None:
    ScoreLogWriter(tmp_path, HEADER).append(logits_of(0, 2))
    with log_files(tmp_path)[0].open("ab") as file:
        file.write(bytes(3 * RECORD + 5))
    log = open_score_log(tmp_path)
    assert (log.requests, log.torn, len(read(log, 2))) == ({2: 1}, 4, 1)


def test_an_empty_or_missing_folder_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "scores-000001.log").touch()
    (tmp_path / "scores-old.log").write_text("something else")
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match="wait for traffic"):
            open_score_log(folder)


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    writer = ScoreLogWriter(tmp_path, HEADER)
    for wrong in (np.zeros(3), np.zeros((1, 4)), np.zeros((0, 3))):
        with pytest.raises(ValueError, match=r"logits must have shape \(1 to 255 photos, 3\)"):
            writer.append(wrong)
    for limits in ({"max_bytes": 0}, {"max_files": 0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            ScoreLogWriter(tmp_path, HEADER, **limits)
    assert log_files(tmp_path) == []
