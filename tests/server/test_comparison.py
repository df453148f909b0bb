"""What helps to tell a class from others: reference pictures, and what it is confused with."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from florilege.errors import BundleError
from florilege.models.bundle import (
    LOOK_ALIKES,
    open_bundle,
    replace_files,
    set_pictures,
)
from florilege.models.reference_pictures import Credit, PictureFile
from tests.server import garden
from tests.server.http_client import open_client


@pytest.fixture
def pictured(served: Path, tmp_path: Path) -> Iterator[TestClient]:
    """A server with two pictures of one class, which looks like two others."""
    (tmp_path / "a.png").write_bytes(garden.photo(5))
    row = [
        PictureFile(path=tmp_path / "a.png", credit=Credit("A. B.", "CC0", organ))
        for organ in ("flower", None)
    ]
    set_pictures(served, {"1006": row}, source="table", most=6)
    replace_files(served, {LOOK_ALIKES: b'{"5": [6, 9]}'})
    with open_client(served) as client:
        yield client


def test_a_class_has_its_pictures_and_those_it_is_confused_with(pictured: TestClient) -> None:
    details = pictured.get("/v1/classes/1006?lang=fr").json()
    assert [each["organ"] for each in details["pictures"]] == ["flower", None]
    assert [each["class_id"] for each in details["look_alikes"]] == ["1007", "1010"]
    assert details["look_alikes"][0]["taxon"]["common_names"][0]["name"] == "pensée"
    for each in details["pictures"]:
        response = pictured.get(f"/{each['url']}")
        assert response.headers["content-type"] == "image/jpeg"
        assert response.headers["cache-control"] == "max-age=3600"
        assert response.content.startswith(b"\xff\xd8")
    entry = next(
        e for e in pictured.get("/v1/classes").json()["classes"] if e["class_id"] == "1006"
    )
    assert "pictures" not in entry  # of 10,000 classes nobody wants all


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("class_id=1006&number=3", "thumbnail_not_found"),
        ("class_id=1007&number=1", "thumbnail_not_found"),
        ("class_id=1006&number=0", "invalid_parameter"),
    ],
)
def test_a_picture_that_does_not_exist_is_refused(
    pictured: TestClient, query: str, code: str
) -> None:
    assert pictured.get(f"/v1/thumbnails?{query}").json()["code"] == code


def test_a_calibration_counts_which_classes_share_sets(client: TestClient, bundle: Path) -> None:
    details = client.get("/v1/classes/1006").json()
    assert details["pictures"] == []
    assert details["look_alikes"][0]["class_id"] == "1007"  # the other violet
    rows = open_bundle(bundle).read_look_alikes()
    assert all(own in rows[other] or len(rows[other]) > 3 for own in rows for other in rows[own])


@pytest.mark.parametrize(
    "content", [b'{"0": [99]}', b'{"0": [1e999]}', b'{"x": []}', b'{"0": 1}', b"[]"]
)
def test_damaged_look_alikes_are_refused(served: Path, content: bytes) -> None:
    damaged = replace_files(served, {LOOK_ALIKES: content})
    with pytest.raises(BundleError, match="damaged"):
        damaged.read_look_alikes()
