"""Find the photos in a ``multipart/form-data`` body that is already in memory."""

from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from florilege.server.problems import Code, Problem

FIELD = "images"
MAX_PARTS = 100


class _Parts:
    """Collects the parts of one body; `MultipartParser` calls the methods ``on_...`` in order."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, bytes]] = []
        self.complete = False
        self._headers: dict[bytes, bytes] = {}
        self._field, self._value = b"", b""
        self._chunks: list[bytes] = []

    def on_part_begin(self) -> None:
        if len(self.parts) >= MAX_PARTS:
            detail = f"a form may have {MAX_PARTS} parts"
            raise Problem(Code.MALFORMED_REQUEST, detail, limit=MAX_PARTS)
        self._headers, self._chunks = {}, []

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field, self._value = b"", b""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._chunks.append(data[start:end])

    def on_part_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if b"name" not in options:
            detail = "every part of the form needs a name in Content-Disposition"
            raise Problem(Code.MALFORMED_REQUEST, detail)
        name = options[b"name"].decode("utf-8", "replace")
        empty_file_input = options.get(b"filename") == b"" and not any(self._chunks)
        if not empty_file_input:  # browsers send such a part for a file input left empty
            self.parts.append((name, b"".join(self._chunks)))

    def on_end(self) -> None:
        self.complete = True


def images_of_form(body: bytes, content_type: str) -> list[bytes]:
    """The contents of the parts named ``images``, in order; a `Problem` if others are there."""
    parts = parts_of_form(body, content_type)
    others = sorted({name for name, _ in parts if name != FIELD})
    quoted = ", ".join(f"`{name[:40]}`" for name in others[:5])
    images = [content for name, content in parts if name == FIELD]
    if others and not images:
        raise Problem(
            Code.WRONG_NUMBER_OF_IMAGES,
            f"no part is named `{FIELD}`; the form has {quoted}",
            allowed=[FIELD],
        )
    if others:
        raise Problem(
            Code.UNKNOWN_PARAMETER,
            f"the form may only hold parts named `{FIELD}`; it also has {quoted}; "
            "put options in the query",
            allowed=[FIELD],
        )
    return images


def parts_of_form(body: bytes, content_type: str) -> list[tuple[str, bytes]]:
    """Name and content of every part, in order; a `Problem` if the body is damaged."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        detail = "the Content-Type multipart/form-data lacks its boundary"
        raise Problem(Code.MALFORMED_REQUEST, detail)
    parts = _Parts()
    try:
        callbacks: Any = {name: getattr(parts, name) for name in dir(parts) if name[:3] == "on_"}
        MultipartParser(boundary, callbacks).write(body)
    except FormParserError as error:
        raise Problem(Code.MALFORMED_REQUEST, f"the multipart body is damaged: {error}") from error
    if not parts.complete:
        raise Problem(Code.MALFORMED_REQUEST, "the multipart body ends before its closing boundary")
    return parts.parts
