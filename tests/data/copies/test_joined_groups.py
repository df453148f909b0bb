"""Copies of a photo share a group, and so a split."""

from pathlib import Path

import numpy as np
import pytest

from florilege.data.checks import check
from florilege.data.cli import app
from florilege.data.copies import _is_copy, fingerprint, joined_groups, look_at
from tests.commands import call
from tests.data.copies.test_near_duplicates import scene


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two species of five photos; each photo once more, smaller."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(10):
        species = folder / "ab"[number % 2]
        species.mkdir(exist_ok=True)
        picture = scene(number)
        picture.save(species / f"{number}.jpg", quality=95)
        picture.resize((160, 160)).save(species / f"small-{number}.jpg", quality=80)
    return folder


def test_copies_join_the_first_group_and_what_cannot_be_read_joins_none(
    photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "damaged.jpg").write_bytes(b"no photo")
    small, large = photos / "a" / "small-0.jpg", photos / "a" / "0.jpg"
    other = photos / "a" / "2.jpg"
    paths = [large, tmp_path / "damaged.jpg", other, small, tmp_path / "damaged.jpg", other]
    groups = ["plant", "x", "y", "z", "w", "y2"]
    assert joined_groups(groups, paths) == ["plant", "x", "y", "plant", "w", "y"]
    assert joined_groups(["y", "z", "z", "y2"], [other, other, small, large]) == ["y"] * 4


def test_a_copy_that_only_one_of_two_photos_recognises_joins_them(tmp_path: Path) -> None:
    """A photo is scaled and shifted to look like the other, which may fail the other way round."""
    whole, part = scene(3), scene(3).crop((4, 4, 240, 240)).resize((180, 180))
    paths = [tmp_path / "whole.png", tmp_path / "part.png"]
    for picture, path in zip((whole, part), paths, strict=True):
        picture.save(path)
    one, other = (look_at(path.read_bytes()) for path in paths)
    assert not _is_copy(one, fingerprint(other)[np.newaxis])
    assert _is_copy(other, fingerprint(one)[np.newaxis])
    for order in (paths, paths[::-1]):
        assert joined_groups(["x", "y"], order) == ["x", "x"]


def test_a_split_that_looks_for_copies_divides_none(photos: Path, tmp_path: Path) -> None:
    kinds = dict[bool, set[str]]()
    for copies in (False, True):
        out = tmp_path / f"new-{copies}" / "photos.csv"  # a folder that does not exist yet
        flags = ("--val", 0.3, "--test", 0.3, *(("--copies",) if copies else ()))
        assert call(app, "split", photos, "--out", out, *flags).exit_code == 0
        kinds[copies] = {finding.kind for finding in check(str(out)).errors}
    assert "near_duplicate_across_splits" in kinds[False]
    assert "near_duplicate_across_splits" not in kinds[True]
