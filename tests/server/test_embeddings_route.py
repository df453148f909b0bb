"""`POST /v1/embeddings`: the features that the network's last layer gets."""

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from starlette.testclient import TestClient

from florilege.models.bundle import open_bundle
from florilege.models.images import load
from florilege.models.session import Session
from tests.server import garden
from tests.server.http_client import open_client
from tests.server.test_problems import check

PHOTOS = [garden.photo(1), garden.photo(2)]


@pytest.mark.parametrize("photos", [PHOTOS, PHOTOS[:1]])
def test_features_are_those_of_the_network_as_numbers_and_in_base64(
    client: TestClient, bundle: Path, photos: list[bytes]
) -> None:
    session = Session(open_bundle(bundle), device="cpu")
    pixels = [load(photo, session.bundle.preprocess) for photo in photos]
    rows = [session.outputs(each[np.newaxis], features=True).features for each in pixels]
    expected = np.concatenate([row for row in rows if row is not None])
    files = [("images", ("a", photo)) for photo in photos]
    numbers = client.post("/v1/embeddings", files=files).json()
    texts = client.post("/v1/embeddings?base64=true", files=files).json()
    assert np.array_equal(np.array(numbers["embeddings"], np.float32), expected)
    decoded = [np.frombuffer(base64.b64decode(text), "<f4") for text in texts["base64"]]
    assert np.array_equal(np.stack(decoded), expected)
    assert (numbers["base64"], texts["embeddings"]) == (None, None)
    assert (numbers["dimensions"], numbers["model"]) == (3, client.get("/v1/model").json()["model"])


def test_what_has_no_features_is_refused(client: TestClient, bundle: Path) -> None:
    files = [("images", ("a", each)) for each in (PHOTOS[0], PHOTOS[1][:200])]
    for route in ("embeddings", "identify"):
        document = check(client.post(f"/v1/{route}", files=files), 422, "image_unreadable")
        assert document["detail"].startswith("photo 2")
    check(client.post("/v1/embeddings?k=3", content=PHOTOS[0]), 400, "unknown_parameter")
    with open_client(bundle) as other:
        engine = other.app.state.engine  # type: ignore[attr-defined]  # of our application
        without = replace(engine.pipeline, session=SimpleNamespace(dimensions=None))

        def replaced() -> Iterator[bytes]:
            engine.pipeline = without
            yield PHOTOS[0]

        for content in (replaced(), b"unread"):  # the model is replaced during the upload
            document = check(other.post("/v1/embeddings", content=content), 422, "no_features")
            assert "exports it again" in document["detail"]
