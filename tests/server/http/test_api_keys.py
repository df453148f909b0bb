"""Keys: who may ask and how often."""

import hashlib
import threading
from pathlib import Path

import pytest
from limits import parse

from florilege.errors import UsageError
from florilege.server.http.api_keys import ApiKeys, RateCounter
from florilege.server.problems import Code
from tests.server import garden
from tests.server.http_client import open_client
from tests.server.raised_problem import raises_problem
from tests.server.server_thread import Running
from tests.server.test_problems import check

PHOTO = garden.photo(0)


def line(name: str, key: str, rate: str = "") -> str:
    return f"{name} {hashlib.sha256(key.encode()).hexdigest()} {rate}\n"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(
        line("garden", "sésame")
        + line("busy", "k2", "2/hour  # a burst")
        + "# who may ask\n\n"
        + line("quiet", "k9"),
        "utf-8-sig",  # editors of Windows begin a file with a mark
    )
    return path


def test_a_rate_is_of_a_moving_window_and_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("florilege.processes.shared_state.time.monotonic", lambda: now)
    counter, rate, threads = RateCounter("key"), parse("3/minute"), threading.active_count()
    for moment, remaining, reset in ((100, 2, 60), (120, 1, 40), (130.5, 0, 30)):
        now = moment
        headers = counter.count(rate, "a")
        assert headers["RateLimit"] == f'"key";r={remaining};t={reset}'
    now = 160.0  # the first request is in the window still
    with raises_problem(Code.RATE_LIMITED) as refused:
        counter.count(rate, "a")
    assert refused.value.headers["Retry-After"] == "1"
    assert counter.count(rate, "b")["RateLimit"] == '"key";r=2;t=60'
    now = 160.1
    assert counter.count(rate, "a")["RateLimit"] == '"key";r=0;t=20'
    assert counter.count(parse("9/minute"), "a")["RateLimit"] == '"key";r=8;t=60'
    assert threading.active_count() == threads


def test_clients_are_forgotten_once_they_are_out_of_their_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("florilege.processes.shared_state.time.monotonic", lambda: now)
    counter, rate = RateCounter("client"), parse("1/minute")
    for number in range(1000):
        now = float(number)
        counter.count(rate, f"address {number}")
        with raises_problem(Code.RATE_LIMITED):
            counter.count(rate, f"address {number}")
        assert len(vars(counter._times)["_times"]) <= 62


def test_only_a_known_key_is_answered_whichever_header_brings_it(
    bundle: Path, keys_file: Path
) -> None:
    with open_client(bundle, keys_file=keys_file) as client:
        document = check(client.post("/v1/identify", content=PHOTO), 401, "key_missing")
        assert "X-API-Key" in document["detail"]
        missing = client.get("/v1/model", headers={"Authorization": "Basic c2VzYW1l"})
        assert missing.headers["www-authenticate"] == "Bearer"
        check(missing, 401, "key_missing")
        document = check(client.get("/v1/model", headers=bearer("wrong")), 403, "key_unknown")
        assert "wrong or no longer" in document["detail"]
        in_query = client.get("/v1/model?key=s%C3%A9same")
        check(in_query, 401, "key_missing")
        for headers in (
            [(b"Authorization", "bearer sésame".encode())],
            [(b"X-API-Key", "sésame".encode())],
        ):
            response = client.post("/v1/identify", content=PHOTO, headers=headers)
            assert response.status_code == 200, response.text
            assert "ratelimit" not in response.headers
        for path in ("/", "/livez", "/readyz", "/metrics", "/openapi.json"):
            assert client.get(path).status_code == 200
        assert "sésame" not in client.get("/metrics").text


