"""Photos of feedback: kept only with consent, without metadata, within limits."""

import io
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from starlette.testclient import TestClient

from florilege.feedback_store import FILE, FeedbackStore, Row
from florilege.models.images import Header, plain_jpeg
from florilege.server import feedback
from tests.server import garden
from tests.server.background.feedback_rows import photos, rows, words
from tests.server.background.test_feedback import about, confirm, counted, say
from tests.server.http_client import identify, open_client
from tests.server.metric_values import value
from tests.server.test_problems import check

SECRET = b"48.8584N 2.2945E by the gate"


def jpeg(color: tuple[int, int, int] = (90, 40, 160), size: tuple[int, int] = (300, 200)) -> bytes:
    """A rotated photo that names its place and author in every way a JPEG can."""
    picture = Image.new("RGB", size, color)
    picture.paste((250, 240, 20), (0, 0, size[0] // 4, size[1] // 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: to be turned by 90 degrees
    exif[0x010E] = SECRET.decode()
    exif.get_ifd(0x8825)[29] = SECRET.decode()  # GPS date, as text
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", exif=exif, comment=SECRET, xmp=SECRET, icc_profile=SECRET)
    content = buffer.getvalue()
    iptc = b"Photoshop 3.0\x008BIM" + SECRET
    return content[:2] + b"\xff\xed" + struct.pack(">H", len(iptc) + 2) + iptc + content[2:]


PHOTO = jpeg()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "feedback"


def serving(bundle: Path, store: Path, **settings: Any) -> TestClient:
    return open_client(bundle, feedback_store=store, **{"feedback_photos": True, **settings})


@pytest.fixture
def client(bundle: Path, store: Path) -> Iterator[TestClient]:
    with serving(bundle, store) as client:
        yield client


def opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


def became(client: Any, outcome: str) -> float:
    return value(client.app.state.engine.metrics, "feedback_photos_total", outcome=outcome)


@pytest.mark.parametrize("licence", ["CC-BY-4.0", "CC0-1.0"])
def test_a_photo_is_kept_with_consent_under_the_licence_that_the_card_names(
    bundle: Path, store: Path, licence: str
) -> None:
    options = {} if licence == "CC-BY-4.0" else {"feedback_licence": licence}
    with serving(bundle, store, **options) as client:
        assert client.get("/v1/model").json()["feedback_licence"] == licence
        answer = identify(client, PHOTO)
        response = confirm(client, answer, "1001", consent=True)
        assert (response.status_code, response.json()["photos"]) == (202, 1)
        assert became(client, "kept") == 1
    (row,) = words(store)
    assert (row["consent"], row["photos"], row["licence"]) == (True, 1, licence)
    assert len(photos(store)) == 1
    for path in (store, store / FILE):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("consent", [None, False])
def test_without_consent_no_photo_is_ever_written(
    client: TestClient, store: Path, consent: bool | None
) -> None:
    result = {} if consent is None else {"consent": consent}
    for class_id in ("1001", "not_listed"):
        answer = identify(client, PHOTO)
        assert confirm(client, answer, class_id, **result).json()["photos"] == 0
    assert [(row["consent"], row["photos"], row["licence"]) for row in words(store)] == [
        (False, 0, None)
    ] * 2
    (path,) = store.iterdir()
    assert b"\xff\xd8\xff" not in path.read_bytes()


def test_a_server_that_keeps_no_photos_stores_only_the_feedback(bundle: Path, store: Path) -> None:
    with serving(bundle, store, feedback_photos=False) as client:
        answer = identify(client, PHOTO)
        assert confirm(client, answer, "1001", consent=True).json()["photos"] == 0
        card = client.get("/v1/model").json()
        assert (card["feedback_photos"], card["feedback_licence"]) == (False, None)
    (row,) = words(store)
    assert (row["consent"], row["photos"]) == (True, 0)
    assert photos(store) == []
    with serving(bundle, store) as client:
        assert client.get("/v1/model").json()["feedback_photos"] is True


def test_nothing_but_the_pixels_is_kept_upright(client: TestClient, store: Path) -> None:
    assert PHOTO.count(SECRET) == 6
    answer = identify(client, PHOTO)
    confirm(client, answer, "1001", consent=True)
    (content,) = photos(store)
    for word in (SECRET, b"Exif", b"http://ns.adobe.com", b"Photoshop", b"ICC_PROFILE", b"2.2945"):
        assert word not in content
    markers = content.split(b"\xff\xda")[0]
    assert b"\xff\xe1" not in markers  # EXIF and XMP
    assert b"\xff\xfe" not in markers  # a comment
    remaining = np.asarray(opened(content).convert("RGB"), dtype=float)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(PHOTO))).convert("RGB")
    assert remaining.shape == (300, 200, 3)
    assert np.abs(remaining - np.asarray(upright, dtype=float)).mean() < 3


@pytest.mark.parametrize(("side", "kept"), [(100, (67, 100)), (300, (200, 300)), (400, (200, 300))])
def test_larger_photos_are_made_smaller(
    client: TestClient,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    side: int,
    kept: tuple[int, int],
) -> None:
    monkeypatch.setattr(feedback, "MAX_SIDE", side)
    answer = identify(client, PHOTO)
    confirm(client, answer, "1001", consent=True)
    (content,) = photos(store)
    assert opened(content).size == kept


def test_all_photos_of_an_answer_are_kept_in_their_order(client: TestClient, store: Path) -> None:
    colours = [(200, 30, 30), (30, 200, 30), (30, 30, 200)]
    answer = identify(client, *(jpeg(colour) for colour in colours))
    identify(client, PHOTO)
    assert confirm(client, answer, "1001", consent=True).json()["photos"] == 3
    for content, colour in zip(photos(store), colours, strict=True):
        middle = np.asarray(opened(content))[150, 100]
        assert np.abs(np.subtract(middle, colour, dtype=float)).max() < 10


