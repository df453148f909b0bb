"""The same photo in other bytes is recognised; another photo of the same things is not."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from florilege.data.checks import check
from florilege.data.copies import _MOST_BITS, WORDS, _close_rows

SIDE = 240


def scene(seed: int, *, leaves: int = 60, light: float = 1.0, moved: float = 0.0) -> Image.Image:
    """Leaves on soil; ``moved`` lets the wind move each by so many pixels."""
    random, wind = np.random.default_rng(seed), np.random.default_rng(1000 + seed)
    across = np.arange(SIDE)
    picture = np.empty((SIDE, SIDE, 3))
    picture[:] = random.uniform(60, 120, 3)
    for _ in range(leaves):
        middle, radii = random.uniform(0, SIDE, 2), random.uniform(6, 40, 2)
        middle = middle + moved * wind.normal(size=2)
        x, y = ((across - centre) / radius for centre, radius in zip(middle, radii, strict=True))
        rows, columns = (np.flatnonzero(abs(axis) < 1) for axis in (y, x))
        around = np.ix_(rows, columns)  # the leaf lies in this part
        inside = y[rows, np.newaxis] ** 2 + x[columns] ** 2 < 1
        picture[around] = np.where(
            inside[..., np.newaxis], random.uniform(0, 255, 3) * light, picture[around]
        )
    return Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, quality: int = 90) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def changed(image: Image.Image, how: str) -> bytes:
    width, height = image.size
    match how:
        case "re-encoded":
            return encoded(image, 60)
        case "halved":
            return encoded(image.resize((width // 2, height // 2), Image.Resampling.LANCZOS))
        case "cropped":
            edge = round(0.03 * width)
            return encoded(image.crop((edge, edge, width - edge, height - edge)))
        case _:
            return encoded(image.crop((0, 0, width - round(0.03 * width), height)))


def test_close_rows_are_those_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("florilege.data.copies._PAIRS_AT_ONCE", 21)
    random = np.random.default_rng(0)
    ours, others = (
        random.integers(0, 2**63, (count, WORDS)).astype(np.uint64) for count in (10, 7)
    )
    ours[1, 0] = others[2, 0] = ours[4, 0] ^ np.uint64(2**_MOST_BITS - 1)
    others[3, 0] = ours[9, 0] ^ np.uint64(2 ** (_MOST_BITS + 1) - 1)
    expected = {
        place: near
        for place, other in enumerate(others)
        if (
            near := [
                row
                for row, one in enumerate(ours)
                if int(one[0] ^ other[0]).bit_count() <= _MOST_BITS
            ]
        )
    }
    assert {place: near.tolist() for place, near in _close_rows(ours, others)} == expected
    assert expected[2] == [1, 4]
    assert 9 not in expected.get(3, [])


def test_the_check_knows_copies_of_small_photos(tmp_path: Path) -> None:
    """Pictures of 96 pixels have no finer details by which to tell them."""
    copies = list[str]()
    for seed in range(8):
        image = scene(seed).resize((96, 96))
        (tmp_path / "train" / "ab"[seed % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "val" / "ab"[seed % 2]).mkdir(parents=True, exist_ok=True)
        how = ("re-encoded", "halved", "cropped", "cropped at one side")[seed // 2]
        name = f"{'ab'[seed % 2]}/{seed}.jpg"
        (tmp_path / "train" / name).write_bytes(encoded(image))
        (tmp_path / "val" / name).write_bytes(changed(image, how))
        copies.append(f"train/{name} (train) = val/{name} (val)")
    (leak,) = check(str(tmp_path)).errors
    assert sorted(leak.items) == sorted(copies)


def test_the_check_names_copies_across_splits_in_other_bytes(tmp_path: Path) -> None:
    for split, seeds in {"train": range(4), "val": range(4, 8)}.items():
        for seed in seeds:
            folder = tmp_path / split / ("a" if seed % 2 else "b")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{seed}.jpg").write_bytes(encoded(scene(seed)))
    (tmp_path / "val/a/half.jpg").write_bytes(changed(scene(1), "halved"))
    (tmp_path / "val/b/wind.jpg").write_bytes(encoded(scene(2, moved=6.0)))
    (tmp_path / "train/b/again.jpg").write_bytes(changed(scene(2), "cropped"))
    report = check(str(tmp_path))
    assert {each.kind: each.items for each in report.errors} == {
        "near_duplicate_across_splits": ["train/a/1.jpg (train) = val/a/half.jpg (val)"]
    }
