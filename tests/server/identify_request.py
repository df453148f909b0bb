"""Ask an application what photos show."""

from typing import Any

from starlette.testclient import TestClient


def identify(client: TestClient, *photos: bytes, **query: Any) -> dict[str, Any]:
    """The answer to one photo, sent as it is, or to several, sent as a form."""
    files = [("images", ("p.png", photo)) for photo in photos]
    payload: dict[str, Any] = {"files": files} if len(photos) > 1 else {"content": photos[0]}
    response = client.post("/v1/identify", params=query, **payload)
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content
