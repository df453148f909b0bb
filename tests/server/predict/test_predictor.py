"""`florilege.load(...).predict` answers as the server does."""

import inspect
from collections.abc import Iterator
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import florilege
from florilege.errors import DataError, UsageError
from florilege.models.images import MAX_BYTES
from florilege.server.answers.query import IdentifyQuery
from florilege.server.predict.predictor import QueryKeywords
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


def test_the_keywords_are_those_of_a_request(predictor: Any) -> None:
    fields = list(IdentifyQuery.model_fields)
    assert sorted(get_type_hints(QueryKeywords)) == sorted(fields)
    for method in (predictor.predict, predictor.predict_many):
        shown = inspect.signature(method).parameters
        assert set(fields) < set(shown)
        assert shown["rule"].default == "average_k"
        assert "query" not in shown


def pixels(photo: bytes) -> Any:
    return np.asarray(Image.open(BytesIO(photo)).convert("RGB"))


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_answers_are_those_of_the_server(
    predictor: Any, client: TestClient, tmp_path: Path, query: dict[str, Any]
) -> None:
    photo = garden.photo(1)
    (tmp_path / "photo.png").write_bytes(photo)
    served = identify(client, photo, **query)
    path = tmp_path / "photo.png"
    forms: list[Any] = [photo, bytearray(photo), memoryview(photo), path, str(path), path.as_uri()]
    forms += [pixels(photo), Image.open(BytesIO(photo)), BytesIO(photo), path.open("rb")]
    for form in forms:
        answer = predictor.predict(form, **query).model_dump(mode="json", by_alias=True)
        assert answer | {"id": ""} == served | {"id": ""}
    forms[-1].close()


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
        (np.zeros((2, 8, 8, 3), np.uint8), {}, DataError, "are a list"),
        (np.zeros((0, 8, 3), np.uint8), {}, DataError, "shape"),
        ([b"a"] * 6, {}, UsageError, "more than 5; predict_many takes"),
        (StringIO("text"), {}, UsageError, r"open\(path, 'rb'\)"),
        (BytesIO(), {}, DataError, "nothing left to read"),
        (BytesIO(bytes(MAX_BYTES + 1)), {}, DataError, "bytes: send a smaller photo"),
        (Path(__file__).parent, {}, DataError, "is a folder: predict_many"),
        ("https://example.org/rose.jpg", {}, DataError, "nothing is downloaded"),
        ("file://elsewhere/rose.jpg", {}, DataError, "is on elsewhere"),
        ("file:///no%20photo.jpg", {}, DataError, "no%20photo.jpg: No such file"),
        ("a\0b", {}, DataError, "null"),
        ({"photo": b""}, {}, UsageError, "got dict"),
        (Image.open(BytesIO(garden.photo(1)[:200])), {}, DataError, "cannot be decoded"),
        ("missing.jpg", {}, DataError, "missing.jpg"),
        ("photos\\1.jpg", {}, DataError, "write its path with /"),
        (5, {}, UsageError, "int"),
        ([garden.photo(1), None], {}, UsageError, "NoneType"),
        (b"no picture", {}, DataError, "image"),
        (garden.photo(1), {"k": "many"}, UsageError, "k"),
        (garden.photo(1), {"k": True}, UsageError, "k must be a number.*got True"),
        (
            garden.photo(1),
            {"min_score": False},
            UsageError,
            "min_score must be a number.*got False",
        ),
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
        (garden.photo(1), {"date": "June"}, UsageError, r"date: a month must be 1 to 12 or a"),
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


def test_many_photos_are_answered_in_order_as_one_by_one(predictor: Any) -> None:
    photos = [garden.photo(index % 12, blur=0.2, other=3) for index in range(70)]
    one_by_one = [predictor.predict(photo, k=2) for photo in photos]
    assert list(predictor.predict_many(photos, k=2)) == one_by_one
    assert list(predictor.predict_many(iter(photos), k=2, threads=3)) == one_by_one
    pair = list(predictor.predict_many([photos[:2], photos[2]], k=2))
    assert [answer.query.images for answer in pair] == [2, 1]
    assert pair[1] == one_by_one[2]


def test_photos_are_read_a_few_ahead_so_that_there_may_be_any_number(predictor: Any) -> None:
    asked = 0

    def endless() -> Iterator[bytes]:
        nonlocal asked
        while True:
            asked += 1
            yield garden.photo(1)

    answers = predictor.predict_many(endless(), threads=2)
    assert next(answers).names == predictor.predict(garden.photo(1)).names
    answers.close()
    assert asked < 100


def test_a_folder_and_a_manifest_are_many_photos(predictor: Any, tmp_path: Path) -> None:
    for index in (2, 5):
        (tmp_path / f"{index}.png").write_bytes(garden.photo(index))
    (tmp_path / "photos.csv").write_text("path\n5.png\n2.png\n")
    tops = ["Rosa alba", "Viola odorata"]
    answers = list(predictor.predict_many(tmp_path, k=1))
    assert [answer.best_match for answer in answers] == tops
    answers = list(predictor.predict_many(str(tmp_path / "photos.csv"), k=1))
    assert [answer.best_match for answer in answers] == tops[::-1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no photos found under"):
        predictor.predict_many(tmp_path / "empty")
    with pytest.raises(UsageError, match="path of the photos is empty"):
        predictor.predict_many("")


def test_a_photo_that_cannot_be_read_ends_the_answers_or_takes_its_place(predictor: Any) -> None:
    photos = [garden.photo(1), "missing.jpg", garden.photo(2)]
    answers = predictor.predict_many(photos)
    assert next(answers).names
    with pytest.raises(DataError, match=r"missing\.jpg"):
        next(answers)
    first, second, third = predictor.predict_many(photos, return_exceptions=True)
    assert isinstance(second, DataError)
    assert [first.names, third.names] == [predictor.predict(photos[at]).names for at in (0, 2)]


@pytest.mark.parametrize("photos", [garden.photo(1), BytesIO(garden.photo(1)), 5])
def test_one_photo_is_not_many(predictor: Any, photos: Any) -> None:
    with pytest.raises(UsageError, match="takes a list of photos"):
        predictor.predict_many(photos)


def test_a_query_is_checked_before_the_first_photo_is_asked_for(predictor: Any) -> None:
    with pytest.raises(UsageError, match="not calibrated"):
        predictor.predict_many([], k=0)


def test_a_model_says_what_it_knows(predictor: Any, client: TestClient) -> None:
    info = predictor.info()
    plain = info.model_dump(mode="json", by_alias=True)
    served = client.get("/v1/model").json()
    assert plain | {"limits": {}} == served | {"limits": {}}
    lines = repr(info).splitlines()
    assert lines[0].startswith(f"garden, version {info.model.version}: 12 classes, photos of 24 px")
    assert lines[1].startswith("k = 3: sets of 3.0")
    assert "average_k 1 to 12" in lines[2]
    assert lines[-1] == "common names: en, fr"
    assert repr(predictor) == repr(info)


def checked_by_mypy(model: florilege.Predictor) -> list[str]:  # `mypy` reads it, nobody calls it
    for answer in model.predict_many([b"", Path("b.jpg")], k=2):
        answer.names.append("x")
    model.predict("a.jpg", size=3)  # type: ignore[call-arg]
    model.predict("a.jpg", k="three")  # type: ignore[arg-type]
    model.predict(5)  # type: ignore[arg-type]
    return model.predict(["a.jpg", b""], k=2, region="north", include=["scores"]).names
