"""Forms in memory: parts are found whatever they contain, and damage is detected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from florilege.server.http.request import MAX_PARTS, images_of_form
from florilege.server.problems import Code, Problem
from tests.server.raised_problem import raises_problem

BOUNDARY = "a-boundary"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def form(*parts: tuple[str, bytes], boundary: str = BOUNDARY) -> bytes:
    """A form of file parts."""
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{{}}"; filename="p.jpg"\r\n\r\n'
    body = b"".join(head.format(name).encode() + content + b"\r\n" for name, content in parts)
    return body + f"--{boundary}--\r\n".encode()


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_a_form_is_parsed_into_its_parts(contents: list[bytes]) -> None:
    marked = [content.replace(BOUNDARY.encode(), b"") for content in contents]
    assert images_of_form(form(*(("images", one) for one in marked)), TYPE) == marked


@given(st.binary(max_size=400))
def test_any_bytes_are_a_form_or_a_problem(body: bytes) -> None:
    try:
        result: list[bytes] | Code = images_of_form(body, TYPE)
    except Problem as problem:
        result = problem.code
    expected = {Code.MALFORMED_REQUEST, Code.UNKNOWN_PARAMETER, Code.WRONG_NUMBER_OF_IMAGES}
    assert isinstance(result, list) or result in expected


INSIDE = b"x--a-boundary y\r\n-a-boundary\r\n--a-boundar\r\n\r\n"


@pytest.mark.parametrize(
    ("body", "images"),
    [
        (form(("images", INSIDE)), [INSIDE]),
        (form(("images", b"abc")).replace(b'; filename="p.jpg"', b""), [b"abc"]),
        (form(("images", b"")).replace(b"p.jpg", b""), []),  # a file input left empty
        (form(("images", b"")), [b""]),  # a photo to complain about
    ],
    ids=["boundary-inside", "no-file-name", "no-file", "empty-file"],
)
def test_each_part_counts_that_a_person_filled(body: bytes, images: list[bytes]) -> None:
    assert images_of_form(body, TYPE) == images


@pytest.mark.parametrize("parts", [MAX_PARTS - 1, MAX_PARTS, MAX_PARTS + 1])
def test_a_form_may_have_a_hundred_parts(parts: int) -> None:
    body = form(*[("images", b"x")] * parts)
    if parts <= MAX_PARTS:
        assert images_of_form(body, TYPE) == [b"x"] * parts
    else:
        with raises_problem(Code.MALFORMED_REQUEST, match=f"{MAX_PARTS} parts"):
            images_of_form(body, TYPE)


def test_wrong_and_further_fields_are_named() -> None:
    with raises_problem(Code.WRONG_NUMBER_OF_IMAGES, match="`file`"):
        images_of_form(form(("file", b"abc")), TYPE)
    with raises_problem(Code.UNKNOWN_PARAMETER, match="`organs`"):
        images_of_form(form(("images", b"abc"), ("organs", b"leaf")), TYPE)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (form(("images", b"abc")), "multipart/form-data"),
        (form(("images", b"abc"))[:-8], TYPE),
        (form(("images", b"abc"))[:40], TYPE),
        (form(("images", b"abc"), boundary="other"), TYPE),
        (b"", TYPE),
        (form(("images", b"abc")).replace(b'name="images"; ', b""), TYPE),
        (form(("images", b"abc")), "multipart/form-data; boundary=" + "x" * 500),
        (form(("images", b"abc")).replace(b"\r\n", b"\r\n" + b"a:b\r\n" * 1000, 1), TYPE),
        (form(("images", b"abc")).replace(b"\r\n", b"\r\na:" + b"b" * 9000 + b"\r\n", 1), TYPE),
    ],
    ids=[
        *("no-boundary", "cut-at-end", "cut-in-header", "other", "empty", "unnamed", "long"),
        *("many-headers", "long-header"),
    ],
)
def test_a_damaged_form_is_malformed(body: bytes, content_type: str) -> None:
    with raises_problem(Code.MALFORMED_REQUEST):
        images_of_form(body, content_type)