def test_a_key_above_its_rate_waits_while_another_goes_on(bundle: Path, keys_file: Path) -> None:
    with open_client(bundle, keys_file=keys_file) as client:
        left = []
        for _ in range(2):
            response = client.get("/v1/classes?limit=0", headers=bearer("k2"))
            assert response.headers["ratelimit-policy"] == '"key";q=2;w=3600'
            left.append(response.headers["ratelimit"].partition(";t=")[0])
        assert left == ['"key";r=1', '"key";r=0']
        refused = client.post("/v1/identify", content=PHOTO, headers=bearer("k2"))
        document = check(refused, 429, "rate_limited")
        assert document["limit"] == 2
        assert 3590 < int(refused.headers["retry-after"]) <= 3600
        assert refused.headers["ratelimit"] == f'"key";r=0;t={refused.headers["retry-after"]}'
        quiet = client.post("/v1/identify", content=PHOTO, headers=bearer("k9"))
        assert quiet.status_code == 200


def test_a_refusal_before_the_upload_is_read_closes_the_connection(
    bundle: Path, keys_file: Path
) -> None:
    with Running(bundle, keys_file=keys_file) as running:
        length = {"Content-Length": "1000000"}
        status, headers, _ = running.ask("POST", "/v1/identify", b"x" * 10_000, length)
        assert (status, headers["Connection"]) == (401, "close")


def test_reading_the_file_again_keeps_counts_and_on_failure_the_old_keys(
    keys_file: Path,
) -> None:
    keys = ApiKeys(keys_file)
    busy = {"x-api-key": "k2"}
    assert keys.check(busy)[1]["RateLimit"].startswith('"key";r=1')
    keys_file.write_text(line("busy", "k2", "2/hour") + line("new", "k3"))
    assert keys.read() == 2
    assert keys.check(busy)[1]["RateLimit"].startswith('"key";r=0')
    assert keys.check({"x-api-key": "k3"}) == ("new", {})
    with raises_problem(Code.KEY_UNKNOWN):
        keys.check({"x-api-key": "sésame"})  # revoked
    keys_file.unlink()
    with pytest.raises(UsageError, match="No such file"):
        keys.read()
    with raises_problem(Code.RATE_LIMITED):
        keys.check(busy)
    assert keys.check({"x-api-key": "k3"}) == ("new", {})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "holds no key"),
        (b"# nobody\n", "holds no key"),
        (b"garden \xff", "not UTF-8"),
        (b"garden 1234\nother\n", "line 1, line 2: write NAME SHA256"),
        (line("a", "k").encode() + line("a", "l").encode(), "line 2: .*each name and hash once"),
        (line("a", "k").encode() + line("b", "k").upper().encode(), "line 2"),
        (line("a", "k", "often").encode(), "line 1"),
        (line("a", "k", "0/minute").encode(), "line 1"),
        (line("a", "k", "60/minute;1000/day").encode(), "line 1"),
        (line("a/b", "k").encode(), "line 1"),
        (line("a", "k", "1/minute x").encode(), "line 1"),
    ],
)
def test_an_invalid_file_names_each_line(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=expected):
        ApiKeys(path)


@pytest.mark.parametrize(
    ("path", "public"),
    [
        ("/v1/model", "no-cache"),
        ("/v1/classes", "no-cache"),
        ("/v1/classes/1001", "no-cache"),
        ("/v1/thumbnails?class_id=1001", "max-age=3600"),
        ("/", "no-cache"),
        ("/app.js", "no-cache"),
        ("/openapi.json", "no-store"),
        ("/readyz", "no-store"),
        ("/metrics", "no-store"),
        ("/nowhere", "no-store"),
        ("/v1/classes/nothing", "no-store"),
    ],
)
def test_shared_caches_keep_nothing_that_a_key_was_needed_for(
    bundle: Path, keys_file: Path, path: str, public: str
) -> None:
    needs_key = path.startswith("/v1/") and public != "no-store"
    for keys, expected in ((None, public), (keys_file, f"private, {public}")):
        with open_client(bundle, keys_file=keys) as client:
            response = client.get(path, headers=bearer("k9"))
            assert response.headers["cache-control"] == (expected if needs_key else public)
            if "etag" in response.headers:
                tag = {"If-None-Match": response.headers["etag"], **bearer("k9")}
                again = client.get(path, headers=tag)
                assert again.status_code == 304
                assert again.headers["cache-control"] == response.headers["cache-control"]
