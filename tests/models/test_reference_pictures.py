"""Reference pictures of a bundle: several of each class, read one at a time."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from florilege.errors import BundleError, DataError
from florilege.models import reference_pictures
from florilege.models.bundle import PICTURES, open_bundle, replace_files, set_pictures
from florilege.models.reference_pictures import (
    SIDE,
    Credit,
    PictureFile,
    ReferencePictures,
    in_turn,
)
from tests.models.pictures import noise
from tests.server import garden


def picture(path: Path, side: int = 600, organ: str | None = None) -> PictureFile:
    """A file with noise."""
    noise(side, side // 2).save(path)
    return PictureFile(path=path, credit=Credit("A. Botanist", "CC0", organ))


def test_organs_take_turns_in_the_order_of_the_table() -> None:
    organs = ["leaf", "leaf", "flower", "leaf", "flower", None]
    files = [
        PictureFile(path=Path(str(number)), credit=Credit(organ=organ))
        for number, organ in enumerate(organs)
    ]
    assert [int(each.path.name) for each in in_turn(files)] == [0, 2, 5, 1, 4, 3]


def test_a_bundle_holds_pictures_and_their_credits_and_the_first_is_the_thumbnail(
    tmp_path: Path,
) -> None:
    folder = garden.plant(tmp_path / "bundle")
    rows = {
        "1012": [picture(tmp_path / "a.png", organ="leaf"), picture(tmp_path / "b.png", 90)],
        "unknown": [picture(tmp_path / "c.png")],
    }
    before = open_bundle(folder).read_thumbnails()
    bundle = set_pictures(folder, rows, source="table", most=6)
    pictures = bundle.open_pictures()
    assert [each.organ for each in pictures.credits("1012")] == ["leaf", None]
    assert pictures.credits("1001") == ()
    sizes = [Image.open(io.BytesIO(pictures.read("1012", number))).size for number in (0, 1)]
    assert sizes == [(SIDE, SIDE // 2), (90, 45)]
    item = bundle.classes[bundle.classes.index_of["1012"]]
    assert item.thumbnail is not None
    assert item.thumbnail.author == "A. Botanist"
    after = bundle.read_thumbnails()
    assert after.pop("1012") != after["1011"]
    assert after == before
    again = set_pictures(folder, {"1001": rows["1012"]}, source="table", most=1)
    assert len(again.open_pictures().credits("1001")) == 1
    assert again.open_pictures().credits("1012") == ()  # in place of the earlier ones
    assert pictures.read("1012", 0).startswith(b"\xff\xd8")  # of the bundle that was opened


def test_unusable_pictures_are_listed_and_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = garden.plant(tmp_path / "bundle")
    sha256 = open_bundle(folder).sha256
    good = picture(tmp_path / "a.png")
    wrong = PictureFile(path=tmp_path / "none.png", credit=Credit())
    with pytest.raises(DataError, match=r"table: 1 of 2 pictures cannot be used.*none\.png"):
        set_pictures(folder, {"1001": [good, wrong]}, source="table", most=6)
    with pytest.raises(DataError, match="none of its class ids, such as 'x'"):
        set_pictures(folder, {"x": [good]}, source="table", most=6)
    monkeypatch.setattr(reference_pictures, "MOST_BYTES", 100)
    with pytest.raises(DataError, match="choose fewer of each class"):
        set_pictures(folder, {"1001": [good]}, source="table", most=6)
    assert open_bundle(folder).sha256 == sha256


def packed(members: Mapping[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def of_index(index: bytes, position: str = "0", kind: int = zipfile.ZIP_STORED) -> bytes:
    return packed({f"{position}/0.jpg": b"x" * 40, "index.json": index}, kind)


INDEX = b'{"0": [{"author": null}]}'
WHOLE = of_index(INDEX)
DAMAGED = {
    "not a zip": b"no zip",
    "index.json is compressed": packed({"index.json": bytes(10**6)}, zipfile.ZIP_DEFLATED),
    "jpg is compressed": of_index(INDEX, kind=zipfile.ZIP_DEFLATED),
    "it lacks 0/0.jpg": packed({"index.json": INDEX}),
    "update sequence": of_index(b"[1]"),
    "recursion": of_index(b"[" * 10**5),
    "index out of range": of_index(b'{"99": [{"author": null}]}', "99"),
    "zip: 0/0.jpg is damaged": WHOLE.replace(b"0/0.jpg", b"1/0.jpg", 1),
    "0/0.jpg is damaged": WHOLE.replace(b"x" * 40, b"y" * 40),
    "is compressed": WHOLE.replace(b"\x14\0\0\0\0\0", b"\x14\0\0\0\x63\0"),
    "damaged zip": WHOLE[:-6] + b"\xff" * 4 + bytes(2),
}


@pytest.mark.parametrize(("fault", "content"), DAMAGED.items(), ids=DAMAGED)
def test_a_damaged_file_is_refused(tmp_path: Path, fault: str, content: bytes) -> None:
    folder = garden.plant(tmp_path / "bundle")
    bundle = replace_files(folder, {PICTURES: content})
    with pytest.raises(BundleError, match=rf"damaged .*{fault}.* run `florilege bundle set-thumb"):
        bundle.open_pictures()
    assert ReferencePictures(bundle.classes, None).credits("1001") == ()
