"""How often sets hold the truth, from a small sample of requests that a person has labelled.

This is the only check after deployment that measures accuracy. It is as good as the sample:
requests must be drawn at random, and every one of them labelled. Feedback that people volunteer is
not such a sample: its share of hits can be shown, but its intervals mean nothing.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, lgamma, log, log1p
from pathlib import Path
from typing import Any

from florilege.calibration.conformal import binomial
from florilege.calibration.rules import usual_guarantee
from florilege.errors import DataError
from florilege.feedback_store import FILE, open_feedback

Interval = tuple[float, float]
Row = Mapping[str, Any]

ANSWERED = ("rule", "k", "coverage", "guarantee", "images", "list", "calibration_id")
HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What a labelled sample says."""

    rows: int  # labelled requests
    hits: int  # sets among them that hold the true class
    skipped: int  # requests without a label
    hit_rate: float
    fixed: Interval  # valid if the number of rows was fixed beforehand
    anytime: Interval  # valid however often you look and whenever you stop
    level: float  # confidence of both


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What labelled requests say about a bundle.

    Audits are named after the rule and value that answered, such as ``average_k k=3``, or ``sets``
    where the rows do not say. Each list that requests named has audits of its own, in which a
    species beyond the list is a miss. So have rejected photos, whose set is empty.
    """

    audits: dict[str, Audit]
    other_calibrations: int  # rows left out, because another calibration answered them
    damaged: int  # lines left out, because they are torn or not a JSON object

    def to_plain(self) -> dict[str, Any]:
        """For json."""
        return {
            "audits": [{"rule": name, **asdict(audit)} for name, audit in self.audits.items()],
            "other_calibrations": self.other_calibrations,
            "damaged": self.damaged,
        }


def audit_file(
    path: str | Path, *, calibration_id: str | None = None, level: float = 0.95
) -> AuditReport:
    """Measure hit rates on the requests that a person has labelled.

    Args:
        path: The folder of a server's feedback store; or lines of JSON, each with ``class_id`` and
            ``set`` as for :func:`audit`, or a folder of such files (``*.jsonl``). Of lines that
            agree on ``request_id`` and on what was answered, the last one counts.
        calibration_id: Leave out rows that name another one.
        level: Confidence of the intervals, in (0, 1).

    Raises:
        DataError: It cannot be read, a row lacks one of the two, or no request is labelled.
    """
    try:
        rows, damaged = _read(Path(path))
        requests = rows
        if calibration_id is not None:
            requests = [
                row for row in rows if row.get("calibration_id", calibration_id) == calibration_id
            ]
        if not any(row.get("class_id") is not None for row in requests):
            raise ValueError(f"no request of this calibration is labelled in {len(rows)} rows")
        audits = _audit_rules(requests, level)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    return AuditReport(audits=audits, other_calibrations=len(rows) - len(requests), damaged=damaged)


def _audit_rules(rows: Sequence[Row], level: float) -> dict[str, Audit]:
    """An audit for each rule and value that answered labelled requests."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_rule(row), []).append(row)
    return {
        name: audit(group, level=level)
        for name, group in groups.items()
        if any(row.get("class_id", "missing") is not None for row in group)
    }


def audit(feedback: Iterable[Row], *, level: float = 0.95) -> Audit:
    """Measure the hit rate on labelled requests.

    Args:
        feedback: One mapping per request, with ``class_id``, the true class or None if unknown,
            and ``set``, the class ids that were answered.
        level: Confidence, in (0, 1).

    Raises:
        ValueError: No request is labelled, a row lacks one of the two, or ``level`` is out of
            range.

    Example:
        >>> rows = [{"class_id": "7", "set": ["7", "9"]}] * 9 + [{"class_id": "7", "set": []}]
        >>> result = audit(rows)
        >>> result.hit_rate, [round(end, 3) for end in result.fixed]
        (0.9, [0.555, 0.997])
    """
    rows = hits = skipped = 0
    for number, row in enumerate(feedback):
        if "class_id" not in row or not isinstance(row.get("set"), list | tuple):
            raise ValueError(f"feedback row {number} must have class_id and set, got {sorted(row)}")
        if row["class_id"] is None:
            skipped += 1
            continue
        rows, hits = rows + 1, hits + (row["class_id"] in row["set"])
    if not rows:
        raise ValueError(f"no request is labelled ({skipped} without a label)")
    return Audit(
        rows=rows,
        hits=hits,
        skipped=skipped,
        hit_rate=hits / rows,
        fixed=clopper_pearson(hits, rows, level=level),
        anytime=anytime_interval(hits, rows, level=level),
        level=level,
    )


