"""Write the golden `openapi.json` and its examples anew: `python -m tests.server.write_golden`."""

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from florilege.files import write_atomic
from tests.server import garden
from tests.server.http_client import open_client

GOLDEN = Path(__file__).parents[1] / "golden" / "openapi.json"
ID = "9b2f0c6e4d1a4f0c8e7a35d2b1f4c6a0"  # of the answer in the examples
# A bundle holds the time of its calibration: the hashes in the examples stay the same.
BUNDLE = "27e73bdd0966efb39e794ea08ae7284bbf0fcf7454b048a5ac444c7013ee002c"
CALIBRATION = "2c902265ed05e1081dd4ee27cad1b7df57cb39bf1230e422fd65c9b289cf4bfd"
EXAMPLES = Path(__file__).parents[2] / "server" / "http" / "examples.json"


def main() -> None:
    """Query the application of a temporary bundle, and write its description."""
    with tempfile.TemporaryDirectory() as folder:
        bundle, store = garden.grow(Path(folder)), Path(folder) / "feedback"
        with open_client(bundle, {"X-Request-Id": "3f1c7a"}, feedback_store=store) as client:
            _write(EXAMPLES, examples(client))
            _write(GOLDEN, client.get("/openapi.json").json())


def examples(client: TestClient) -> dict[str, dict[str, Any]]:
    """Real answers by operation and status."""
    result = defaultdict[str, dict[str, Any]](dict)
    answer = client.post("/v1/identify?include=rollup", content=garden.photo(2))
    body, model = {"request_id": answer.json()["id"], "class_id": "1001"}, answer.json()["model"]
    constant = {
        body["request_id"]: ID,
        model["bundle_sha256"]: BUNDLE,
        model["calibration_id"]: CALIBRATION,
    }
    for operation, response in (
        ("identify", answer),
        ("identify", client.post("/v1/identify", content=b"<html>")),
        ("identify", client.post("/v1/identify?k=2.71828", content=garden.photo(2))),
        ("classes", client.get("/v1/classes?limit=1&lang=fr")),
        ("one_class", client.get("/v1/classes/1001")),
        ("one_class", client.get("/v1/classes/1000")),
        ("feedback", client.post("/v1/feedback", json=body)),
        ("readyz", client.get("/readyz")),
    ):
        text = response.text
        for own, fixed in constant.items():
            text = text.replace(own, fixed)
        document = json.loads(text)
        result[operation][str(response.status_code)] = document
    return result


def _write(path: Path, content: object) -> None:
    write_atomic(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
