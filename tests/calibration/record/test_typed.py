"""Reading dataclasses from JSON: every type that records use, and every way to be wrong."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from calibration.record.typed import from_plain


@dataclass(frozen=True, kw_only=True)
class Inner:
    """An inner record."""

    counts: tuple[int, ...]
    interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Outer:
    """A record with one entry of each type."""

    name: str
    size: float
    rows: int
    sure: bool
    kind: Literal["softmax", "sigmoid"]
    limit: float | None
    inner: Inner | None
    parts: tuple[Inner, ...]
    note: str = ""


INNER = {"counts": [1, 2], "interval": [0.5, 1]}
WHOLE: dict[str, Any] = {
    "name": "a",
    "size": 2,
    "rows": 3,
    "sure": True,
    "kind": "softmax",
    "limit": None,
    "inner": INNER,
    "parts": [INNER, INNER],
}


def test_every_entry_arrives_with_its_type() -> None:
    found = from_plain(Outer, WHOLE)
    inner = Inner(counts=(1, 2), interval=(0.5, 1.0))
    assert found == Outer(
        name="a", size=2.0, rows=3, sure=True, kind="softmax", limit=None, inner=inner,
        parts=(inner, inner),
    )  # fmt: skip
    assert isinstance(found.size, float)
    assert from_plain(Outer, {**WHOLE, "limit": 1.5, "inner": None, "note": "n"}).note == "n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 1}, "name must be text, got 1"),
        ({"size": "2"}, "size must be a finite number, got '2'"),
        ({"size": True}, "size must be a finite number"),
        ({"size": float("nan")}, "size must be a finite number"),
        ({"rows": 3.0}, "rows must be a whole number"),
        ({"rows": False}, "rows must be a whole number"),
        ({"sure": 1}, "sure must be true or false"),
        ({"kind": "other"}, "kind must be one of 'softmax', 'sigmoid'"),
        ({"limit": "no"}, "limit must be a finite number"),
        ({"inner": []}, r"inner must be an object, got \[\]"),
        ({"inner": {**INNER, "counts": [1, 2.5]}}, r"inner.counts\[1\] must be a whole number"),
        ({"parts": [INNER, {**INNER, "interval": [1.0]}]}, r"parts\[1\].interval must be a list"),
        ({"parts": {"counts": []}}, "parts must be a list"),
        ({"parts": [{**INNER, "extra": 1}]}, r"parts\[0\].extra is unknown"),
        ({"colour": "red"}, "colour is unknown"),
    ],
)
def test_a_wrong_entry_is_refused_by_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        from_plain(Outer, {**WHOLE, **change})


def test_a_missing_entry_is_refused_unless_it_has_a_default() -> None:
    with pytest.raises(ValueError, match=r"^size is missing$"):
        from_plain(Outer, {name: entry for name, entry in WHOLE.items() if name != "size"})


def test_a_list_in_place_of_a_record_is_refused() -> None:
    with pytest.raises(ValueError, match="the record must be an object"):
        from_plain(Outer, [])
