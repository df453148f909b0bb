"""A running server in a thread of the test process."""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

from florilege.server.app import create_app
from florilege.server.process import bind
from florilege.server.serve import GracefulServer
from florilege.server.settings import Settings

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of local servers: httpx reads all certificates for each client without one."""


def wait_for(condition: Callable[[], bool], *, seconds: float = 15) -> None:
    """Poll until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


class Running:
    """Listens on a free port of 127.0.0.1 until the block ends."""

    def __init__(self, bundle: Path, **settings: Any) -> None:
        self.app = create_app(Settings(bundle=bundle, **settings))
        self.engine = self.app.state.engine
        self._socket = bind("127.0.0.1", 0)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = GracefulServer(self.app)
        self._thread = threading.Thread(target=self.server.run, args=([self._socket],))

    def __enter__(self) -> "Running":
        self._thread.start()
        until = time.monotonic() + 20
        while not self.server.started:
            if time.monotonic() > until or not self._thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(timeout=20)
        self._socket.close()
        assert not self._thread.is_alive()

    def connection(self) -> http.client.HTTPConnection:
        """A new connection that is kept alive; the caller closes it."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[int, http.client.HTTPMessage, Any]:
        """Status, headers and document of an answer, on a connection of its own."""
        with closing(self.connection()) as connection:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return response.status, response.headers, json.loads(response.read())
