"""Photos of feedback: kept with consent alone, without what else came with them, within bounds."""

import io
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from starlette.testclient import TestClient

from florilege.models.images import Header, plain_jpeg
from florilege.server.app import create_app
from florilege.server.background import feedback_photos
from florilege.server.background.feedback_photos import FeedbackPhotos
from florilege.server.inference.decoding_budget import PixelBudget
from florilege.server.prometheus import Metrics
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.asking import identify
from tests.server.background.test_feedback import about, say
from tests.server.background.test_feedback_store import lines_of
from tests.server.counted import value
from tests.server.running import Running, wait_for
from tests.server.test_problems import check
from tests.server.test_reload import recalibrated

SECRET = b"48.8584N 2.2945E by the gate"


def jpeg(color: tuple[int, int, int] = (90, 40, 160), size: tuple[int, int] = (300, 200)) -> bytes:
    """A photo that says where and by whom it was taken, in every way a JPEG can, on its side."""
    picture = Image.new("RGB", size, color)
    picture.paste((250, 240, 20), (0, 0, size[0] // 4, size[1] // 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: to be turned by 90 degrees
    exif[0x010E] = SECRET.decode()
    exif.get_ifd(0x8825)[29] = SECRET.decode()  # GPS date, as text
    made = io.BytesIO()
    picture.save(made, "JPEG", exif=exif, comment=SECRET, xmp=SECRET, icc_profile=SECRET)
    content = made.getvalue()
    iptc = b"Photoshop 3.0\x008BIM" + SECRET
    return content[:2] + b"\xff\xed" + struct.pack(">H", len(iptc) + 2) + iptc + content[2:]


PHOTO = jpeg()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "feedback"


@contextmanager
def serving(bundle: Path, store: Path, **settings: Any) -> Iterator[TestClient]:
    made = Settings(bundle=bundle, feedback_store=store, **{"feedback_photos": True, **settings})
    with TestClient(create_app(made)) as client:
        yield client


@pytest.fixture
def client(bundle: Path, store: Path) -> Iterator[TestClient]:
    with serving(bundle, store) as client:
        yield client


def opened(path: Path) -> Image.Image:
    return Image.open(io.BytesIO(path.read_bytes()))


def became(client: Any, outcome: str) -> float:
    return value(client.app.state.engine.metrics, "feedback_photos_total", outcome=outcome)


def files(store: Path) -> list[Path]:
    return sorted((store / "photos").iterdir())


def test_a_photo_is_kept_with_consent_and_its_line_names_it(
    client: TestClient, store: Path
) -> None:
    answer = identify(client, PHOTO)
    response = say(client, about(answer, "1001", consent=True))
    assert (response.status_code, response.json()["photos"]) == (202, 1)
    (row,) = lines_of(store)
    (path,) = files(store)
    assert (row["consent"], row["photos"]) == (True, [f"photos/{path.name}"])
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    assert became(client, "kept") == 1


@pytest.mark.parametrize("consent", [None, False])
def test_without_consent_no_photo_is_ever_written(
    client: TestClient, store: Path, consent: bool | None
) -> None:
    said = {} if consent is None else {"consent": consent}
    for class_id in ("1001", "not_listed"):
        answer = identify(client, PHOTO)
        assert say(client, about(answer, class_id, **said)).json()["photos"] == 0
    assert files(store) == []
    assert [(row["consent"], row["photos"]) for row in lines_of(store)] == [(False, [])] * 2
    for path in store.rglob("*"):
        assert path.is_dir() or b"\xff\xd8" not in path.read_bytes()


def test_consent_is_true_or_false_and_nothing_like_it(client: TestClient, store: Path) -> None:
    answer = identify(client, PHOTO)
    for consent in ("true", 1, "yes", None, [True]):
        check(say(client, about(answer, "1001", consent=consent)), 400, "invalid_parameter")
    assert files(store) == []


def test_a_server_that_keeps_no_photos_takes_the_words_alone(bundle: Path, store: Path) -> None:
    with serving(bundle, store, feedback_photos=False) as client:
        answer = identify(client, PHOTO)
        assert say(client, about(answer, "1001", consent=True)).json()["photos"] == 0
        assert client.get("/v1/model").json()["feedback_photos"] is False
    (row,) = lines_of(store)
    assert (row["consent"], row["photos"]) == (True, [])
    assert [path.suffix for path in store.rglob("*")] == [".jsonl"]
    with serving(bundle, store) as client:
        assert client.get("/v1/model").json()["feedback_photos"] is True


def test_nothing_but_the_pixels_is_kept_upright(client: TestClient, store: Path) -> None:
    assert PHOTO.count(SECRET) == 6
    answer = identify(client, PHOTO)
    say(client, about(answer, "1001", consent=True))
    (path,) = files(store)
    content = path.read_bytes()
    for word in (SECRET, b"Exif", b"http://ns.adobe.com", b"Photoshop", b"ICC_PROFILE", b"2.2945"):
        assert word not in content
    markers = content.split(b"\xff\xda")[0]
    assert b"\xff\xe1" not in markers  # EXIF and XMP
    assert b"\xff\xfe" not in markers  # a comment
    kept = np.asarray(opened(path).convert("RGB"), dtype=float)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(PHOTO))).convert("RGB")
    assert kept.shape == (300, 200, 3)
    assert np.abs(kept - np.asarray(upright, dtype=float)).mean() < 3


