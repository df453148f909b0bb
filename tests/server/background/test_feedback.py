"""`POST /v1/feedback`: what it takes, stores and remembers, and that audits can read it."""

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.testclient import TestClient

from florilege.calibration.monitoring.audit import audit_file
from florilege.errors import FlorilegeError
from florilege.feedback_store import FILE
from florilege.models.classes import ClassInfo, ClassTable
from florilege.processes import WorkerGroup
from florilege.server.app import create_app
from florilege.server.feedback import MAX_ANSWERS, MAX_WAITING, Feedback, _RecentAnswer
from florilege.server.http.api_keys import client_of
from florilege.server.prometheus import Metrics
from florilege.server.routes import MAX_FEEDBACK_BYTES, MAX_IDEMPOTENCY_KEY_LENGTH
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.background.feedback_rows import words
from tests.server.http.test_api_keys import bearer, line
from tests.server.http_client import identify, open_client
from tests.server.test_problems import check

VIOLET = garden.photo(5, blur=0.5, other=6)
CONSENT = b'{"request_id": "a", "class_id": "1", "consent": %b}'


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "feedback"


@pytest.fixture
def client(bundle: Path, store: Path) -> Iterator[TestClient]:
    with open_client(bundle, feedback_store=store) as client:
        yield client


def say(client: TestClient, given: Any, **headers: str) -> Any:
    if not isinstance(given, bytes):
        return client.post("/v1/feedback", json=given, headers=headers)
    typed = {"Content-Type": "application/json", **headers}
    return client.post("/v1/feedback", content=given, headers=typed)


def confirm(client: TestClient, answer: dict[str, Any], class_id: str, **more: Any) -> Any:
    """Feedback on an answer."""
    return say(client, about(answer, class_id, **more))


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
    answer = identify(client, VIOLET, k=3)
    inside = ids(answer)
    outside = next(f[0] for f in garden.FLOWERS if f[0] not in inside)
    response = confirm(client, answer, inside[0], note="on a wall")
    assert response.status_code == 202
    assert response.json() == {"request_id": answer["id"], "in_set": True, "photos": 0}
    (row,) = words(store)
    assert row.pop("time").endswith("+00:00")
    assert row == {
        "id": answer["id"],
        "key": "",
        "number": 1,
        "answer_id": answer["id"],
        "idempotency_key": None,
        "class_id": inside[0],
        "in_set": True,
        "members": sorted(inside),
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
        "licence": None,
        "photos": 0,
    }
    other = identify(client, VIOLET)
    assert confirm(client, other, outside).json()["in_set"] is False


def test_the_set_that_counts_is_the_whole_one_however_much_was_shown(
    client: TestClient, store: Path
) -> None:
    whole = ids(identify(client, VIOLET, k=7))
    assert len(whole) > 1
    for query in ({"max_results": 1}, {"include": "scores"}):
        cut = identify(client, VIOLET, k=7, **query)
        assert confirm(client, cut, whole[-1]).json()["in_set"] is True
    assert [row["members"] for row in words(store)] == [sorted(whole)] * 2


def test_species_that_are_not_listed_miss_and_what_is_no_organism_does_not_count(
    client: TestClient, store: Path
) -> None:
    answers = [identify(client, VIOLET) for _ in range(4)]
    hit = ids(answers[0])[0]
    for answer, label in zip(answers, (hit, hit, "not_listed", "not_an_organism"), strict=True):
        assert confirm(client, answer, label).status_code == 202
    assert [row["in_set"] for row in words(store)] == [True, True, False, None]
    (result,) = audit_file(store).audits.values()
    assert (result.rows, result.hits, result.skipped) == (3, 2, 1)
    assert counted(client) == {"hit": 2, "not_listed": 1, "not_an_organism": 1}


def test_the_set_of_a_rejected_photo_is_empty(client: TestClient, store: Path) -> None:
    answer = identify(client, garden.DULL, reject="true")
    assert confirm(client, answer, "1001").json()["in_set"] is False
    (row,) = words(store)
    assert (row["members"], row["verdict"]) == ([], "rejected")
    assert counted(client) == {"miss": 1}


def test_the_last_feedback_on_an_answer_counts(client: TestClient, store: Path) -> None:
    answer = identify(client, VIOLET)
    for label in (ids(answer)[0], "1002", "not_an_organism", "not_listed"):
        assert confirm(client, answer, label).status_code == 202
    report = audit_file(store, calibration_id=answer["model"]["calibration_id"])
    (result,) = report.audits.values()
    assert (result.rows, result.hits, report.damaged, len(words(store))) == (1, 0, 0, 4)


