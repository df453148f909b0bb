"""Both clients against a running server, and one that answers as it is told."""

import asyncio
import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, assert_type

import httpx
import pytest

from florilege_client import (
    Answer,
    AsyncClient,
    ClassList,
    Client,
    FeedbackReceipt,
    ModelCard,
    NoAnswer,
    Problem,
    Retries,
    Unreachable,
)
from tests.server import garden
from tests.server.server_thread import Running
from tests.server.write_golden import EXAMPLES

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "clients" / "python"
KEY = "sesame"
PHOTO = garden.photo(2)
PATIENT = Retries(first_s=0.0)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("asked")
    (folder / "keys").write_text(f"app {hashlib.sha256(KEY.encode()).hexdigest()}\n")
    with Running(
        garden.grow(folder), keys_file=folder / "keys", feedback_store=folder / "feedback"
    ) as running:
        yield running


class Awaited:
    """An `AsyncClient` whose calls wait, so that one test asks with both."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(*args, **options)

    def __getattr__(self, name: str) -> Any:
        method, wait = getattr(self._client, name), self._loop.run_until_complete
        return lambda *args, **options: wait(method(*args, **options))

    def __enter__(self) -> "Awaited":
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


Makes = Callable[..., Any]


@pytest.fixture(params=[Client, Awaited], ids=["waiting", "awaiting"])
def makes(request: pytest.FixtureRequest) -> Makes:
    """What makes a client, of either kind."""
    result: Makes = request.param
    return result


def test_everything_can_be_asked(running: Running, makes: Makes, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(PHOTO)
    with makes(running.url, KEY) as client:
        assert client.live()
        assert client.ready()
        card = client.model()
        assert (card.model.name, card.default_k, card.feedback) == ("garden", 3.0, True)
        assert card.rules[0].points[0].lambda_val is not None
        assert client.classes(q="viola", limit=1).total == 2
        assert client.classes(limit=0).classes == ()
        assert client.classes(lang="fr").classes[0].taxon.common_names[0].name == "rose rouge"
        assert client.species("1001").taxon.scientific_name == "Rosa rubra"
        answers = [
            client.identify(photo, k=2, include=["scores", "rollup"], lang="fr", reject=False)
            for photo in (
                *(PHOTO, io.BytesIO(PHOTO)),
                *(tmp_path / "photo.png", str(tmp_path / "photo.png")),
            )
        ]
        assert {(each.best_match, each.query.k, each.set.size) for each in answers} == {
            (answers[0].best_match, 2.0, answers[0].set.size)
        }
        assert len(answers[0].results) == card.classes
        several = client.identify(PHOTO, garden.photo(3), only=["Rosaceae", "1004"])
        assert several.query.images == 2
        assert several.query.only == ("1001", "1002", "1003", "1004")
        plot = client.survey(PHOTO, tile_size=48, max_results=1)
        assert (plot.tiles.total, plot.results[0].tiles, plot.set.calibrated) == (1, 1, False)
        features = client.embeddings(PHOTO, PHOTO)
        assert features.embeddings is not None
        assert (len(features.embeddings), len(features.embeddings[0])) == (2, features.dimensions)
        receipt = client.feedback(several, "1003", note="in my garden")
        assert (receipt.request_id, receipt.in_set) == (several.id, True)


def test_a_user_of_the_types_passes_strict_checks(running: Running) -> None:
    """What `mypy --strict` says of these lines is part of `make lint`."""
    with Client(running.url, key=KEY) as client:
        answer = client.identify(PHOTO)
        assert_type(answer, Answer)
        assert_type(client.model(), ModelCard)
        assert_type(client.classes(), ClassList)
        assert_type(client.feedback(answer.id, "not_listed"), FeedbackReceipt)
        names = [name.name for result in answer.results for name in result.taxon.common_names]
        assert_type(names, list[str])
        if answer.set.hit_rate is not None:
            assert_type(answer.set.hit_rate.ci95, tuple[float, float] | None)
        client.identify(PHOTO, k=2.0)
        with pytest.raises(Problem, match="unknown_parameter"):
            client.identify(PHOTO, season="spring")  # type: ignore[call-arg]  # on purpose

    async def asked() -> Answer:
        async with AsyncClient(running.url, KEY) as client:
            return assert_type(await client.identify(PHOTO), Answer)

    assert asyncio.run(asked()).best_match == answer.best_match


def test_a_refusal_of_the_server_says_all_it_says(running: Running, makes: Makes) -> None:
    with makes(running.url, KEY) as client:
        with pytest.raises(Problem) as raised:
            client.identify(PHOTO, k=2.71828)
        assert (raised.value.status, raised.value.code) == (422, "not_calibrated")
        assert 3.0 in (raised.value.allowed or ())
        assert raised.value.request_id
        with pytest.raises(Problem) as raised:
            client.species("10/01?")
        assert (raised.value.code, raised.value.retryable) == ("class_not_found", False)
        assert "10/01?" in raised.value.detail
    with makes(running.url) as client:
        assert client.ready()
        with pytest.raises(Problem, match="401 key_missing"):
            client.model()


def test_a_server_of_a_folder_and_one_that_is_not_there(running: Running, makes: Makes) -> None:
    with makes(f"{running.url}/flora/", KEY) as client, pytest.raises(Problem) as raised:
        client.model()
    assert raised.value.code == "not_found"
    running_port = running.url.rpartition(":")[2]
    with makes(running.url.replace(running_port, "1"), retries=PATIENT) as client:
        assert not client.live()
        assert not client.ready()
        with pytest.raises(Unreachable) as lost:
            client.model()
    assert lost.value.passing
    assert isinstance(lost.value.__cause__, httpx.ConnectError)


class Stub:
    """A server that gives the answers it is told to, and keeps what it was asked."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers, self.asked = list(answers), list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.asked.append(request)
        result = self.answers.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def client(self, makes: Makes, **options: Any) -> Any:
        """A client of either kind that asks this one."""
        kind = httpx.Client if makes is Client else httpx.AsyncClient
        http = kind(transport=httpx.MockTransport(self))
        return makes("https://flora.example.org/base", "k", http=http, **options)


