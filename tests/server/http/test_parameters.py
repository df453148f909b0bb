"""A query is parsed as by FastAPI."""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import pytest
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import QueryParams
from starlette.testclient import TestClient

from florilege.server.answers.query import IdentifyQuery
from florilege.server.app import create_app
from florilege.server.http.parameters import MAX_PARAMETERS, REPEATED, parse_identify_query
from florilege.server.settings import Settings

NAMES = [*IdentifyQuery.model_fields, "K", ""]
VALUES = [
    *("", "3", "0", "-1", "nan", " 3", "1e3", "true", "yes", "average_k", "top_k", "coverage"),
    *("mean", "scores", "scores,rollup", "scores,", ",", "a,b", "fr", "fr-CH", "é", "%2C", "a&b"),
]
read: list[Any] = []
app = FastAPI()
client = TestClient(app)


@app.get("/")
def ask(question: Annotated[IdentifyQuery, Query()]) -> None:
    read.append(question)


@app.exception_handler(RequestValidationError)
def refused(_: Request, error: RequestValidationError) -> Response:
    read.append(plain(error))
    return Response()


def plain(error: RequestValidationError) -> list[Any]:
    return [repr([each[name] for name in ("type", "loc", "msg")]) for each in error.errors()]


def pairs(names: list[str]) -> st.SearchStrategy[list[tuple[str, str]]]:
    def unique(pair: tuple[str, str]) -> object:
        return pair if pair[0] in REPEATED else pair[0]

    some = st.tuples(st.sampled_from(names), st.sampled_from(VALUES) | st.text(max_size=9))
    return st.lists(some, max_size=4, unique_by=unique)


@settings(deadline=None, max_examples=400)
@given(pairs(NAMES) | pairs(["include", "only"]))
def test_a_query_is_parsed_as_by_fastapi(given: list[tuple[str, str]]) -> None:
    query = urlencode(given)
    assert client.get(f"/?{query}").is_success
    try:
        result: Any = parse_identify_query(QueryParams(query))
    except RequestValidationError as error:
        result = plain(error)
    assert result == read.pop()


def test_a_query_with_thousands_of_mistakes_is_refused_for_one() -> None:
    with pytest.raises(RequestValidationError) as refused:
        parse_identify_query(QueryParams("include=" + ",".join(["x"] * 9)))
    assert len(refused.value.errors()) == 1


def test_a_query_has_no_more_names_than_there_are_parameters(bundle: Path) -> None:
    names = [f"x{number}=1" for number in range(MAX_PARAMETERS + 1)]
    with TestClient(create_app(Settings(bundle=bundle, plantnet=True))) as client:
        for method, path in (("POST", "/v1/identify"), ("GET", "/v1/classes")):
            few = client.request(method, f"{path}?{'&'.join(names[:-1])}")
            many = client.request(method, f"{path}?{'&'.join(names)}")
            assert few.json()["code"] == "unknown_parameter"
            assert many.json()["code"] == "invalid_parameter"
            assert f"more than {MAX_PARAMETERS}" in many.json()["detail"]
