"""`/openapi.json` says what is so: its examples, and answers to requests made from it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jsonschema
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.testclient import TestClient

from florilege.server import problems
from florilege.server.app import create_app
from florilege.server.problems import Problem
from florilege.server.settings import Settings
from tests.server.server_thread import Running
from tests.server.write_golden import EXAMPLES, examples

EXAMPLES_A_ROUTE = int(os.environ.get("FLORILEGE_FUZZ", "20"))  # `make fuzz` takes more

schemathesis.openapi.media_type("image/*", hypothesis.strategies.binary(max_size=2000))


@pytest.fixture(scope="module")
def running(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    store = tmp_path_factory.mktemp("feedback")
    with Running(Settings(bundle=bundle, feedback_store=store, plantnet=True)) as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *[("POST", "/v1/identify"), ("POST", "/v1/feedback"), ("GET", "/v1/model")],
        *[("GET", "/v1/classes"), ("GET", "/v1/classes/{class_id}"), ("GET", "/readyz")],
        ("GET", "/v1/thumbnails"),
        ("POST", "/v2/identify/{project}"),
    ],
)
def test_requests_made_from_the_description_get_described_answers(
    running: Running, method: str, path: str
) -> None:
    described = schemathesis.openapi.from_url(f"{running.url}/openapi.json")

    @hypothesis.given(case=described[path][method].as_strategy())
    @hypothesis.settings(
        max_examples=EXAMPLES_A_ROUTE,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def asked(case: Any) -> None:
        # bytes made from a description are no photo, and no answer has the id made up
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    asked()


def test_examples_are_real_answers_that_fit_the_description(bundle: Path, tmp_path: Path) -> None:
    app = create_app(Settings(bundle=bundle, feedback_store=tmp_path))
    with TestClient(app, headers={"X-Request-Id": "3f1c7a"}) as client:
        now, document = examples(client), client.get("/openapi.json").json()
    content = json.loads(EXAMPLES.read_text())
    assert {name: set(result) for name, result in content.items()} == {
        name: set(outcome) for name, outcome in now.items()
    }
    record = 0
    for operations in document["paths"].values():
        for operation in operations.values():
            for response in operation["responses"].values():
                for media in response.get("content", {}).values():
                    if "example" in media:
                        jsonschema.validate(media["example"], {**document, **media["schema"]})
                        record += 1
    assert record == sum(len(value) for value in content.values()) == 8


def test_every_code_is_listed_and_each_is_answered_by_some_route(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    listed = document["components"]["schemas"]["ProblemDocument"]["properties"]["code"]["enum"]
    ours = [each for each in vars(problems).values() if isinstance(each, type)]
    assert listed == sorted(
        each.code for each in ours if issubclass(each, Problem) and each is not Problem
    )
    outcome = {
        word
        for operations in document["paths"].values()
        for operation in operations.values()
        for response in operation["responses"].values()
        for word in response["description"].split("`")[1::2]
    }
    not_of_a_route = {"not_found", "method_not_allowed"}
    feedback_alone = {"answer_not_found", "idempotency_key_reused", "feedback_not_stored"}
    assert outcome == set(listed) - not_of_a_route - feedback_alone


def test_keys_are_described_where_they_are_needed(bundle: Path, tmp_path: Path) -> None:
    from tests.server.http.test_api_keys import bearer, line

    (tmp_path / "keys").write_text(line("a", "k1"))
    app = create_app(Settings(bundle=bundle, keys_file=tmp_path / "keys"))
    with TestClient(app, headers=bearer("k1")) as client:
        document = client.get("/openapi.json").json()
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    secured = {
        p for p, each in document["paths"].items() if "security" in next(iter(each.values()))
    }
    assert secured == {path for path in document["paths"] if path.startswith("/v1/")}
