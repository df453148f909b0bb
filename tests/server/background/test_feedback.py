"""`POST /v1/feedback`: what it takes, stores and remembers, and that audits can read it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from florilege.calibration.monitoring.audit import audit_file
from florilege.models.classes import ClassInfo, ClassTable
from florilege.server.app import create_app
from florilege.server.background.feedback import Latest, Remembered
from florilege.server.routes import MOST_FEEDBACK_BYTES, MOST_OF_A_KEY
from florilege.server.schemas import Model, Query
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.asking import identify
from tests.server.background.test_feedback_store import feedback_files, lines_of
from tests.server.http.test_api_keys import bearer, line
from tests.server.test_problems import check

VIOLET = garden.photo(5, blur=0.5, other=6)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "feedback"


@pytest.fixture
def client(bundle: Path, store: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(bundle=bundle, feedback_store=store))) as client:
        yield client


def answered(client: TestClient, photo: bytes = VIOLET, **query: Any) -> dict[str, Any]:
    return identify(client, photo, **query)


def say(client: TestClient, given: Any, **headers: str) -> Any:
    if not isinstance(given, bytes):
        return client.post("/v1/feedback", json=given, headers=headers)
    typed = {"Content-Type": "application/json", **headers}
    return client.post("/v1/feedback", content=given, headers=typed)


def about(answer: dict[str, Any], class_id: str, **more: Any) -> dict[str, Any]:
    return {"request_id": answer["id"], "class_id": class_id, **more}


def ids(answer: dict[str, Any]) -> list[str]:
    return [result["class_id"] for result in answer["results"] if result["in_set"]]


def counted(client: TestClient) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    start = 'florilege_feedback_total{outcome="'
    words = (line.removeprefix(start).split('"} ') for line in lines if line.startswith(start))
    return {word: float(count) for word, count in words}


def test_a_confirmed_class_is_stored_with_the_set_and_whether_it_was_in_it(
    client: TestClient, store: Path
) -> None:
    answer = answered(client, k=3)
    inside = ids(answer)
    outside = next(f[0] for f in garden.FLOWERS if f[0] not in inside)
    response = say(client, about(answer, inside[0], note="on a wall"))
    assert response.status_code == 202
    assert response.json() == {"request_id": answer["id"], "in_set": True, "photos": 0}
    (row,) = lines_of(store)
    assert row.pop("time").endswith("+00:00")
    assert row == {
        "request_id": answer["id"],
        "class_id": inside[0],
        "said": inside[0],
        "in_set": True,
        "set": sorted(inside),
        "rule": "average_k",
        "k": 3.0,
        "coverage": None,
        "guarantee": None,
        "images": 1,
        "list": None,
        "restricted": False,
        "verdict": "accepted",
        "calibration_id": answer["model"]["calibration_id"],
        "bundle_sha256": answer["model"]["bundle_sha256"],
        "note": "on a wall",
        "consent": False,
        "photos": [],
    }
    other = answered(client)
    assert say(client, about(other, outside)).json()["in_set"] is False


def test_the_set_that_counts_is_the_whole_one_however_much_was_shown(
    client: TestClient, store: Path
) -> None:
    whole = ids(answered(client, k=7))
    assert len(whole) > 1
    for query in ({"max_results": 1}, {"include": "scores"}):
        cut = answered(client, k=7, **query)
        assert say(client, about(cut, whole[-1])).json()["in_set"] is True
    assert [row["set"] for row in lines_of(store)] == [sorted(whole)] * 2


def test_species_that_are_not_listed_miss_and_what_is_no_organism_does_not_count(
    client: TestClient, store: Path
) -> None:
    answers = [answered(client) for _ in range(4)]
    hit = ids(answers[0])[0]
    for answer, said in zip(answers, (hit, hit, "not_listed", "not_an_organism"), strict=True):
        assert say(client, about(answer, said)).status_code == 202
    rows = lines_of(store)
    assert [row["in_set"] for row in rows] == [True, True, False, None]
    (found,) = audit_file(store).audits.values()
    assert (found.rows, found.hits, found.skipped) == (3, 2, 1)
    assert counted(client) == {"hit": 2, "not_listed": 1, "not_an_organism": 1}


def test_the_set_of_a_rejected_photo_is_empty(client: TestClient, store: Path) -> None:
    answer = answered(client, garden.DULL, reject="true")
    assert say(client, about(answer, "1001")).json()["in_set"] is False
    (row,) = lines_of(store)
    assert (row["set"], row["verdict"]) == ([], "rejected")
    assert counted(client) == {"miss": 1}


def test_of_several_words_on_one_answer_the_last_counts(client: TestClient, store: Path) -> None:
    answer = answered(client)
    for said in (ids(answer)[0], "1002", "not_an_organism", "not_listed"):
        assert say(client, about(answer, said)).status_code == 202
    report = audit_file(store, calibration_id=answer["model"]["calibration_id"])
    (found,) = report.audits.values()
    assert (found.rows, found.hits, report.damaged, len(lines_of(store))) == (1, 0, 0, 4)


def test_a_repeated_key_stores_nothing_twice_and_goes_with_one_content(
    client: TestClient, store: Path
) -> None:
    answer = answered(client)
    key = {"Idempotency-Key": "abc"}
    first = say(client, about(answer, "1001"), **key)
    again = say(client, about(answer, "1001"), **key)
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    check(say(client, about(answer, "1002"), **key), 422, "idempotency_key_reused")
    (line,) = feedback_files(store)[0].read_text().splitlines()
    assert json.loads(line)["class_id"] == "1001"
    assert counted(client) == {next(iter(counted(client))): 1, "repeated": 1}
    for strange in ("", "x" * (MOST_OF_A_KEY + 1)):
        response = say(client, about(answer, "1001"), **{"Idempotency-Key": strange})
        check(response, 400, "invalid_parameter")


def test_an_answer_belongs_to_the_key_that_asked(bundle: Path, store: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(line("alice", "k1") + line("bob", "k2"))
    settings = Settings(bundle=bundle, feedback_store=store, keys_file=keys)
    sent = {"X-Request-Id": "app-1"}
    with TestClient(create_app(settings)) as client:
        answers = []
        for key in ("k1", "k2"):
            response = client.post("/v1/identify", content=VIOLET, headers={**sent, **bearer(key)})
            answers.append(response.json())
        alice, bob = answers
        for given in ({"request_id": "app-1", "class_id": "1001"}, about(bob, "1001")):
            response = say(client, given, **bearer("k1"))
            check(response, 404, "answer_not_found")
        same = {"Idempotency-Key": "same"}  # another caller's word of the same name
        assert say(client, about(alice, "1001"), **bearer("k1"), **same).status_code == 202
        assert say(client, about(bob, "1002"), **bearer("k2"), **same).status_code == 202
        assert say(client, about(bob, "1002"), **bearer("k2"), **same).status_code == 202
    assert [(row["request_id"], row["said"]) for row in lines_of(store)] == [
        (alice["id"], "1001"),
        (bob["id"], "1002"),
    ]
    (found,) = audit_file(store).audits.values()
    assert found.rows == 2


def test_of_the_keys_and_of_the_answers_the_oldest_are_forgotten(
    bundle: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.server.background.feedback.MOST_KEYS", 3)
    monkeypatch.setattr("florilege.server.background.feedback.MOST_ANSWERS", 2)
    with TestClient(create_app(Settings(bundle=bundle, feedback_store=store))) as client:
        answer = answered(client)
        for key, rows in (("a", 1), ("b", 2), ("c", 3), ("a", 3), ("d", 4), ("b", 4), ("a", 5)):
            assert say(client, about(answer, "1001"), **{"Idempotency-Key": key}).status_code == 202
            assert len(lines_of(store)) == rows, key
        answered(client)
        assert say(client, about(answer, "1001")).status_code == 202
        answered(client)
        check(say(client, about(answer, "1001")), 404, "answer_not_found")


def test_a_key_a_note_and_a_body_may_be_as_long_as_allowed(client: TestClient) -> None:
    answer = answered(client)
    given = about(answer, "1001", note="x" * 500)
    body = json.dumps(given).encode().ljust(MOST_FEEDBACK_BYTES)
    assert say(client, body, **{"Idempotency-Key": "k" * MOST_OF_A_KEY}).status_code == 202
    check(say(client, body + b" "), 413, "body_too_large")


def test_unknown_answers_and_classes_are_not_found(client: TestClient, store: Path) -> None:
    answer = answered(client)
    document = check(
        say(client, {"request_id": "nobody", "class_id": "1001"}), *(404, "answer_not_found")
    )
    assert "10000" in document["detail"]
    document = check(say(client, about(answer, "9999")), 404, "class_not_found")
    assert "not_listed" in document["detail"]
    assert lines_of(store) == []
    assert counted(client) == {}


@pytest.mark.parametrize(
    ("body", "status", "code", "word"),
    [
        (b"", 400, "malformed_request", "JSON"),
        (b"[1, 2]", 400, "malformed_request", "object"),
        (b'{"request_id": "a"', 400, "malformed_request", "JSON"),
        (b"\xff\xfe", 400, "malformed_request", "JSON"),
        (b'{"request_id": "a"}', 400, "invalid_parameter", "class_id"),
        (b'{"request_id": "a", "class_id": 1001}', 400, "invalid_parameter", "class_id"),
        (b'{"request_id": "", "class_id": "1"}', 400, "invalid_parameter", "request_id"),
        (b'{"request_id": "a", "class_id": "1", "k": 3}', 400, "unknown_parameter", "k"),
        (
            b'{"request_id": "a", "class_id": "1", "note": "' + b"x" * 501 + b'"}',
            *(400, "invalid_parameter", "note"),
        ),
        (b" " * (MOST_FEEDBACK_BYTES + 1), 413, "body_too_large", str(MOST_FEEDBACK_BYTES)),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    client: TestClient, body: bytes, status: int, code: str, word: str
) -> None:
    assert word in check(say(client, body), status, code)["detail"]


def test_only_json_is_taken_so_that_pages_of_others_cannot_post_it(client: TestClient) -> None:
    body = json.dumps(about(answered(client), "1001"))
    for typed in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = client.post("/v1/feedback", content=body, headers={"Content-Type": typed})
        check(response, 400, "malformed_request")
    json_ = {"Content-Type": "application/json; charset=utf-8"}
    assert client.post("/v1/feedback", content=body, headers=json_).status_code == 202
    check(client.post("/v1/feedback?x=1", content=body, headers=json_), 400, "unknown_parameter")
    check(client.get("/v1/feedback"), 405, "method_not_allowed")


def test_a_store_that_cannot_be_written_is_a_503_and_no_key_is_used_up(
    client: TestClient, store: Path
) -> None:
    answer = answered(client)
    key = {"Idempotency-Key": "k"}
    (store / "feedback-000001.jsonl").mkdir()  # a file of this name cannot be written now
    document = check(say(client, about(answer, "1001"), **key), 503, "feedback_not_stored")
    assert document["retryable"] is True
    assert str(store) not in document["detail"]
    (store / "feedback-000001.jsonl").rmdir()
    assert say(client, about(answer, "1001"), **key).status_code == 202
    assert len(lines_of(store)) == 1
    assert counted(client)["failed"] == 1


def test_without_a_store_there_is_no_such_address(bundle: Path) -> None:
    with TestClient(create_app(Settings(bundle=bundle))) as client:
        answer = answered(client)
        check(say(client, about(answer, "1001")), 404, "not_found")
        assert "/v1/feedback" not in client.get("/openapi.json").json()["paths"]


def test_no_photo_no_name_and_no_address_is_stored(client: TestClient, store: Path) -> None:
    files = [("images", ("my-garden.png", VIOLET, "image/png"))]
    answer = client.post("/v1/identify", files=files).json()
    say(client, about(answer, "1001"), **{"User-Agent": "someone"})
    (path,) = store.iterdir()
    text = path.read_text()
    for word in ("my-garden", "testclient", "someone", "127.0.0.1"):
        assert word not in text
    assert len(text) < 1000
    assert path.stat().st_mode & 0o077 == 0
    assert store.stat().st_mode & 0o077 == 0


def remembered(members: list[int], classes: int = 12) -> Remembered:
    inside = np.zeros(classes, dtype=bool)
    inside[members] = True
    model = Model(name="", version="", bundle_sha256="", calibration_id="")
    table = ClassTable(tuple(ClassInfo(id=str(i), scientific_name="") for i in range(classes)))
    nothing = dict.fromkeys(("coverage", "guarantee", "list", "only"))
    query = Query(images=1, rule="average_k", k=3.0, lang="en", **nothing)
    return Remembered(None, model, query, False, "accepted", table, np.packbits(inside))


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_the_members_of_a_set_survive_being_packed(given_: tuple[int, set[int]]) -> None:
    classes, members = given_
    assert remembered(sorted(members), classes).members == [str(i) for i in sorted(members)]


def test_the_oldest_answers_are_forgotten_and_the_latest_of_an_id_counts() -> None:
    answers = Latest[str, int](3)
    for number in range(3):
        answers.keep(f"r{number}", number)
    answers.keep("r0", 7)  # the id again: it is the newest now
    answers.keep("r9", 9)
    assert answers.find("r1") is None
    assert {name: answers.find(name) for name in ("r0", "r2", "r9")} == {"r0": 7, "r2": 2, "r9": 9}


def test_an_answer_with_many_classes_stays_small() -> None:
    assert remembered([0, 9999], 10_000).bits.nbytes == 1250
