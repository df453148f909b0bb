"""Sets may be empty if the bundle is calibrated so: nothing breaks, and answers tell it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.server import garden
from tests.server.http_client import open_client
from tests.server.metric_values import value
from tests.server.predict.predict_command import csv_rows


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose sets may be empty."""
    return garden.grow(tmp_path_factory.mktemp("bare"), min_size=0)


@pytest.fixture(scope="module")
def client(bare: Path) -> Iterator[TestClient]:
    with open_client(bare) as client:
        yield client


def test_an_empty_set_has_no_best_match_and_keeps_its_shape(client: TestClient) -> None:
    result = client.post("/v1/identify?k=1&include=rollup,marginals", content=garden.DULL).json()
    assert (result["set"]["size"], result["set"]["min_size"]) == (0, 0)
    assert result["set"]["truncated"] is False
    assert result["set"]["calibrated"] is True
    assert result["best_match"] is None
    assert (result["results"], result["rollup"]) == ([], [])


@pytest.mark.parametrize(
    ("lang", "ending"),
    [
        ("en", "This set is empty and does not hold the right one."),
        ("fr", "Cette sélection est vide et ne contient pas le bon."),
        ("de", "Diese Auswahl ist leer und enthält den richtigen nicht."),
        ("es", "Esta selección está vacía y no contiene el correcto."),
    ],
)
def test_an_empty_set_is_not_said_to_hold_the_right_one(
    client: TestClient, lang: str, ending: str
) -> None:
    empty = client.post(f"/v1/identify?k=1&lang={lang}", content=garden.DULL).json()["set"]
    other = client.post(f"/v1/identify?k=1&lang={lang}", content=garden.photo(4)).json()["set"]
    assert (empty["size"], other["size"] > 0) == (0, True)
    assert empty["statement"] == f"{other['statement']} {ending}"


def test_the_scores_of_an_empty_set_are_all_below_lambda(client: TestClient) -> None:
    result = client.post("/v1/identify?k=1&include=scores", content=garden.DULL).json()
    assert len(result["results"]) == len(garden.FLOWERS)
    assert all(r["score"] < result["set"]["lambda"] for r in result["results"])
    assert not any(r["in_set"] for r in result["results"])
    assert result["best_match"] is None


def test_empty_sets_are_counted_in_a_bucket_of_their_own(client: TestClient) -> None:
    client.post("/v1/identify?k=1", content=garden.DULL)
    metrics = client.app.state.engine.metrics  # type: ignore[attr-defined]  # a FastAPI
    assert value(metrics, "set_size_bucket", le="0.0") == value(metrics, "empty_sets_total") >= 1


def test_a_photo_with_an_empty_set_still_has_its_row(bare: Path, tmp_path: Path) -> None:
    photo = tmp_path / "dull.png"
    photo.write_bytes(garden.DULL)
    (row,) = csv_rows(bare, photo, "--k", "1")
    names = ("path", "set_size", "class_id", "error")
    assert [row[name] for name in names] == [str(photo), "0", "", ""]