def test_the_last_feedback_also_decides_about_the_photos(client: TestClient, store: Path) -> None:
    answer = identify(client, PHOTO)
    for class_id, consent, each in (
        ("1001", True, 1),
        ("1002", True, 1),  # nothing is written twice
        ("1002", False, 0),  # taken back
        ("1003", False, 0),
        ("1003", True, 1),
    ):
        result = confirm(client, answer, class_id, consent=consent)
        assert result.json()["photos"] == each
        assert len(photos(store)) == each
        assert words(store)[-1]["photos"] == each
    assert became(client, "kept") == 2
    assert became(client, "withdrawn") == 1


def test_consent_is_taken_back_after_a_restart_and_nothing_remains_on_the_disk(
    bundle: Path, store: Path
) -> None:
    with serving(bundle, store) as client:
        answer = identify(client, PHOTO)
        confirm(client, answer, "1001", consent=True)
    (content,) = photos(store)
    assert content[100:200] in (store / FILE).read_bytes()
    with serving(bundle, store) as client:
        result = confirm(client, answer, "1001", consent=True)  # the same again
        assert result.json()["photos"] == 1
        assert confirm(client, answer, "1001", consent=False).json()["photos"] == 0
        assert became(client, "withdrawn") == 1
        assert confirm(client, answer, "1001", consent=True).json()["photos"] == 0  # forgotten
    assert photos(store) == []
    assert content[100:200] not in (store / FILE).read_bytes()


def test_a_full_store_refuses_photos_whole_and_lets_consent_be_taken_back(
    bundle: Path, store: Path
) -> None:
    with serving(bundle, store, feedback_max_bytes=100_000) as client:
        answers = []
        while True:
            answers.append(identify(client, PHOTO))
            if confirm(client, answers[-1], "1001", consent=True).status_code == 503:
                break
        stored = len(answers) - 1
        assert (len(words(store)), len(photos(store))) == (stored, stored)
        ids = {row["id"] for row in rows(store, "SELECT id FROM answers")}
        assert ids == {answer["id"] for answer in answers[:-1]}
        last = about(answers[0], "1002", consent=True, note="x" * 500)
        while say(client, last).status_code == 202:
            pass  # with words into the last room
        for answer in answers[: stored // 2]:
            response = confirm(client, answer, "1001", consent=False)
            assert response.status_code == 202
        assert len(photos(store)) == stored - stored // 2
        response = confirm(client, answers[-1], "1001", consent=True)
        assert (response.status_code, response.json()["photos"]) == (202, 1)  # there is room again


def test_the_oldest_photos_are_forgotten_beyond_the_bytes_held(bundle: Path, store: Path) -> None:
    with serving(bundle, store, feedback_photos_held_bytes=2 * len(PHOTO)) as client:
        answers = [identify(client, PHOTO) for _ in range(3)]
        huge = identify(client, PHOTO, PHOTO, PHOTO)  # more than is ever held
        for answer, photos_kept in zip((*answers, huge), (0, 1, 1, 0), strict=True):
            assert confirm(client, answer, "1001", consent=True).json()["photos"] == photos_kept
        assert became(client, "forgotten") == 2
    assert len(words(store)) == 4


def test_a_disk_that_fails_is_a_503_and_leaves_nothing(
    client: TestClient, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = FeedbackStore._insert

    def fail(self: FeedbackStore, into: str, row: Row) -> None:
        if "feedback" in into:  # the last of all
            raise sqlite3.OperationalError("disk I/O error")
        insert(self, into, row)

    answer = identify(client, PHOTO, PHOTO)
    options = about(answer, "1001", consent=True)
    with monkeypatch.context() as patched:
        patched.setattr(FeedbackStore, "_insert", fail)
        refused = say(client, options, **{"Idempotency-Key": "a"})
    document = check(refused, 503, "feedback_not_stored")
    assert document["retryable"] is True
    assert str(store) not in document["detail"]
    assert counted(client)["failed"] == 1
    assert (words(store), photos(store), rows(store, "SELECT * FROM answers")) == ([], [], [])
    assert say(client, options, **{"Idempotency-Key": "a"}).json()["photos"] == 2


@pytest.mark.parametrize("photo", [garden.photo(2), PHOTO], ids=["PNG", "JPEG"])
def test_photos_are_decoded_within_the_budget_of_pixels(
    bundle: Path, store: Path, monkeypatch: pytest.MonkeyPatch, photo: bytes
) -> None:
    calls, make = list[int](), plain_jpeg

    def watched(header: Header, **sizes: int) -> bytes:
        calls.append(budget.pixels_in_use)
        return make(header, **sizes)

    monkeypatch.setattr(feedback, "plain_jpeg", watched)
    with serving(bundle, store, max_decoding_pixels=1000) as client:
        state: Any = client.app
        budget = state.state.engine.pipeline.budget
        answer = identify(client, photo)
        confirm(client, answer, "1001", consent=True)
    width, height = opened(photo).size
    assert calls == [width * height]
    assert (budget.pixels_in_use, budget.limit) == (0, 1000)


def test_a_photo_that_cannot_be_decoded_whole_is_not_kept(client: Any, store: Path) -> None:
    answer = identify(client, PHOTO, PHOTO)
    client.app.state.feedback.photos.add(answer["id"], [PHOTO, PHOTO[: len(PHOTO) // 2]])
    assert confirm(client, answer, "1001", consent=True).json()["photos"] == 0
    assert photos(store) == []
    assert became(client, "unreadable") == 1
