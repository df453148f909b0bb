"""Write the golden `openapi.json` and its examples anew: `python -m tests.server.write_golden`."""

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from models.files import write_atomic
from server.app import create_app
from server.settings import Settings
from tests.server import garden

GOLDEN = Path(__file__).parents[1] / "golden" / "openapi.json"
EXAMPLES = Path(__file__).parents[2] / "server" / "http" / "examples.json"


def main() -> None:
    """Ask the application of a throw-away bundle, and describe it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            bundle=garden.grow(Path(folder)), feedback_store=Path(folder) / "feedback"
        )
        app = create_app(settings)
        with TestClient(app, headers={"X-Request-Id": "3f1c7a"}) as client:
            _write(EXAMPLES, examples(client))
    _write(GOLDEN, app.openapi())


def examples(client: TestClient) -> dict[str, dict[str, Any]]:
    """Real answers by operation and status."""
    found = defaultdict[str, dict[str, Any]](dict)
    for operation, response in (
        ("identify", client.post("/v1/identify?include=rollup", content=garden.photo(2))),
        ("identify", client.post("/v1/identify", content=b"<html>")),
        ("identify", client.post("/v1/identify?k=2.71828", content=garden.photo(2))),
        ("classes", client.get("/v1/classes?limit=1&lang=fr")),
        ("one_class", client.get("/v1/classes/1001")),
        ("one_class", client.get("/v1/classes/1000")),
        (
            "feedback",
            client.post("/v1/feedback", json={"request_id": "3f1c7a", "class_id": "1001"}),
        ),
        ("readyz", client.get("/readyz")),
    ):
        found[operation][str(response.status_code)] = response.json()
    return found


def _write(path: Path, content: object) -> None:
    write_atomic(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