@pytest.mark.parametrize(("side", "kept"), [(100, (67, 100)), (300, (200, 300)), (400, (200, 300))])
def test_larger_photos_are_made_smaller(
    client: TestClient,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    side: int,
    kept: tuple[int, int],
) -> None:
    monkeypatch.setattr(feedback_photos, "SIDE", side)
    answer = identify(client, PHOTO)
    say(client, about(answer, "1001", consent=True))
    (path,) = files(store)
    assert opened(path).size == kept


def test_all_photos_of_an_answer_are_kept_in_their_order(client: TestClient, store: Path) -> None:
    colours = [(200, 30, 30), (30, 200, 30), (30, 30, 200)]
    answer = identify(client, *(jpeg(colour) for colour in colours))
    assert say(client, about(answer, "1001", consent=True)).json()["photos"] == 3
    (row,) = lines_of(store)
    for name, colour in zip(row["photos"], colours, strict=True):
        middle = np.asarray(opened(store / name))[150, 100]
        assert np.abs(np.subtract(middle, colour, dtype=float)).max() < 10


def test_the_last_word_decides_also_about_the_photos(client: TestClient, store: Path) -> None:
    answer = identify(client, PHOTO)
    for class_id, consent, kept in (
        ("1001", True, 1),
        ("1002", True, 1),  # nothing is written twice
        ("1002", False, 0),  # taken back
        ("1003", False, 0),
        ("1003", True, 1),
    ):
        said = say(client, about(answer, class_id, consent=consent))
        assert said.json()["photos"] == kept
        assert len(files(store)) == kept
        assert lines_of(store)[-1]["photos"] == [f"photos/{path.name}" for path in files(store)]
    names = {tuple(row["photos"]) for row in lines_of(store)}
    assert len(names) == 2
    assert became(client, "kept") == 2
    assert became(client, "withdrawn") == 1


def test_a_repeated_key_keeps_nothing_twice_and_says_the_same(
    client: TestClient, store: Path
) -> None:
    answer, key = identify(client, PHOTO), {"Idempotency-Key": "a"}
    given = about(answer, "1001", consent=True)
    first, again = say(client, given, **key), say(client, given, **key)
    assert first.json() == again.json() == {**first.json(), "photos": 1}
    check(say(client, {**given, "consent": False}, **key), 422, "idempotency_key_reused")
    assert len(files(store)) == 1


def test_the_oldest_photos_are_forgotten_beyond_the_bytes_held(bundle: Path, store: Path) -> None:
    with serving(bundle, store, feedback_photos_held_bytes=2 * len(PHOTO)) as client:
        answers = [identify(client, PHOTO) for _ in range(3)]
        huge = identify(client, PHOTO, PHOTO, PHOTO)  # more than is ever held
        kept = [
            say(client, about(answer, "1001", consent=True)).json()["photos"]
            for answer in (*answers, huge)
        ]
        assert kept == [0, 1, 1, 0]
        assert became(client, "forgotten") == 2
    assert len(lines_of(store)) == 4


def test_no_more_are_kept_than_the_disk_may_hold_also_after_a_restart(
    bundle: Path, store: Path
) -> None:
    def one_more(client: TestClient) -> int:
        answer = identify(client, PHOTO)
        kept: int = say(client, about(answer, "1001", consent=True)).json()["photos"]
        return kept

    with serving(bundle, store) as client:
        assert one_more(client) == 1
    size = files(store)[0].stat().st_size
    for most, kept in ((2 * size - 1, 0), (2 * size, 1), (2 * size, 0)):
        with serving(bundle, store, feedback_photos_max_bytes=most) as client:
            assert one_more(client) == kept
    with serving(bundle, store, feedback_photos_max_bytes=3 * size) as client:
        answer = identify(client, PHOTO)
        for consent, count in ((True, 3), (False, 2), (True, 3)):  # what is taken back leaves room
            say(client, about(answer, "1001", consent=consent))
            assert len(files(store)) == count


