"""Outputs of a network are kept in files, and what belongs together is read together."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calibration.offline.logits
from calibration.offline.logits import FEATURES, OutputStore
from models.errors import DataError

ROWS, CLASSES, DIMENSIONS = 22, 3, 40


def filled(rows: int = ROWS) -> tuple[OutputStore, dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    expected = {
        "sccp": random.normal(size=(rows, CLASSES)).astype(np.float32),
        FEATURES: random.normal(size=(rows, DIMENSIONS)).astype(np.float32),
    }
    store = OutputStore({"sccp": CLASSES, FEATURES: DIMENSIONS}, np.arange(rows) % CLASSES)
    for row in range(rows):
        store.append({name: values[[row]] for name, values in expected.items()})
    return store, expected


@pytest.mark.parametrize(
    ("rows", "numbers", "alone", "together"),
    [
        (99, 9999, [22], [22]),
        (7, 9999, [7, 7, 7, 1], [7, 7, 7, 1]),
        (99, 21, [7, 7, 7, 1], [1] * 22),
    ],
)
def test_blocks_hold_the_same_rows_of_every_output(
    monkeypatch: pytest.MonkeyPatch, rows: int, numbers: int, alone: list[int], together: list[int]
) -> None:
    monkeypatch.setattr(calibration.offline.logits, "ROWS_AT_ONCE", rows)
    monkeypatch.setattr(calibration.offline.logits, "NUMBERS_AT_ONCE", numbers)
    store, expected = filled()
    for names, lengths in ((("sccp",), alone), ((FEATURES, "sccp"), together)):
        for _ in range(2):  # as often as wanted
            blocks = list(store.blocks(*names))
            assert [len(labels) for _, labels in blocks] == lengths
            assert (np.concatenate([labels for _, labels in blocks]) == store.labels).all()
            for place, name in enumerate(names):
                found = np.concatenate([outputs[place] for outputs, _ in blocks])
                assert found.tobytes() == expected[name].tobytes()
    store.close()


@given(rows=st.lists(st.integers(0, ROWS - 1), max_size=5))
def test_any_rows_come_in_the_order_asked_for(rows: list[int]) -> None:
    store, expected = filled()
    wanted = np.array(rows, dtype=np.int64)
    for name, values in expected.items():
        assert store.rows(name, wanted).tobytes() == values[wanted].tobytes()
    store.close()


def test_without_a_temporary_folder_or_room_in_it_a_message_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"gone \(No such file.*TMPDIR"):
        OutputStore({"sccp": 1}, np.zeros(1, np.int64))

    class Full:
        def write(self, content: bytes) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    store = OutputStore({"sccp": 1}, np.zeros(1, np.int64))
    with pytest.raises(DataError, match=r"No space left.*TMPDIR"):
        store.append({"sccp": np.zeros((1, 1), np.float32)})
