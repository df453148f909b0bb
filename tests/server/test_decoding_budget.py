"""The pixel budget: what a picture holds, which pictures wait, and in which order."""

import io
import struct
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, JpegImagePlugin

from florilege.models import images
from florilege.models.images import read_header
from florilege.server import bounds as module
from florilege.server.answers.pipeline import open_pipeline
from florilege.server.bounds import (
    MAX_DECODING_PIXELS,
    SMALL_SHARE,
    PixelBudget,
    pixels_to_hold,
)
from tests.server.server_thread import wait_for


def picture(width: int, height: int, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 60)).save(buffer, kind, **options)
    return buffer.getvalue()


def held(data: bytes, least: int = 48, max_pixels: int = 10**6) -> int:
    return pixels_to_hold(read_header(data), least=least, max_pixels=max_pixels)


class Holder:
    """Takes from a budget in a thread of its own, and gives back on request."""

    def __init__(self, budget: PixelBudget, pixels: int, *, waits: bool = False) -> None:
        self.inside, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(budget, pixels), daemon=True)
        before = len(budget._turns)
        self._thread.start()
        if waits:
            wait_for(lambda: len(budget._turns) == before + 1)
            assert not self.inside.is_set()
        else:
            assert self.inside.wait(15)

    def _run(self, budget: PixelBudget, pixels: int) -> None:
        with budget.hold(pixels):
            self.inside.set()
            assert self._leave.wait(15)

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(15)


def test_a_lossless_webp_holds_what_its_tables_take() -> None:
    data = picture(400, 300, "WEBP", lossless=True)
    assert held(data) == 400 * 300 + read_header(data).more_pixels > 400 * 300
    assert held(data, max_pixels=400 * 300 - 1) == 0


def test_a_picture_that_exceeds_the_budget_waits_until_others_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY_S", 60)  # who waits is woken, and does not wake up
    budget = PixelBudget(100)
    first, second = Holder(budget, 60), Holder(budget, 40)
    third = Holder(budget, 10, waits=True)
    assert budget.pixels_in_use == 100
    second.leave()
    assert third.inside.wait(15)
    assert budget.pixels_in_use == 70
    first.leave()
    third.leave()
    assert (budget.pixels_in_use, len(budget._turns)) == (0, 0)


@pytest.mark.parametrize("pixels", [60, 1000])  # the latter exceed the budget alone
def test_a_large_one_waits_for_its_turn_and_small_ones_do_not_overtake_it(pixels: int) -> None:
    budget = PixelBudget(100)
    first = Holder(budget, 50)
    large = Holder(budget, pixels, waits=True)
    small = Holder(budget, 10, waits=True)
    assert not small.inside.wait(0.05)
    first.leave()
    assert large.inside.wait(15)
    assert pixels == 60 or not small.inside.is_set()
    large.leave()
    assert small.inside.wait(15)
    small.leave()
    assert budget.pixels_in_use == 0


def test_a_fiftieth_of_the_budget_is_not_counted_and_never_waits() -> None:
    budget = PixelBudget(2 * SMALL_SHARE)
    whole, two, none = budget.hold(budget.limit), budget.hold(2, fail), budget.hold(0, fail)
    with whole, two, budget.hold(2, fail), none:
        assert budget.pixels_in_use == budget.limit
    with budget.hold(3):
        assert budget.pixels_in_use == 3


def test_pictures_are_decoded_together_up_to_so_many_pixels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY_S", 0.01)
    budget, half = PixelBudget(), MAX_DECODING_PIXELS // 2
    with budget.hold(half):
        with budget.hold(half, fail):
            assert budget.pixels_in_use == MAX_DECODING_PIXELS
        with pytest.raises(AssertionError, match="had to wait"), budget.hold(half + 1, fail):
            pytest.fail("went in")


def fail() -> None:
    raise AssertionError("had to wait")


def test_a_picture_that_gives_up_behind_another_loses_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY_S", 0.01)
    budget = PixelBudget(10)
    first, second = Holder(budget, 10), Holder(budget, 10, waits=True)
    with pytest.raises(AssertionError, match="had to wait"), budget.hold(10, fail):
        pytest.fail("went in")
    assert (budget.pixels_in_use, len(budget._turns)) == (10, 1)
    first.leave()
    assert second.inside.wait(15)
    second.leave()
    with budget.hold(10, fail):  # nobody is asked who need not wait
        assert (budget.pixels_in_use, len(budget._turns)) == (10, 0)


def test_a_failure_while_decoding_gives_the_pixels_back() -> None:
    budget = PixelBudget(10)
    with pytest.raises(ZeroDivisionError), budget.hold(10):
        raise ZeroDivisionError
    assert budget.pixels_in_use == 0


def test_pictures_are_held_whole_but_for_baseline_jpegs_and_those_that_are_refused() -> None:
    for kind in ("PNG", "WEBP", "AVIF"):
        assert held(picture(640, 480, kind)) == 640 * 480
    assert held(picture(640, 480, "JPEG")) == 640 * 480 // 64
    assert held(picture(640, 480, "JPEG", progressive=True)) == 640 * 480
    assert held(picture(1001, 1000)) == 0
    assert held(picture(1000, 1000)) == 10**6


@settings(max_examples=40)
@given(st.integers(1, 700), st.integers(1, 700), st.integers(1, 400))
def test_a_baseline_jpeg_counts_as_the_decoder_shrinks_it(
    width: int, height: int, least: int
) -> None:
    data = picture(width, height, "JPEG")
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
    image.draft(None, (least, least))
    assert held(data, least) <= image.width * image.height
    assert held(data, least) * 1.35 + 2 * (width + height) >= image.width * image.height


@pytest.mark.parametrize("progressive", [False, True])
def test_a_frame_header_cannot_hide_behind_other_segments_or_fill_bytes(progressive: bool) -> None:
    """Any number of 0xFF may stand before a marker (ISO/IEC 10918-1, B.1.1.2)."""
    data = picture(640, 480, "JPEG", progressive=progressive)
    comment, table = b"\xff\xfe" + struct.pack(">H", 3) + b"x", data.index(b"\xff\xdb")
    fillings = (b"\xff\x01" * 40, b"\xff" * 40, comment * 3, comment * 2000)
    fills = (b"", b"\xff", b"\xff" * 2, b"\xff" * 3)
    for at, filling in (*((2, each) for each in fillings), *((table, each) for each in fills)):
        filled = data[:at] + filling + data[at:]
        header = read_header(filled)
        assert (header.width, header.height) == (640, 480)
        Image.open(io.BytesIO(header.pixels)).load()
        assert held(filled) == 640 * 480 // (1 if progressive else 64)


@pytest.mark.parametrize(("gap", "left"), [(1.0, 100 * 100), (2.0, 200 * 200)])
def test_a_jpeg_holds_what_the_gap_of_its_bundle_leaves(
    bundle: Path, gap: float, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, calls, load = open_pipeline(bundle, budget=PixelBudget(100)), list[int](), images.load
    expected = replace(
        opened.bundle.preprocess, image_size=100, crop_fraction=1.0, reducing_gap=gap
    )
    pipeline = replace(opened, bundle=replace(opened.bundle, preprocess=expected))

    def noted(*given: Any, **named: Any) -> Any:
        calls.append(pipeline.budget.pixels_in_use)
        return load(*given, **named)

    monkeypatch.setattr("florilege.models.session.load", noted)
    pipeline.outputs(picture(400, 400, "JPEG"))
    assert (calls, pipeline.budget.pixels_in_use) == ([left], 0)