def test_feedback_is_taken_one_at_a_time_and_ends_before_the_store_closes(
    bundle: Path, store: Path
) -> None:
    ended, order = threading.Event(), list[str]()

    def slow() -> None:
        assert ended.wait(20)
        order.append("slow")

    with open_client(bundle, feedback_store=store) as client:
        feedback = client.app.state.feedback  # type: ignore[attr-defined]  # a FastAPI
        close = feedback.store.close

        def noted() -> None:
            order.append("closed")
            close()

        feedback.store.close = noted
        assert client.portal is not None
        first = client.portal.start_task_soon(feedback.thread.run, slow)
        second = client.portal.start_task_soon(feedback.thread.run, order.append, "second")
        time.sleep(0.05)
        assert order == []
        ended.set()
        first.result(20), second.result(20)
    assert order == ["slow", "second", "closed"]


def test_a_locked_store_refuses_within_seconds_and_does_not_hold_up_a_stop(
    bundle: Path, store: Path
) -> None:
    with open_client(bundle, feedback_store=store) as client:
        answer, started = identify(client, VIOLET), time.monotonic()
        with closing(sqlite3.connect(store / FILE, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            check(confirm(client, answer, "1001"), 503, "feedback_not_stored")
            assert time.monotonic() - started < 4.5  # of SQLite's five seconds
            with ThreadPoolExecutor(MAX_WAITING + 4) as pool:
                waiting = [
                    pool.submit(confirm, client, answer, "1001") for _ in range(MAX_WAITING + 4)
                ]
                full = next(as_completed(waiting)).result()
                check(full, 503, "feedback_not_stored")
                assert (full.headers["retry-after"], full.json()["limit"]) == ("10", MAX_WAITING)
                client.app.state.feedback.thread.timeout_s = 0.1  # type: ignore[attr-defined]
                for one in waiting:
                    check(one.result(), 503, "feedback_not_stored")
                    assert int(one.result().headers["retry-after"]) >= 10
            assert time.monotonic() - started < 14
        assert confirm(client, answer, "1001").status_code == 202
    assert len(words(store)) == 1


def test_a_repeated_key_stores_nothing_twice_and_goes_with_one_content(
    client: TestClient, store: Path
) -> None:
    answer = identify(client, VIOLET)
    key = {"Idempotency-Key": "abc"}
    first = say(client, about(answer, "1001"), **key)
    again = say(client, about(answer, "1001"), **key)
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    for other in (about(answer, "1002"), about(answer, "1001", consent=True)):
        check(say(client, other, **key), 422, "idempotency_key_reused")
    assert [row["class_id"] for row in words(store)] == ["1001"]
    assert counted(client) == {next(iter(counted(client))): 1, "repeated": 1}
    for name, class_id in (("b", "1002"), ("abc", "1001")):  # the latter is late: no change
        say(client, about(answer, class_id), **{"Idempotency-Key": name})
    assert [row["class_id"] for row in words(store)] == ["1001", "1002"]
    for strange in ("", "x" * (MAX_IDEMPOTENCY_KEY_LENGTH + 1)):
        response = say(client, about(answer, "1001"), **{"Idempotency-Key": strange})
        check(response, 400, "invalid_parameter")


@pytest.fixture
def keyed(bundle: Path, store: Path, tmp_path: Path) -> Callable[..., TestClient]:
    """Opens a server with the keys k1 of alice and k2 of bob."""
    keys = tmp_path / "keys"
    keys.write_text(line("alice", "k1") + line("bob", "k2"))
    return partial(open_client, bundle, feedback_store=store, keys_file=keys)


def test_an_answer_belongs_to_the_key_that_asked(
    keyed: Callable[..., TestClient], store: Path
) -> None:
    result = {"X-Request-Id": "app-1"}
    with keyed() as client:
        answers = []
        for key in ("k1", "k2"):
            headers = {**result, **bearer(key)}
            answers.append(client.post("/v1/identify", content=VIOLET, headers=headers).json())
        alice, bob = answers
        for value in ({"request_id": "app-1", "class_id": "1001"}, about(bob, "1001")):
            response = say(client, value, **bearer("k1"))
            check(response, 404, "answer_not_found")
        same = {"Idempotency-Key": "same"}  # another caller's word of the same name
        assert say(client, about(alice, "1001"), **bearer("k1"), **same).status_code == 202
        assert say(client, about(bob, "1002"), **bearer("k2"), **same).status_code == 202
        assert say(client, about(bob, "1002"), **bearer("k2"), **same).status_code == 202
    labels = {row["answer_id"]: row["class_id"] for row in words(store)}
    assert (len(words(store)), labels) == (2, {alice["id"]: "1001", bob["id"]: "1002"})
    (outcome,) = audit_file(store).audits.values()
    assert outcome.rows == 2


def test_the_oldest_answers_are_forgotten_but_not_those_in_the_store(
    bundle: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.server.feedback.MAX_ANSWERS", 2)
    with open_client(bundle, feedback_store=store) as client:
        outcome, silent = identify(client, VIOLET), identify(client, VIOLET)
        assert confirm(client, outcome, "1001").status_code == 202
        identify(client, VIOLET)
        assert confirm(client, silent, "1001").status_code == 202
        unknown = [identify(client, VIOLET) for _ in range(5)][2]
        check(confirm(client, unknown, "1001"), 404, "answer_not_found")
        assert confirm(client, outcome, "1002").status_code == 202


def test_what_is_remembered_is_divided_among_workers(
    bundle: Path, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "group").mkdir()
    group = WorkerGroup(tmp_path / "group", 4)
    settings = Settings(bundle=bundle, feedback_store=store, feedback_photos_held_bytes=4000)
    alone, worker = (Feedback.open(settings, Metrics(), of) for of in (None, group))
    assert alone
    assert worker
    assert (alone.answers.limit, alone.photos.limit) == (MAX_ANSWERS, 4000)
    assert (worker.answers.limit, worker.photos.limit) == (MAX_ANSWERS // 4, 1000)
    for feedback in (alone, worker):
        feedback.close()


def test_after_a_restart_feedback_can_be_changed_and_repeated_by_the_same_key(
    keyed: Callable[..., TestClient], store: Path
) -> None:
    same = {"Idempotency-Key": "same", **bearer("k1")}
    with keyed() as client:
        answer = client.post("/v1/identify", content=VIOLET, headers=bearer("k1")).json()
        first = say(client, about(answer, "1001"), **same)
    with keyed() as client:
        again = say(client, about(answer, "1001"), **same)
        assert (again.status_code, again.json()) == (202, first.json())
        check(say(client, about(answer, "1002"), **same), 422, "idempotency_key_reused")
        check(say(client, about(answer, "1002"), **bearer("k2")), 404, "answer_not_found")
        check(say(client, about(answer, "9999"), **bearer("k1")), 404, "class_not_found")
        other = say(client, about(answer, ids(answer)[0]), **bearer("k1"))
        assert other.json() == {"request_id": answer["id"], "in_set": True, "photos": 0}
    assert [row["class_id"] for row in words(store)] == ["1001", ids(answer)[0]]


def test_a_full_store_keeps_its_feedback_and_refuses_more(
    bundle: Path, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_client(bundle, feedback_store=store, feedback_max_bytes=60_000) as client:
        genuine, other = identify(client, VIOLET), identify(client, VIOLET)
        assert confirm(client, genuine, "1001").status_code == 202
        codes = [confirm(client, other, "1002", note="x" * 500).status_code for _ in range(80)]
        stored = codes.index(503)
        assert set(codes[:stored]) == {202}
        assert set(codes[stored:]) == {503}
        assert "feedback could not be stored" in caplog.text
    assert [row["class_id"] for row in words(store)] == ["1001"] + ["1002"] * stored
    assert sum(path.stat().st_size for path in store.iterdir()) <= 60_000
    with open_client(bundle, feedback_store=store, feedback_max_bytes=120_000) as client:
        assert confirm(client, other, "1002").status_code == 202


def test_a_rate_limited_client_does_not_affect_another(
    keyed: Callable[..., TestClient], store: Path
) -> None:
    with keyed(feedback_rate="3/hour") as client:
        answers = {
            key: client.post("/v1/identify", content=VIOLET, headers=bearer(key)).json()
            for key in ("k1", "k2")
        }
        for _ in range(3):
            assert say(client, about(answers["k1"], "1001"), **bearer("k1")).status_code == 202
        refused = say(client, about(answers["k1"], "1001"), **bearer("k1"))
        assert check(refused, 429, "rate_limited")["limit"] == 3
        assert int(refused.headers["retry-after"]) > 3000
        assert say(client, about(answers["k2"], "1001"), **bearer("k2")).status_code == 202
    assert len(words(store)) == 4


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
        (None, ""),
    ],
)
def test_a_client_is_an_address_and_of_ipv6_a_network(host: str | None, client: str) -> None:
    scope = {"type": "http", "client": host and (host, 1), "state": {"key": None}}
    assert client_of(Request(scope)) == client


def test_what_a_database_cannot_hold_is_refused_or_kept_as_it_is(
    client: TestClient, store: Path
) -> None:
    answer = identify(client, VIOLET)
    lone = b'{"request_id": "%s", "class_id": "1001", "note": "\\ud800"}'
    check(say(client, lone % answer["id"].encode()), 400, "malformed_request")
    note = "Gr\u00fc\u00dfe, \u82b1 \x00 '); DROP TABLE feedback; --"
    assert confirm(client, answer, "1001", note=note).status_code == 202
    key = {"Idempotency-Key": "'; --"}
    assert say(client, about(answer, "1001"), **key).status_code == 202
    assert [row["note"] for row in words(store)] == [note, None]


def test_a_key_a_note_and_a_body_may_be_as_long_as_allowed(client: TestClient) -> None:
    answer = identify(client, VIOLET)
    options = about(answer, "1001", note="x" * 500)
    body = json.dumps(options).encode().ljust(MAX_FEEDBACK_BYTES)
    key = {"Idempotency-Key": "k" * MAX_IDEMPOTENCY_KEY_LENGTH}
    assert say(client, body, **key).status_code == 202
    check(say(client, body + b" "), 413, "body_too_large")


def test_unknown_answers_and_classes_are_not_found(client: TestClient, store: Path) -> None:
    answer = identify(client, VIOLET)
    nobody = {"request_id": "nobody", "class_id": "1001"}
    document = check(say(client, nobody), 404, "answer_not_found")
    assert "10000" in document["detail"]
    document = check(confirm(client, answer, "9999"), 404, "class_not_found")
    assert "not_listed" in document["detail"]
    assert words(store) == []
    assert counted(client) == {}


@pytest.mark.parametrize(
    ("body", "status", "code", "word"),
    [
        (b"", 400, "malformed_request", "JSON"),
        (b"[1, 2]", 400, "malformed_request", "object"),
        (b'{"request_id": "a"', 400, "malformed_request", "JSON"),
        (b"\xff\xfe", 400, "malformed_request", "JSON"),
        (b'{"request_id": "a"}', 400, "invalid_parameter", "field `class_id`"),
        (b'{"request_id": "a", "class_id": 1001}', 400, "invalid_parameter", "field `class_id`"),
        (b'{"request_id": "", "class_id": "1"}', 400, "invalid_parameter", "request_id"),
        *(
            (CONSENT % consent, 400, "invalid_parameter", "consent")
            for consent in (b'"true"', b"1", b'"yes"', b"null", b"[true]")
        ),
        (b'{"request_id": "a", "class_id": "1", "k": 3}', 400, "unknown_parameter", "no field `k`"),
        (
            b'{"request_id": "a", "class_id": "1", "note": "' + b"x" * 501 + b'"}',
            *(400, "invalid_parameter", "note"),
        ),
        (
            b" " * (MAX_FEEDBACK_BYTES + 1),
            413,
            "body_too_large",
            f"{MAX_FEEDBACK_BYTES} bytes; shorten the note",
        ),
    ],
)
def test_invalid_fields_are_refused_by_name(
    client: TestClient, body: bytes, status: int, code: str, word: str
) -> None:
    assert word in check(say(client, body), status, code)["detail"]


def test_only_json_is_taken_so_that_pages_of_others_cannot_post_it(client: TestClient) -> None:
    body = json.dumps(about(identify(client, VIOLET), "1001"))
    for typed in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = client.post("/v1/feedback", content=body, headers={"Content-Type": typed})
        check(response, 400, "malformed_request")
    json_ = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert client.post("/v1/feedback", content=body, headers=json_).status_code == 202
    check(client.post("/v1/feedback?x=1", content=body, headers=json_), 400, "unknown_parameter")
    check(client.get("/v1/feedback"), 405, "method_not_allowed")


def test_a_folder_with_something_else_is_refused_at_start(bundle: Path, store: Path) -> None:
    store.mkdir()
    (store / FILE).write_text('{"no": "database"}' * 100)
    with pytest.raises(FlorilegeError, match="cannot be opened"):
        create_app(Settings(bundle=bundle, feedback_store=store))


def test_no_photo_no_name_and_no_address_is_stored(client: TestClient, store: Path) -> None:
    files = [("images", ("my-garden.png", VIOLET, "image/png"))]
    answer = client.post("/v1/identify", files=files).json()
    say(client, about(answer, "1001"), **{"User-Agent": "someone"})
    (path,) = store.iterdir()
    content = path.read_bytes()
    for word in (b"my-garden", b"testclient", b"someone", b"127.0.0.1", VIOLET[:40]):
        assert word not in content
    assert path.stat().st_mode & 0o077 == 0
    assert store.stat().st_mode & 0o077 == 0


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_a_remembered_set_is_complete_and_takes_a_bit_for_each_class(
    case: tuple[int, set[int]],
) -> None:
    classes, members = case
    inside = np.isin(np.arange(classes), list(members))
    table = ClassTable(tuple(ClassInfo(id=str(i), scientific_name="") for i in range(classes)))
    recent = _RecentAnswer({}, table, np.packbits(inside))
    assert json.loads(recent.full_row["members"]) == [str(i) for i in sorted(members)]
    assert recent.bits.nbytes == -(-classes // 8)
