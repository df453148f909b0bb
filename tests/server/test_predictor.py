"""`florilege.load(...).predict` answers as the server does."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import florilege
from florilege.errors import DataError, UsageError
from tests.server import garden
from tests.server.http_client import identify

QUERIES: list[dict[str, Any]] = [
    {},
    {"k": 2},
    {"rule": "coverage", "coverage": 0.9},
    {"only": "Rosa,Viola", "include": ["scores"]},
]


@pytest.fixture(scope="module")
def predictor(bundle: Path) -> Any:
    predictor = florilege.load(bundle, device="cpu")
    yield predictor
    predictor.close()


def pixels(photo: bytes) -> Any:
    return np.asarray(Image.open(BytesIO(photo)).convert("RGB"))


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_answers_are_those_of_the_server(
    predictor: Any, client: TestClient, tmp_path: Path, query: dict[str, Any]
) -> None:
    photo = garden.photo(1)
    (tmp_path / "photo.png").write_bytes(photo)
    served = identify(client, photo, **query)
    image = Image.open(BytesIO(photo))
    for form in (photo, tmp_path / "photo.png", str(tmp_path / "photo.png"), pixels(photo), image):
        answer = predictor.predict(form, **query).model_dump(mode="json", by_alias=True)
        assert answer | {"id": ""} == served | {"id": ""}


def test_several_photos_are_of_one_plant(predictor: Any, client: TestClient) -> None:
    photos = [garden.photo(1), garden.photo(1, blur=0.3, other=2)]
    served = identify(client, *photos)
    answer = predictor.predict([photos[0], pixels(photos[1])])
    assert answer.model_dump(mode="json", by_alias=True)["results"] == served["results"]


@pytest.mark.parametrize(
    ("photos", "query", "error", "word"),
    [
        ([], {}, UsageError, "1 to 5"),
        (np.zeros((8, 8), np.uint8), {}, DataError, "shape"),
        (np.zeros((8, 8, 3)), {}, DataError, "uint8"),
        ("missing.jpg", {}, DataError, "missing.jpg"),
        (5, {}, UsageError, "int"),
        ([garden.photo(1), None], {}, UsageError, "NoneType"),
        (b"no picture", {}, DataError, "image"),
        (garden.photo(1), {"k": "many"}, UsageError, "k"),
        (garden.photo(1), {"size": 3}, UsageError, "size"),
        (garden.photo(1), {"k": 2.55}, UsageError, r"not calibrated .*; possible values: 1, 1.1,"),
        (garden.photo(1), {"k": 0}, UsageError, "possible values: 1, "),
        (garden.photo(1), {"coverage": 95}, UsageError, "takes k, not coverage"),
        (garden.photo(1), {"rule": "coverage", "coverage": 95}, UsageError, "values: 0.9, 0.95"),
        (garden.photo(1), {"rule": "top"}, UsageError, "did you mean top_k"),
        (garden.photo(1), {"list": "alps"}, UsageError, "no list is named 'alps'"),
        (garden.photo(1), {"region": "north"}, UsageError, "no table of occurrences"),
        (garden.photo(1), {"month": 13}, UsageError, r"in \[1, 12\]"),
        (garden.photo(1), {"month": 6}, UsageError, "need a region"),
        (garden.photo(1), {"include": "all"}, UsageError, "any of scores, marginals, rollup"),
        (garden.photo(1), {"lang": "?"}, UsageError, "text that matches"),
        (b"no picture", {"k": 0}, UsageError, "k = 0"),  # before any photo is read
    ],
)
def test_unusable_input_is_refused(
    predictor: Any, photos: Any, query: dict[str, Any], error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        predictor.predict(photos, **query)
