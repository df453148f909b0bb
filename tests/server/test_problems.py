"""Every stable code is reached by a request, in one shape, and nothing gives a 500."""

import io
import json
import pickle
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from florilege.server.problems import Code, Problem
from tests.server import garden
from tests.server.http_client import open_client

PHOTO = garden.photo(0)
IDENTIFY, FORM = "/v1/identify", "multipart/form-data"
REQUIRED = {"type", "title", "status", "detail", "instance", "code", "retryable"}
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "http.md"


def check(response: Any, status: int, code: str) -> dict[str, Any]:
    """Assert the shape of one problem and return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert set(document) >= REQUIRED
    assert set(document) <= REQUIRED | {"limit", "allowed"}
    assert (document["status"], document["code"]) == (status, code)
    assert document["type"] == f"/problems/{code}"
    assert document["instance"] == response.headers["x-request-id"]
    assert document["detail"]
    assert document["title"]
    return document


def png(width: int, height: int) -> bytes:
    """The header of a PNG, without any pixel."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n\0\0\0\r" + head + struct.pack(">I", zlib.crc32(head))


def animated(kind: str) -> bytes:
    """A picture of two frames."""
    frames = [Image.new("RGB", (30, 30), colour) for colour in ("red", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, kind, save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def jpeg(side: int = 200) -> bytes:
    return garden.encoded(garden.pixels(garden.COLOURS[1], side=side), "JPEG")


@pytest.mark.parametrize(
    ("query", "code", "word"),
    [
        ("foo=1", "unknown_parameter", "foo"),
        ("K=3", "unknown_parameter", "K"),
        ("rule=best", "invalid_parameter", "rule"),
        ("k=many", "invalid_parameter", "k"),
        ("k=nan", "invalid_parameter", "k"),
        ("k=inf", "invalid_parameter", "k"),
        ("coverage=0.9", "invalid_parameter", "coverage"),
        ("rule=coverage&k=3", "invalid_parameter", "coverage"),
        ("rule=class_coverage&k=3", "invalid_parameter", "coverage"),
        ("rule=top_k&coverage=0.9", "invalid_parameter", "takes k"),
        ("guarantee=surely", "invalid_parameter", "guarantee"),
        ("guarantee=", "invalid_parameter", "guarantee"),
        ("max_results=0", "invalid_parameter", "max_results"),
        ("max_results=1.5", "invalid_parameter", "max_results"),
        ("min_score=1.1", "invalid_parameter", "min_score"),
        ("always=1001&only=1002", "invalid_parameter", "1001"),
        ("include=everything", "invalid_parameter", "include"),
        ("lang=../etc", "invalid_parameter", "lang"),
        ("lang=", "invalid_parameter", "lang"),
        ("reject=maybe", "invalid_parameter", "reject"),
        ("k=3&k=4", "invalid_parameter", "k"),
        ("lang=fr&k=3&lang=fr", "invalid_parameter", "lang"),
    ],
)
def test_an_invalid_parameter_is_named(
    client: TestClient, query: str, code: str, word: str
) -> None:
    document = check(client.post(f"/v1/identify?{query}", content=PHOTO), 400, code)
    assert word in document["detail"]
    assert document["retryable"] is False


@pytest.mark.parametrize(
    ("longest", "longer"),
    [
        ("q=" + "x" * 200, "q=" + "x" * 201),
        ("lang=aaa" + "-aaaaaaa" * 4, "lang=aaa" + "-aaaaaaa" * 3 + "-aaaaaaaa"),
        ("limit=0", "limit=-1"),
    ],
)
def test_a_parameter_may_be_as_long_as_allowed(
    client: TestClient, longest: str, longer: str
) -> None:
    assert client.get(f"/v1/classes?{longest}").status_code == 200
    check(client.get(f"/v1/classes?{longer}"), 400, "invalid_parameter")


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [
        ("GET", "/v1/model?x=1", {}, 400, "unknown_parameter"),
        ("GET", "/v1/classes/1001?x=1", {}, 400, "unknown_parameter"),
        ("GET", "/v1/classes?x=1", {}, 400, "unknown_parameter"),
        ("GET", "/v1/classes?limit=1&limit=2", {}, 400, "invalid_parameter"),
        ("POST", IDENTIFY, {"Content-Type": FORM}, 400, "malformed_request"),
        ("POST", IDENTIFY, {"Content-Type": f"{FORM}; boundary=x"}, 400, "malformed_request"),
        ("POST", IDENTIFY, {"Content-Length": "many"}, 400, "malformed_request"),
        ("GET", "/v2/identify", {}, 404, "not_found"),
        ("GET", "/v1/model/", {}, 404, "not_found"),
        ("GET", "/docs", {}, 404, "not_found"),
        ("POST", "/v1/feedback", {}, 404, "not_found"),
        ("GET", "/v1/classes/nobody", {}, 404, "class_not_found"),
        ("GET", "/v1/classes/a/b%2Fc", {}, 404, "class_not_found"),
        ("GET", IDENTIFY, {}, 405, "method_not_allowed"),
    ],
)
def test_a_refusal_has_its_status_and_code(
    client: TestClient, method: str, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    response = client.request(method, path, content=b"--y\r\n", headers=headers)
    check(response, status, code)
    assert response.headers.get("allow") == ("POST" if status == 405 else None)


@pytest.mark.parametrize(("width", "height"), [(65000, 65000), (13300, 13300), (2001, 1000)])
def test_too_many_pixels_are_refused_from_the_header(
    client: TestClient, width: int, height: int
) -> None:
    response = client.post("/v1/identify", content=png(width, height))
    document = check(response, 413, "image_too_large")
    assert document["limit"] == 2_000_000


@pytest.mark.parametrize(
    "body",
    [
        b"just some text in a file called photo.jpg",
        b"<html></html>",
        b"%PDF-1.7",
        b"\0" * 1000,
        animated("GIF"),
        garden.encoded(garden.pixels(garden.COLOURS[0]), "TIFF"),
        garden.encoded(garden.pixels(garden.COLOURS[0]), "BMP"),
    ],
    ids=["text", "html", "pdf", "zeros", "gif", "tiff", "bmp"],
)
def test_what_is_no_accepted_image_type_is_415_and_names_those(
    client: TestClient, body: bytes
) -> None:
    for response in (
        client.post("/v1/identify", content=body, headers={"Content-Type": "image/jpeg"}),
        client.post("/v1/identify", files=[("images", ("photo.jpg", body, "image/jpeg"))]),
    ):
        document = check(response, 415, "unsupported_image_type")
        assert "image/heic" in document["detail"]


@pytest.mark.parametrize(
    "body",
    [
        jpeg()[: len(jpeg()) // 2],
        jpeg()[:30],
        jpeg()[:2] + b"\xff" * 300,
        PHOTO[:-30],
        png(300, 300),
        png(0, 0),
        b"RIFF\x10\0\0\0WEBPVP8 ",
    ],
    ids=["half", "head", "jpeg-noise", "png-cut", "png-empty", "png-zero", "webp-cut"],
)
def test_a_damaged_photo_is_unreadable(client: TestClient, body: bytes) -> None:
    check(client.post("/v1/identify", content=body), 422, "image_unreadable")


def test_an_animated_picture_is_answered_by_its_first_frame(client: TestClient) -> None:
    red = io.BytesIO()
    Image.new("RGB", (30, 30), "red").save(red, "PNG")
    expected = client.post("/v1/identify", content=red.getvalue()).json()["results"]
    for kind in ("PNG", "WEBP"):
        response = client.post("/v1/identify", content=animated(kind))
        assert response.status_code == 200
        assert response.json()["best_match"] == expected[0]["taxon"]["scientific_name"]


def test_too_few_or_too_many_photos_are_refused(client: TestClient) -> None:
    six = [("images", (f"{i}.png", PHOTO)) for i in range(6)]
    document = check(client.post("/v1/identify", files=six), 422, "wrong_number_of_images")
    assert document["limit"] == 5
    assert client.post("/v1/identify", files=six[:5]).status_code == 200
    check(client.post("/v1/identify"), 422, "wrong_number_of_images")
    empty = client.post("/v1/identify", files=[("images", ("a.png", b""))])
    check(empty, 415, "unsupported_image_type")


def test_a_server_that_is_not_warm_yet_says_so(bundle: Path) -> None:
    client = open_client(bundle)  # its lifespan has not begun
    for response in (client.get("/readyz"), client.post("/v1/identify", content=PHOTO)):
        document = check(response, 503, "loading")
        assert document["retryable"] is True
        assert int(response.headers["retry-after"]) >= 1
    assert client.get("/livez").status_code == 200


def test_a_bug_tells_the_client_nothing_but_the_request_id(
    bundle: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_client(bundle) as client, monkeypatch.context() as patch:
        patch.setattr(client.app.state.engine, "pipeline", None)  # type: ignore[attr-defined]  # whatever breaks inside
        response = client.post("/v1/identify", content=PHOTO)
        document = check(response, 500, "internal_error")
    assert "None" not in document["detail"]
    assert {"request_id": document["instance"]} in [vars(r).get("fields") for r in caplog.records]
    assert "Traceback" in caplog.text


def test_a_request_id_is_echoed_or_made_up(client: TestClient) -> None:
    options = {"X-Request-Id": "abc-123"}
    for response in (
        client.post("/v1/identify", content=PHOTO, headers=options),
        client.get("/nowhere", headers=options),
        client.get("/livez", headers=options),
        client.get("/", headers=options),
    ):
        assert response.headers["x-request-id"] == "abc-123"
    answers = [client.post("/v1/identify", content=PHOTO, headers=options) for _ in range(2)]
    ids = {answer.json()["id"] for answer in answers}
    assert len(ids) == 2  # the server's own, whatever callers send
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)
    alone = client.post("/v1/identify", content=PHOTO)
    assert alone.headers["x-request-id"] == alone.json()["id"]
    for sent in ("a", "a" * 128, "a" * 129, "", "a b", "é", "<b>"):
        response = client.get("/livez", headers=[(b"X-Request-Id", sent.encode("latin-1"))])
        echoed = response.headers["x-request-id"]
        assert (echoed == sent) if set(sent) == {"a"} and len(sent) < 129 else len(echoed) == 32


def test_every_answer_has_the_security_headers(client: TestClient) -> None:
    for response in (client.get("/"), client.get("/nowhere"), client.get("/v1/model")):
        assert response.headers["x-content-type-options"] == "nosniff"
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy


@settings(max_examples=120)
@given(
    start=st.sampled_from(
        [PHOTO, jpeg(60), garden.encoded(garden.pixels(garden.COLOURS[2]), "WEBP")]
    ),
    changes=st.lists(
        st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=4)), max_size=8
    ),
    end=st.integers(0, 10**6),
)
def test_damage_of_any_kind_gets_a_documented_answer(
    client: TestClient, start: bytes, changes: list[tuple[int, bytes]], end: int
) -> None:
    body = bytearray(start)
    for at, new in changes:
        body[at % len(start) : at % len(start) + len(new)] = new
    body = body[: max(1, end % (2 * len(body)))]
    response = client.post("/v1/identify", content=bytes(body))
    assert response.status_code in (200, 413, 415, 422)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["rule", "k", "coverage", "lang", "max_results", "include", "reject", "x"]),
        st.one_of(
            st.text(max_size=8), st.floats().map(str), st.sampled_from(["top_k", "3", "0.9"])
        ),
    )
)
def test_any_query_gets_a_documented_answer(client: TestClient, query: dict[str, str]) -> None:
    response = client.post("/v1/identify", params=query, content=PHOTO)
    assert response.status_code in (200, 400, 422)


def test_the_examples_of_the_documentation_have_the_keys_of_real_answers(
    client: TestClient,
) -> None:
    answer, problem = re.findall(r"```json\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    real = client.post("/v1/identify", content=PHOTO).json()
    assert keys(json.loads(answer)) == keys(real)
    refused = client.post("/v1/identify?k=2.55", content=PHOTO).json()
    assert keys(json.loads(problem)) == keys(refused)


def keys(value: Any) -> Any:
    """The keys of an object, level by level; the first entry of a list represents all."""
    if isinstance(value, dict):
        return {key: None if key == "ids" else keys(entry) for key, entry in value.items()}
    return keys(value[0]) if isinstance(value, list) and value else None


def test_a_problem_comes_back_from_another_process_with_all_it_says() -> None:
    problem = Problem(Code.OVERLOADED, "busy", limit=3, allowed=["a"], retry_after=7)
    copy = pickle.loads(pickle.dumps(problem))
    assert str(copy) == copy.detail == "busy"
    assert vars(copy) == vars(problem)
    assert copy.code is Code.OVERLOADED
