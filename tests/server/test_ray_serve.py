"""Ray Serve gives the answers of `florilege serve`, byte for byte, with several replicas."""

import http.client
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from florilege.errors import UsageError
from florilege.plugins.ray import demand_ray
from tests.server import garden
from tests.server.server_thread import Running

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

ASKED = {
    "a photo": ("POST", "/v1/identify", garden.photo(3, blur=0.1)),
    "another K": ("POST", "/v1/identify?k=2&include=scores,rollup&lang=fr", garden.photo(5)),
    "something else": ("POST", "/v1/identify?reject=true", garden.DULL),
    "no picture": ("POST", "/v1/identify", b"no picture"),
    "a K nobody calibrated": ("POST", "/v1/identify?k=900", garden.photo(1)),
    "an unknown parameter": ("POST", "/v1/identify?kk=1", garden.photo(1)),
    "the model": ("GET", "/v1/model", b""),
    "classes": ("GET", "/v1/classes?limit=3", b""),
    "nothing there": ("GET", "/v1/nothing", b""),
    "readiness": ("GET", "/readyz", b""),
    "too many bytes": ("POST", "/v1/identify", bytes(3 * 2**20)),
}


@pytest.fixture(scope="module")
def settings(bundle: Path) -> dict[str, Any]:
    return {"bundle": str(bundle), "device": "cpu", "max_body_bytes": 2**20}


@pytest.fixture(scope="module")
def plain(settings: dict[str, Any]) -> Iterator[int]:
    with Running(**settings) as running:
        yield running.port


@pytest.fixture(scope="module")
def replicated(settings: dict[str, Any]) -> Iterator[int]:
    """The port of Ray Serve with two replicas."""
    ray = demand_ray()
    from ray import serve

    from florilege.server.ray_serve import application

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        app = application({**settings, "threads": 1})
        two = app._bound_deployment.options(num_replicas=2).bind()
        serve.run(two, name="florilege", route_prefix="/", logging_config={"log_level": "ERROR"})
        yield port
        serve.shutdown()
    finally:
        ray.shutdown()


def ask(port: int, method: str, path: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body or None, {"X-Request-Id": "the-same"})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        content = re.sub(rb'^{"id":"\w+"', b'{"id":""', answer.read())  # of the process
        return answer.status, content, headers
    finally:
        connection.close()


@pytest.mark.parametrize("what", ASKED)
def test_answers_are_the_same_byte_for_byte(what: str, plain: int, replicated: int) -> None:
    status, body, headers = ask(plain, *ASKED[what])
    for _ in range(4):  # so that both replicas are asked
        found_status, result, found_headers = ask(replicated, *ASKED[what])
        assert (found_status, result) == (status, body)
        for name in ("content-type", "x-request-id", "content-security-policy", "etag"):
            assert found_headers.get(name) == headers.get(name)


@pytest.mark.parametrize("name", ["feedback_store", "watch_state"])
def test_settings_for_a_single_process_are_refused(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    from florilege.server.ray_serve import application

    with pytest.raises(UsageError, match=f"{name}: each process needs its own"):
        application({**settings, name: str(tmp_path / "kept")})


def test_an_unknown_setting_is_refused_by_name(settings: dict[str, Any]) -> None:
    from florilege.server.ray_serve import application

    with pytest.raises(ValueError, match="thread_count"):
        application({**settings, "thread_count": "1"})


def test_ray_reports_nothing_to_its_makers() -> None:
    demand_ray()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
