"""A client of an application in this process, and what it answers."""

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from florilege.server.app import create_app
from florilege.server.settings import Settings


def open_client(bundle: Path, headers: dict[str, str] | None = None, **settings: Any) -> TestClient:
    """A client of an application with these settings; it runs in a ``with`` block."""
    return TestClient(create_app(Settings(bundle=bundle, **settings)), headers=headers)


def identify(client: TestClient, *photos: bytes, **query: Any) -> dict[str, Any]:
    """The answer to one photo, sent as it is, or to several, sent as a form."""
    files = [("images", ("p.png", photo)) for photo in photos]
    payload: dict[str, Any] = {"files": files} if len(photos) > 1 else {"content": photos[0]}
    response = client.post("/v1/identify", params=query, **payload)
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content
