"""Lines between two processes, both ends of them here."""

import os
from collections.abc import Iterator

import pytest

from models.images import Header
from server.lines import KEPT_BYTES, Line, new_line


@pytest.fixture
def ends() -> Iterator[tuple[Line, Line]]:
    ours, theirs = new_line()
    other = Line(theirs.detach(), os.dup(ours.file))
    yield ours, other
    ours.close()
    other.close()


def header(pixels: bytes) -> Header:
    return Header(kind="jpeg", width=3, height=2, orientation=6, pixels=pixels, shrinks=True)


@pytest.mark.parametrize("size", [0, 1, KEPT_BYTES, KEPT_BYTES + 1])
def test_a_photo_arrives_as_it_was_sent(ends: tuple[Line, Line], size: int) -> None:
    ours, theirs = ends
    for photo in (header(os.urandom(size)), header(b"the next one")):
        ours.send_photo(photo, 5, True)
        assert theirs.receive_photo() == (photo, 5, True)
        theirs.send("seen")
        assert ours.receive() == "seen"
        ours.give_back(photo)


def test_only_a_large_photo_gives_its_memory_back(ends: tuple[Line, Line]) -> None:
    ours, theirs = ends
    for size, kept in ((KEPT_BYTES, True), (KEPT_BYTES + 1, False)):
        photo = header(bytes(size))
        ours.send_photo(photo)
        theirs.receive_photo()
        ours.give_back(photo)
        assert (os.fstat(ours.file).st_blocks > 0) == kept


def test_both_ends_notice_that_the_other_is_closed(ends: tuple[Line, Line]) -> None:
    ours, theirs = ends
    theirs.close()
    theirs.close()  # again does nothing
    with pytest.raises(EOFError):
        ours.receive()
    with pytest.raises(BrokenPipeError):
        ours.send_photo(header(b""))
