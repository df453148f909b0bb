"""What features are compared with: against plain loops, and as a file."""

import io
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import florilege.calibration.reference
from florilege.calibration.reference import Reference
from tests.models.bundles import npy_of_shape

RANDOM = np.random.default_rng(3)
WIDTH = 9
SPREAD = np.diag([5.0, 4.0, 3.0, 2.0, 1.5, 0.4, 0.3, 0.2, 0.1])
MIXED = np.linalg.qr(RANDOM.normal(size=(WIDTH, WIDTH)))[0]


def drawn(rows: int) -> NDArray[np.float32]:
    """Features with a mean of their own, that hardly use some directions."""
    values = RANDOM.normal(size=(rows, WIDTH)) @ SPREAD @ MIXED + 2.0
    return np.asarray(values, dtype=np.float32)


KNOWN, ROWS = drawn(60), drawn(25)
REFERENCE = Reference.of(KNOWN)


def test_nearest_is_the_largest_cosine_along_the_axes() -> None:
    axes = np.linalg.svd(KNOWN.astype(np.float64))[2][: WIDTH // 2]  # by another computation
    for row, value in zip((ROWS @ axes.T).tolist(), REFERENCE.compare(ROWS)[0], strict=True):
        cosines = []
        for other in (KNOWN @ axes.T).tolist():
            product = sum(a * b for a, b in zip(row, other, strict=True))
            cosines.append(product / math.hypot(*row) / math.hypot(*other))
        assert value == pytest.approx(max(cosines), abs=1e-3)  # rounded to half precision


def test_residual_is_the_length_off_the_axes() -> None:
    rest = np.linalg.svd(KNOWN.astype(np.float64))[2][WIDTH // 2 :]
    for row, value in zip(ROWS.tolist(), REFERENCE.compare(ROWS)[1], strict=True):
        squares = 0.0
        for axis in rest.tolist():
            squares += sum(a * b for a, b in zip(row, axis, strict=True)) ** 2
        assert value == pytest.approx(-math.sqrt(squares), rel=1e-4)


def test_axes_are_orthogonal_and_no_more_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert REFERENCE.axes.shape == (WIDTH // 2, WIDTH)
    monkeypatch.setattr(florilege.calibration.reference, "MOST_AXES", 3)
    few = Reference.of(KNOWN)
    assert few.axes.shape == (3, WIDTH)
    np.testing.assert_allclose(few.axes @ few.axes.T, np.eye(3), atol=1e-6)
    assert Reference.of(KNOWN[:2]).axes.shape == (2, WIDTH)  # two photos use no more


def test_of_many_photos_some_are_enough_for_the_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(florilege.calibration.reference, "MOST_FOR_AXES", 20)
    some = Reference.of(KNOWN)
    assert len(some.directions) == len(KNOWN)
    spread = KNOWN[np.linspace(0, len(KNOWN) - 1, 20).astype(int)]
    assert some.axes.tobytes() == Reference.of(spread).axes.tobytes()


def test_photos_like_those_known_are_more_familiar_by_both() -> None:
    off = np.linalg.svd(KNOWN)[2][-1]
    assert (REFERENCE.compare(ROWS + 8 * off)[1] < REFERENCE.compare(ROWS)[1] - 1).all()
    opposite = Reference.of(np.abs(KNOWN))
    assert opposite.compare(-np.abs(ROWS))[0].max() < 0 < opposite.compare(np.abs(ROWS))[0].min()
    assert REFERENCE.compare(KNOWN)[0] == pytest.approx(np.ones(60), abs=1e-3)


def test_a_row_is_the_same_bits_alone_in_a_batch_and_in_any_thread() -> None:
    large = Reference.of(RANDOM.normal(size=(300, 512)))
    rows = RANDOM.normal(size=(40, 512)).astype(np.float32)
    together = np.stack(large.compare(rows), axis=1)  # (rows, 2)
    with ThreadPoolExecutor(4) as pool:
        alone = list(pool.map(lambda row: np.ravel(large.compare(row[np.newaxis])), rows))
    assert together.tolist() == np.stack(alone).tolist()


def test_a_row_of_zeros_has_no_direction_and_is_no_mistake() -> None:
    assert REFERENCE.compare(np.zeros((1, WIDTH)))[0].tolist() == [0.0]
    assert np.isfinite(REFERENCE.compare(np.zeros((1, WIDTH)))[1]).all()
    assert np.isfinite(Reference.of(np.zeros((3, WIDTH))).compare(ROWS)[0]).all()


@pytest.mark.parametrize("width", [1, 2, 5])
def test_one_photo_and_few_dimensions_are_enough(width: int) -> None:
    one = Reference.of(np.ones((1, width)))
    assert one.compare(np.full((2, width), 3.0))[0] == pytest.approx([1, 1], abs=1e-3)
    assert one.compare(np.ones((1, width)))[1] == pytest.approx([0], abs=1e-3)


def test_bytes_give_back_the_very_same_answers() -> None:
    content = REFERENCE.to_bytes()
    again = Reference.of_bytes(content)
    assert (again.to_bytes(), again.sha256) == (content, REFERENCE.sha256)
    assert content == Reference.of(KNOWN.copy()).to_bytes()
    assert again.compare(ROWS)[0].tolist() == REFERENCE.compare(ROWS)[0].tolist()
    assert again.compare(ROWS)[1].tolist() == REFERENCE.compare(ROWS)[1].tolist()
    assert len(content) == 2 * 128 + 4 * REFERENCE.axes.size + 2 * REFERENCE.directions.size


def saved(*arrays: NDArray[Any], allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    for array in arrays:
        np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


GOOD: list[NDArray[Any]] = [np.eye(4, dtype=np.float32)[:3], np.ones((2, 3), np.float16)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no arrays",
        saved(*GOOD)[:-3],
        saved(GOOD[0]),
        saved(*GOOD) + b"more",
        saved(GOOD[0], GOOD[1][:0]),
        saved(GOOD[0][:, :0], GOOD[1]),
        saved(GOOD[0], GOOD[1][:, :2]),
        saved(GOOD[0][:2], GOOD[1]),
        saved(GOOD[0][0], GOOD[1]),
        saved(GOOD[0], GOOD[1] * np.float16("nan")),
        saved(np.array([{}]), GOOD[1], allow_pickle=True),
        saved(np.full((3, 4), "a"), GOOD[1]),
        saved(GOOD[0], GOOD[1] * 1j),
        saved(GOOD[0], np.zeros((2, 3), [("a", "<f2")])),
        saved(GOOD[0], np.array(1, np.float16)),
        saved(GOOD[0], GOOD[1].astype(bool)),
        npy_of_shape(2**44, 3),
        b"PK\x03\x04" + bytes(50),
        b"PK\x05\x06" + bytes(18),  # an empty zip
    ],
)
def test_what_is_no_reference_is_refused_and_no_pickle_is_read(content: bytes) -> None:
    assert Reference.of_bytes(saved(*GOOD)).dimensions == 4
    with pytest.raises(ValueError, match=r"not a reference|incompatible|one photo|finite"):
        Reference.of_bytes(content)


@pytest.mark.parametrize("shape", [(3, WIDTH + 1), (WIDTH,), (1, 2, WIDTH)])
def test_features_of_another_shape_or_not_finite_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"features must have shape .rows, {WIDTH}"):
        REFERENCE.compare(np.ones(shape))
    for wrong in (math.nan, math.inf):
        features = ROWS.copy()
        features[3, 1] = wrong
        with pytest.raises(ValueError, match="finite, but those of row 3"):
            REFERENCE.compare(features)


def test_the_nearest_of_others_is_that_of_a_reference_without_the_class() -> None:
    random = np.random.default_rng(8)
    values, labels = random.normal(size=(40, 12)), np.arange(40) % 5
    reference = Reference.of(values, labels)
    photos, classes = random.normal(size=(30, 12)), random.integers(0, 7, 30)
    result = reference.nearest_of_others(photos, classes)
    assert result is not None
    axes = reference.axes.astype(np.float64)
    for row, label in enumerate(classes):
        along = axes @ photos[row]
        others = [
            float(axes @ value @ along) / np.linalg.norm(axes @ value) / np.linalg.norm(along)
            for value, other in zip(values, labels, strict=True)
            if other != label
        ]
        assert result[row] == pytest.approx(max(others), abs=1e-3)
    assert Reference.of(values).nearest_of_others(photos, classes) is None
    assert Reference.of(values, np.zeros(40, np.int64)).nearest_of_others(photos, classes) is None
