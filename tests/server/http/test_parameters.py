"""A query with many mistakes is refused for the first of a kind."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from florilege.server.answers.query import IdentifyQuery
from florilege.server.http.parameters import MAX_PARAMETERS
from tests.server.http_client import open_client


def test_a_query_with_thousands_of_mistakes_is_refused_for_one() -> None:
    with pytest.raises(ValidationError) as refused:
        IdentifyQuery.model_validate({"include": [",".join(["x"] * 9)]})
    assert refused.value.error_count() == 1


def test_a_query_has_no_more_names_than_there_are_parameters(bundle: Path) -> None:
    names = [f"x{number}=1" for number in range(MAX_PARAMETERS + 1)]
    with open_client(bundle, plantnet=True) as client:
        for method, path in (("POST", "/v1/identify"), ("GET", "/v1/classes")):
            few = client.request(method, f"{path}?{'&'.join(names[:-1])}")
            many = client.request(method, f"{path}?{'&'.join(names)}")
            assert few.json()["code"] == "unknown_parameter"
            assert many.json()["code"] == "invalid_parameter"
            assert f"more than {MAX_PARAMETERS}" in many.json()["detail"]
