"""Class names set later are merged by class id, all or nothing; nothing else changes."""

from dataclasses import replace
from pathlib import Path

import pytest

from florilege.errors import BundleError, DataError, UsageError
from florilege.models.bundle import Bundle, name_classes, open_bundle
from florilege.models.classes import ClassInfo, Thumbnail
from florilege.models.thumbnails import make_thumbnail
from tests.florilege.test_files import holder
from tests.models.bundles import CLASSES, make_bundle
from tests.models.pictures import encode, scene

DAISY = ClassInfo(
    id="11",
    scientific_name="11",
    family="Asteraceae",
    common_names={"en": ("daisy",)},
    link="https://example.org/11",
)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "b", calibration=b"{}")


def told(*infos: ClassInfo) -> dict[str, ClassInfo]:
    return {info.id: info for info in infos}


def picture(folder: Path, width: int) -> tuple[Path, bytes]:
    """A picture file of this width, and its thumbnail."""
    content = encode(scene(width, 20), "png")
    (folder / f"{width}.png").write_bytes(content)
    return folder / f"{width}.png", make_thumbnail(content)


def test_what_is_told_is_merged_by_class_id_and_all_else_stays(bundle: Bundle) -> None:
    stranger = ClassInfo(id="99", scientific_name="Ignota")
    named = name_classes(bundle.path, told(stranger, DAISY), {}, source="c.csv")
    assert named == open_bundle(bundle.path)
    assert named.classes.items == (
        CLASSES[0],
        replace(DAISY, scientific_name="Bellis perennis", genus="Bellis", training_count=3),
    )
    files, before = dict(named.manifest.files), dict(bundle.manifest.files)
    assert files.pop("classes.json") != before.pop("classes.json")
    assert files == before
    assert named.sha256 != bundle.sha256
    assert named.read_thumbnails() == {}


def test_a_picture_comes_with_its_author_and_the_others_stay(
    bundle: Bundle, tmp_path: Path
) -> None:
    (first, small), (second, large) = picture(tmp_path, 20), picture(tmp_path, 40)
    rose = ClassInfo(id="10", scientific_name="10", thumbnail=Thumbnail(author="A"))
    daisy = replace(DAISY, thumbnail=Thumbnail(author="B", licence="CC0"))
    name_classes(bundle.path, told(rose, daisy), {"10": first, "11": first}, source="c.csv")
    other = replace(DAISY, thumbnail=Thumbnail(licence="CC BY"))
    named = name_classes(bundle.path, told(other), {"11": second, "99": tmp_path}, source="c.csv")
    assert named.read_thumbnails() == {"10": small, "11": large}
    assert named.classes[0].thumbnail == Thumbnail(author="A")
    assert named.classes[1].thumbnail == Thumbnail(licence="CC BY")
    named = name_classes(bundle.path, told(DAISY), {}, source="c.csv")
    assert named.read_thumbnails() == {"10": small, "11": large}
    assert named.classes[1].thumbnail == Thumbnail(licence="CC BY")


def test_a_mistake_leaves_the_bundle_as_it_was(bundle: Bundle, tmp_path: Path) -> None:
    before = sorted(bundle.path.iterdir())
    daisy = replace(DAISY, thumbnail=Thumbnail())
    with pytest.raises(DataError, match=r"11: .*gone\.png: No such file"):
        name_classes(bundle.path, told(daisy), {"11": tmp_path / "gone.png"}, source="c.csv")
    with pytest.raises(
        DataError, match=r"^c\.csv: none of its class ids, such as '9', is .* '10'$"
    ):
        name_classes(bundle.path, told(ClassInfo(id="9", scientific_name="")), {}, source="c.csv")
    with holder(bundle.path), pytest.raises(UsageError, match="another process"):
        name_classes(bundle.path, told(DAISY), {}, source="c.csv")
    assert open_bundle(bundle.path) == bundle
    assert sorted(bundle.path.iterdir()) == before
    with pytest.raises(BundleError, match="is not a bundle"):
        name_classes(tmp_path, told(DAISY), {}, source="c.csv")