def clopper_pearson(hits: int, rows: int, *, level: float = 0.95) -> Interval:
    """Exact interval for a probability after a fixed number of independent trials.

    Promise: it holds the true probability, whatever that is, with at least ``level``.

    Raises:
        ValueError: ``rows`` below 1, ``hits`` outside ``[0, rows]`` or ``level`` outside (0, 1).

    References:
        Clopper and Pearson, "The use of confidence or fiducial limits", 1934.

    Example:
        >>> [round(end, 4) for end in clopper_pearson(0, 10)]
        [0.0, 0.3085]
    """
    _check(hits, rows, level)
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else 1 - _upper(rows - hits, rows, tail)
    high = 1.0 if hits == rows else _upper(hits, rows, tail)
    return low, high


def anytime_interval(hits: int, rows: int, *, level: float = 0.95) -> Interval:
    """Interval for a probability that may be looked at after every trial.

    Promise: with probability at least ``level`` the intervals after 1, 2, 3, ... independent
    trials *all* hold the true probability, so you may stop when you like what you see. Against
    each probability ``p`` bets a player who spreads a capital evenly over all others; the
    interval holds every ``p`` against which that capital stays below ``1 / (1 - level)``.

    Raises:
        ValueError: As :func:`clopper_pearson`.

    References:
        Robbins, "Statistical methods related to the law of the iterated logarithm", 1970;
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2024.

    Example:
        >>> [round(end, 4) for end in anytime_interval(90, 100)]
        [0.7717, 0.9712]
    """
    _check(hits, rows, level)
    misses = rows - hits
    capital = lgamma(hits + 1) + lgamma(misses + 1) - lgamma(rows + 2)
    limit = capital + log(1 - level)  # the log likelihood below which p is ruled out

    def is_inside(p: float) -> bool:
        likelihood = (hits * log(p) if hits else 0.0) + (misses * _log1m(p) if misses else 0.0)
        return likelihood > limit

    low = 0.0 if hits == 0 else _border(is_inside, hits / rows, 0.0)
    high = 1.0 if misses == 0 else _border(is_inside, hits / rows, 1.0)
    return low, high


def _border(is_inside: Callable[[float], bool], inside: float, outside: float) -> float:
    """Where ``is_inside`` turns false between the two, rounded outwards."""
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        if is_inside(middle):
            inside = middle
        else:
            outside = middle
    return outside


def _upper(hits: int, rows: int, tail: float) -> float:
    """The probability at which ``hits`` or fewer hits have the probability ``tail``."""

    def is_inside(p: float) -> bool:  # the middle of p and 1 may be rounded to 1
        return p < 1 and float(binomial(rows, p)[: hits + 1].sum()) > tail

    return _border(is_inside, hits / rows, 1.0)


def _log1m(p: float) -> float:
    return log1p(-p) if p < 1 else -inf  # the middle of p and 1 may be rounded to 1


def _check(hits: int, rows: int, level: float) -> None:
    if rows < 1 or not 0 <= hits <= rows or not 0 < level < 1:
        raise ValueError(
            "hits must be in [0, rows], rows at least 1 and level in (0, 1), got "
            f"{hits} of {rows} at {level}"
        )


def _read(path: Path) -> tuple[Sequence[Row], int]:
    """The last row of each answer, and the number of damaged lines."""
    if (path / FILE).exists():
        with open_feedback(path) as feedback:
            return feedback.latest_rows(), 0
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    latest: dict[object, Row] = {}
    damaged = 0
    for file in files:
        for line in filter(bytes.strip, file.read_bytes().splitlines()):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                latest[_answer(row) if "request_id" in row else len(latest)] = row
            else:
                damaged += 1
    return list(latest.values()), damaged


def _answer(row: Row) -> str:
    """What names an answer: callers may give two of them one ``request_id``."""
    return json.dumps([row.get(name) for name in ("request_id", "set", *ANSWERED)])


def _rule(row: Row) -> str:
    if not isinstance(row.get("rule"), str):
        return "sets"
    name = f"{row['rule']} {_requested_value(row)}"
    promise = row.get("guarantee")
    if promise not in (None, usual_guarantee(row["rule"])):
        name += f" guarantee={promise}"
    if (row.get("images") or 1) != 1:
        name += f", {row['images']} photos"
    if row.get("restricted"):  # its sets are of fewer classes: a class beyond these is a miss
        name += f", list {row['list']}" if row.get("list") else ", only some classes"
    return f"{name}, rejected" if row.get("verdict") == "rejected" else name


def _requested_value(row: Row) -> str:
    name = "k" if row.get("coverage") is None else "coverage"
    value = row.get(name)
    return f"{name}={value:g}" if isinstance(value, int | float) else f"{name}={value}"