def busy(after: str = "0") -> httpx.Response:
    return httpx.Response(503, headers={"Retry-After": after})


def test_the_same_upload_is_sent_with_every_try(makes: Makes) -> None:
    result = json.loads(EXAMPLES.read_text("utf-8"))["identify"]["200"]
    stub = Stub(busy(), httpx.ReadError("gone"), httpx.Response(200, json=result))
    with stub.client(makes, retries=PATIENT) as client:
        answer = client.identify(io.BytesIO(PHOTO), io.BytesIO(PHOTO))
    assert answer.best_match == result["best_match"]
    assert len(stub.asked) == 3
    for request in stub.asked:
        assert str(request.url) == "https://flora.example.org/base/v1/identify"
        assert request.headers["authorization"] == "Bearer k"
        assert request.content.count(PHOTO) == 2
        assert b'filename="photo"' in request.content


def test_feedback_is_repeated_with_one_key(makes: Makes) -> None:
    receipt = {"request_id": "a", "in_set": None, "photos": 0}
    stub = Stub(httpx.ConnectTimeout("slow"), busy(), httpx.Response(202, json=receipt))
    stub.answers += [httpx.Response(202, json=receipt)] * 2
    with stub.client(makes, retries=PATIENT) as client:
        client.feedback("a", "1001", consent=True)
        client.feedback("a", "1001")
        client.feedback("a", "1001", idempotency_key="mine")
    keys = [request.headers["idempotency-key"] for request in stub.asked]
    assert len(set(keys[:3])) == 1
    assert keys[3] != keys[0]
    assert keys[4] == "mine"


def test_health_is_asked_once(makes: Makes) -> None:
    stub = Stub(busy(), httpx.ConnectError("nobody"), httpx.Response(404))
    with stub.client(makes) as client:
        assert client.ready() is False
        assert client.live() is False
        with pytest.raises(Problem, match="404"):
            client.ready()
    paths = [request.url.path for request in stub.asked]
    assert paths == ["/base/readyz", "/base/livez", "/base/readyz"]


def test_a_try_waits_for_the_network_no_longer_than_asked(makes: Makes) -> None:
    stub = Stub(httpx.ReadTimeout(""), httpx.Response(404))
    retries = Retries(first_s=0.0, total_s=5.0)
    with stub.client(makes, timeout=2.5, retries=retries) as client, pytest.raises(NoAnswer):
        client.model()
    assert [set(request.extensions["timeout"].values()) for request in stub.asked] == [{2.5}] * 2
    stub.answers = [httpx.ReadTimeout("")]
    text = "no answer from https://flora.example.org/base: ReadTimeout"
    with stub.client(makes, retries=Retries(tries=1)) as client, pytest.raises(NoAnswer) as raised:
        client.model()
    assert str(raised.value) == text


def test_a_wait_is_waited(makes: Makes, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def no_time(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("florilege_client.client.time.sleep", slept.append)
    monkeypatch.setattr("florilege_client.client.asyncio.sleep", no_time)
    stub = Stub(busy("2"), httpx.Response(404))
    with stub.client(makes) as client, pytest.raises(Problem):
        client.model()
    assert len(slept) == 1
    assert 2.0 <= slept[0] <= 2.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"base_url": "flora.example.org"}, "must begin with http"),
        ({"base_url": None}, "must begin with http"),
        ({"base_url": "http://a", "timeout": 0}, "timeout must be more than 0"),
    ],
)
def test_what_cannot_be_used_is_refused(makes: Makes, arguments: dict[str, Any], said: str) -> None:
    kind = Client if makes is Client else AsyncClient
    with pytest.raises(ValueError, match=said):
        kind(**arguments)


def test_photos_that_are_none_are_refused_before_anything_is_sent(
    makes: Makes, tmp_path: Path
) -> None:
    with Stub().client(makes) as client:
        with pytest.raises(ValueError, match="needs a photo"):
            client.identify()
        with pytest.raises(FileNotFoundError):
            client.identify(tmp_path / "none.jpg")
        for photos in ([b"1", b"2"], None):
            with pytest.raises(ValueError, match=r"identify\(\*photos\); got (list|NoneType)"):
                client.identify(photos)
        with pytest.raises(ValueError, match="binary mode"):
            client.identify(io.StringIO("text"))


def test_importing_it_needs_httpx_alone_and_says_so() -> None:
    heavy = "'numpy', 'PIL', 'torch', 'onnxruntime', 'pydantic', 'fastapi', 'server', 'models'"
    light = f"import sys, florilege_client; assert not {{{heavy}}} & set(sys.modules)"
    lacks = "import sys; sys.modules['httpx'] = None; import florilege_client"
    for code, label in ((light, ""), (lacks, "pip install httpx")):
        command = [sys.executable, "-c", code]
        process = subprocess.run(command, cwd=PLACE, capture_output=True, text=True, check=False)
        assert label in process.stderr
        assert bool(process.returncode) is bool(label), process.stderr