def test_two_callers_with_one_request_id_each_give_their_own_photo(
    client: TestClient, store: Path
) -> None:
    sent = {"X-Request-Id": "mine"}
    colours = ((200, 30, 30), (30, 30, 200))
    posts = [client.post("/v1/identify", content=jpeg(each), headers=sent) for each in colours]
    for response in posts:
        assert response.headers["x-request-id"] == "mine"
        say(client, about(response.json(), "1001", consent=True))
    (one, other) = [row["photos"] for row in lines_of(store)]
    assert one != other
    for names, channel in ((one, 0), (other, 2)):
        assert np.argmax(np.asarray(opened(store / names[0]))[150, 100]) == channel


def test_after_a_swap_a_photo_goes_with_the_bundle_that_answered_it(
    bundle: Path, store: Path, tmp_path: Path
) -> None:
    served = Path(shutil.copytree(bundle, tmp_path / "served"))
    settings = Settings(bundle=served, feedback_store=store, feedback_photos=True)
    with Running(settings) as running:
        client: Any = TestClient(running.app)
        old = identify(client, jpeg((200, 30, 30)))
        recalibrated(served, "new")
        running.app.state.reloader.tell()
        wait_for(lambda: running.engine.pipeline.model.calibration_id == "new")
        new = identify(client, jpeg((30, 30, 200)))
        for answer in (old, new):
            say(client, about(answer, "1001", consent=True))
    rows = lines_of(store)
    assert [row["calibration_id"] for row in rows] == [
        old["model"]["calibration_id"],
        "new",
    ]
    for row, channel in zip(rows, (0, 2), strict=True):
        assert np.argmax(np.asarray(opened(store / row["photos"][0]))[150, 100]) == channel


def held(folder: Path, **limits: int) -> FeedbackPhotos:
    folder.mkdir(exist_ok=True)
    bounds = {"held_bytes": 10**6, "max_bytes": 10**6, **limits}
    return FeedbackPhotos(folder, Metrics(), **bounds)


def test_a_photo_that_cannot_be_written_leaves_none_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = held(tmp_path / "photos")
    photos.remember("a", [PHOTO, PHOTO])
    write: Callable[[Path, bytes], None] = feedback_photos._write

    def full(path: Path, content: bytes) -> None:
        write(path, content[: len(content) // 2])
        if path.name.endswith("-2.jpg"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(feedback_photos, "_write", full)
    with pytest.raises(OSError, match="No space"):
        photos.keep("a", PixelBudget())
    assert list((tmp_path / "photos").iterdir()) == []
    monkeypatch.undo()
    assert len(photos.keep("a", PixelBudget())) == 2


def test_a_disk_that_fails_is_a_503_and_stores_no_line(
    client: TestClient, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    answer = identify(client, PHOTO)
    with monkeypatch.context() as patched:
        patched.setattr(feedback_photos, "_write", fail)
        given = about(answer, "1001", consent=True)
        check(say(client, given, **{"Idempotency-Key": "a"}), 503, "feedback_not_stored")
    assert lines_of(store) == []
    assert say(client, given, **{"Idempotency-Key": "a"}).json()["photos"] == 1


def test_photos_are_decoded_within_the_budget_of_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget, seen = PixelBudget(1000), []
    make = plain_jpeg

    def watched(header: Header, **sizes: int) -> bytes:
        seen.append(budget.held)
        return make(header, **sizes)

    monkeypatch.setattr(feedback_photos, "plain_jpeg", watched)
    photos = held(tmp_path / "photos")
    photos.remember("a", [garden.photo(2)])
    photos.keep("a", budget)
    assert seen == [Image.open(io.BytesIO(garden.photo(2))).size[0] ** 2]
    assert budget.held == 0


def test_a_photo_that_cannot_be_decoded_whole_is_not_kept(tmp_path: Path) -> None:
    photos = held(tmp_path / "photos")
    photos.remember("a", [PHOTO, PHOTO[: len(PHOTO) // 2]])
    assert photos.keep("a", PixelBudget()) == []
    assert list((tmp_path / "photos").iterdir()) == []
