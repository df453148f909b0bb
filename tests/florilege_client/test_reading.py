"""From bytes to answers and errors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from florilege_client.answers import Answer, Measured, Query
from florilege_client.errors import StrangeAnswer
from florilege_client.reading import LONGEST_TEXT, PROBLEM, Reply, problem, read, retry_after
from tests.server.write_golden import EXAMPLES

EXAMPLE = json.loads(EXAMPLES.read_text("utf-8"))


def reply(content: object, status: int = 200, **headers: str) -> Reply:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Reply(status, {name.replace("_", "-"): value for name, value in headers.items()}, raw)


def test_an_example_of_the_server_is_read_to_its_last_field() -> None:
    outcome = EXAMPLE["identify"]["200"]
    answer = read(reply(outcome), Answer)
    assert as_json(answer) == outcome
    assert answer.set.lambda_val == outcome["set"]["lambda"]


def as_json(value: Any) -> Any:
    """What was read, as it was sent."""
    match value:
        case tuple():
            return [as_json(each) for each in value]
        case Mapping():
            return {name: as_json(each) for name, each in value.items()}
        case _ if hasattr(value, "__dataclass_fields__"):
            fields = value.__dataclass_fields__.items()
            return {
                each.metadata.get("json", name): as_json(getattr(value, name))
                for name, each in fields
            }
    return value


def test_what_a_newer_server_adds_is_passed_over_and_what_an_older_one_lacks_is_none() -> None:
    fields = {**EXAMPLE["identify"]["200"]["query"], "season": "spring", "rule": "of_tomorrow"}
    del fields["guarantee"]
    result = read(reply(fields), Query)
    assert result.guarantee is None
    assert str(result.rule) == "of_tomorrow"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"value": "1"}, "`value`: a float is expected, not 1"),
        ({"rows": 1.5}, "`rows`: a int is expected, not 1.5"),
        ({"rows": True}, "`rows`: a int is expected, not True"),
        ({"split": None}, "`split`: a str is expected, not None"),
        ({"ci95": [1.0]}, "`ci95`: "),
        ({"ci95": {}}, "`ci95`: a list is expected"),
    ],
)
def test_an_answer_of_another_shape_names_the_field(change: dict[str, Any], said: str) -> None:
    fields = {"value": 1, "ci95": [0.5, 1.5], "split": "val", "rows": 10, "selection_split": None}
    assert read(reply(fields), Measured) == Measured(
        value=1.0, ci95=(0.5, 1.5), split="val", rows=10, selection_split=None
    )
    with pytest.raises(StrangeAnswer) as raised:
        read(reply({**fields, **change}), Measured)
    assert said in str(raised.value)


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"\xff", b"", b"[" * 200_000])
def test_a_page_of_somebody_else_is_no_answer(content: bytes) -> None:
    with pytest.raises(StrangeAnswer, match="address"):
        read(reply(content), Answer)


def test_a_problem_document_is_read_to_its_last_field() -> None:
    outcome = EXAMPLE["identify"]["422"]
    result = problem(reply(outcome, 422, content_type=PROBLEM, retry_after="3"), 0.0)
    assert (result.status, result.code, result.detail) == (422, outcome["code"], outcome["detail"])
    assert (result.request_id, result.retryable) == (outcome["instance"], False)
    assert (result.limit, result.retry_after) == (None, 3.0)
    assert result.allowed == tuple(outcome["allowed"])
    assert str(result).startswith("422 not_calibrated: k = 2.71828")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"<h1>Bad Gateway</h1>", "text/html"),
        (b"{", PROBLEM),
        (b"[]", PROBLEM),
        (b'{"detail": "x"}', PROBLEM),
        (b"[" * 200_000, PROBLEM),
    ],
)
def test_a_refusal_of_a_proxy_has_no_code(content: bytes, kind: str) -> None:
    result = problem(reply(content, 502, content_type=kind, x_request_id="ab"), 0.0)
    assert (result.status, result.code, result.request_id) == (502, None, "ab")
    assert result.detail.startswith("Bad Gateway, and not from Florilege: ")
    assert not result.retryable


def test_a_long_page_is_cut_and_an_empty_one_said_to_be() -> None:
    page = b"a" * (LONGEST_TEXT + 1)
    assert problem(reply(page, 502), 0.0).detail.endswith(": " + "a" * LONGEST_TEXT)
    assert problem(reply(b"", 504), 0.0).detail == "Gateway Timeout, without a word"
    assert problem(reply(b"", 599), 0.0).detail == "an unknown status, without a word"


def test_a_redirection_says_where_the_server_is() -> None:
    result = problem(reply(b"", 308, location="https://flora.example.org/"), 0.0)
    assert result.detail == "the server is at https://flora.example.org/: give that as its address"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        (" 12 ", 12.0),
        ("9" * 400, float("inf")),
        ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:02:00 -0000", 20.0),
        ("Thursday, 01-Jan-70 00:02:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 0.0),
        ("-1", None),
        ("1.5", None),
        ("\u0663", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str, seconds: float | None) -> None:
    assert retry_after(header, today=100.0) == seconds


@dataclass(frozen=True)
class Nested:
    """A shape that holds a list of shapes that may be missing."""

    inner: tuple[Measured | None, ...]


def test_lists_of_what_may_be_missing_are_read() -> None:
    assert read(reply({"inner": [None]}), Nested) == Nested((None,))
