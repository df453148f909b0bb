"""Hit rates of a small sample of requests that a person has labelled.

This is the only check after deployment that measures accuracy. It is only as good as the sample:
requests must be drawn at random, and all of them labelled. Voluntary feedback is not such a sample:
its hit rate can be shown, but its intervals are meaningless.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf, lgamma, log, log1p
from pathlib import Path
from typing import Any

from florilege.calibration.conformal import at_most, border
from florilege.calibration.rules import usual_guarantee
from florilege.errors import DataError
from florilege.feedback_store import open_feedback

Interval = tuple[float, float]
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Audit:
    """The hit rate of a labelled sample."""

    rows: int  # labelled requests
    hits: int  # sets of these that hold the true class
    skipped: int  # requests without a label
    hit_rate: float
    fixed: Interval  # valid if the number of rows was fixed beforehand
    anytime: Interval  # valid however often you look and whenever you stop
    level: float  # confidence of both


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """The audits of a bundle.

    An audit is named after its rule and value, such as ``average_k k=3``, or ``sets`` if unknown.
    Each list in the requests has audits of its own, in which a species outside the list is a miss.
    So have rejected photos, whose set is empty.
    """

    audits: dict[str, _Audit]
    other_calibrations: int  # rows left out because another calibration answered them
    damaged: int  # lines left out because they are torn or not a JSON object

    def to_plain(self) -> dict[str, Any]:
        """The report as plain data for JSON."""
        return {
            "audits": [{"rule": name, **asdict(audit)} for name, audit in self.audits.items()],
            "other_calibrations": self.other_calibrations,
            "damaged": self.damaged,
        }


def audit_file(path: str | Path, *, calibration_id: str | None = None) -> AuditReport:
    """Measure hit rates on the requests that a person has labelled.

    Args:
        path: The folder of a server's feedback store, or a JSON Lines file, whose lines have
            ``class_id``, null if unknown, and ``set``, the class ids of the answer.
        calibration_id: Leave out rows with another ``calibration_id``.

    Raises:
        DataError: The file cannot be read, a row lacks ``class_id`` or ``set``, or no request is
            labelled.
    """
    try:
        rows, damaged = _read(Path(path))
        groups, others = defaultdict[str, list[Row]](list), 0
        for row in rows:
            if calibration_id in (None, row.get("calibration_id", calibration_id)):
                groups[_audit_name(row)].append(row)
            else:
                others += 1
        audits = {name: _audit(requests) for name, requests in groups.items()}
        labelled = {name: audit for name, audit in audits.items() if audit is not None}
        if not labelled:
            raise ValueError(f"no request of this calibration is labelled in {len(rows)} rows")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    return AuditReport(audits=labelled, other_calibrations=others, damaged=damaged)


def _audit(feedback: Sequence[Row], *, level: float = 0.95) -> _Audit | None:
    """The hit rate of some requests; None if none of them is labelled.

    ValueError if a row lacks ``class_id`` or ``set``.
    """
    if all(row.get("class_id", "missing") is None for row in feedback):
        return None
    rows = hits = skipped = 0
    for number, row in enumerate(feedback):
        if "class_id" not in row or not isinstance(row.get("set"), list | tuple):
            raise ValueError(f"feedback row {number} must have class_id and set, got {sorted(row)}")
        if row["class_id"] is None:
            skipped += 1
            continue
        rows, hits = rows + 1, hits + (row["class_id"] in row["set"])
    return _Audit(
        rows=rows,
        hits=hits,
        skipped=skipped,
        hit_rate=hits / rows,
        fixed=_clopper_pearson(hits, rows, level=level),
        anytime=_anytime_interval(hits, rows, level=level),
        level=level,
    )


def _clopper_pearson(hits: int, rows: int, *, level: float = 0.95) -> Interval:
    """Exact interval for a probability after a fixed number of independent trials.

    Promise: it holds the true probability with a probability of at least ``level``.

    References:
        Clopper and Pearson, "The use of confidence or fiducial limits", 1934.
    """
    tail = (1 - level) / 2
    return 1 - _upper(rows - hits, rows, tail), _upper(hits, rows, tail)


def _anytime_interval(hits: int, rows: int, *, level: float = 0.95) -> Interval:
    """Interval for a probability that stays valid if you look after every trial.

    Promise: with probability at least ``level`` the intervals after 1, 2, 3, ... independent
    trials *all* hold the true probability, so you may stop at any time. For each probability ``p``
    a player bets against it, with the capital spread evenly over all other probabilities; the
    interval holds every ``p`` for which this capital stays below ``1 / (1 - level)``.

    References:
        Robbins, "Statistical methods related to the law of the iterated logarithm", 1970;
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2024.
    """
    misses = rows - hits
    # The likelihood of a mixture of all probabilities, B(hits + 1, misses + 1). A player who bets
    # by it against p holds this over the likelihood of p.
    capital = lgamma(hits + 1) + lgamma(misses + 1) - lgamma(rows + 2)
    limit = capital + log(1 - level)  # the log likelihood below which p is ruled out

    def is_inside(p: float) -> bool:
        # The middle of p and 1 may be rounded to 1.
        of_misses = log1p(-p) if p < 1 else -inf
        likelihood = (hits * log(p) if hits else 0.0) + (misses * of_misses if misses else 0.0)
        return likelihood > limit

    return border(is_inside, hits / rows, 0.0), border(is_inside, hits / rows, 1.0)


def _upper(hits: int, rows: int, tail: float) -> float:
    """The probability of a hit at which ``hits`` or fewer have a probability of ``tail``."""

    def is_inside(p: float) -> bool:  # the middle of p and 1 may be rounded to 1
        return p < 1 and at_most(hits, rows, p) > tail

    return border(is_inside, hits / rows, 1.0)


def _read(path: Path) -> tuple[Sequence[Row], int]:
    """The rows of a store or a file, and the number of damaged lines."""
    if path.is_dir():
        with open_feedback(path) as feedback:
            return feedback.latest_rows(), 0
    rows = []
    lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    for line in lines:
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict):
                rows.append(row)
    return rows, len(lines) - len(rows)


def _audit_name(row: Row) -> str:
    if not isinstance(row.get("rule"), str):
        return "sets"
    requested = "k" if row.get("coverage") is None else "coverage"
    value, guarantee = row.get(requested), row.get("guarantee")
    number = f"{value:g}" if isinstance(value, int | float) else value
    name = f"{row['rule']} {requested}={number}"
    if guarantee not in (None, usual_guarantee(row["rule"])):
        name += f" guarantee={guarantee}"
    if (row.get("images") or 1) != 1:
        name += f", {row['images']} photos"
    # Such sets hold only some classes, so any other class is a miss: not to be mixed with those of
    # all.
    if row.get("restricted"):
        name += f", list {row['list']}" if row.get("list") else ", only some classes"
    return f"{name}, rejected" if row.get("verdict") == "rejected" else name
