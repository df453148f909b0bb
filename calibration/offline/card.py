"""The part of a bundle's model card and metrics that calibration writes."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from calibration.record import CalibrationRecord
from calibration.record.point import OperatingPoint
from calibration.scores import named
from calibration.threshold import threshold_text
from models.bundle.bundle import CALIBRATION, Bundle
from models.errors import BundleError

CARD = "MODEL_CARD.md"
METRICS = "metrics.json"
TITLE = "Calibration"


class Papers(NamedTuple):
    """What stands in a bundle beside its network.

    Attributes:
        card: Its ``MODEL_CARD.md``.
        metrics: Its ``metrics.json``.
    """

    card: str
    metrics: Mapping[str, Any]


def card_with(card: str, record: CalibrationRecord) -> str:
    """The model card with its section on calibration written anew, the rest untouched."""
    lines = [
        f"Calibrated on the {record.measured.rows:,} photos of the split "
        f"`{record.measured.split}`, head `{record.head}`, scores "
        f"`{named(record.score_kind, record.temperature)}`.",
        "",
        "| K | lambda | mean size | hit rate | 95 % interval |",
        "|---|---|---|---|---|",
    ]
    for k in sorted(record.asked_k):
        point = record.point("average_k", k=k)
        lines.append(
            f"| {k:g} | {threshold_text(point.lambda_val)} | {point.expected_size.value:.3f} | "
            f"{_hits(point)} |"
        )
    return replace_section(card, TITLE, "\n".join(lines))


def metrics_with(metrics: Mapping[str, Any], record: CalibrationRecord) -> bytes:
    """``metrics.json`` with what this calibration measured under ``calibration``."""
    points = [record.point("average_k", k=k) for k in sorted(record.asked_k)]
    measured = {
        "split": record.measured.split,
        "rows": record.measured.rows,
        "average_k": [
            {"k": point.k, "mean_set_size": point.expected_size.value,
             "hit_rate": None if point.hit_rate is None else point.hit_rate.value}
            for point in points
        ],
    }  # fmt: skip
    return json.dumps({**metrics, "calibration": measured}, indent=1).encode()


def _hits(point: OperatingPoint) -> str:
    if point.hit_rate is None:
        return "not measured | "
    low, high = point.hit_rate.ci95
    return f"{point.hit_rate.value:.4f} | {low:.4f} to {high:.4f}"


def replace_section(text: str, title: str, body: str) -> str:
    """Write ``body`` as the section ``## title``, in place of an older one or at the end.

    Example:
        >>> replace_section("# Card\\n\\n## A\\n\\nold\\n\\n## B\\n\\nkept\\n", "A", "new")
        '# Card\\n\\n## A\\n\\nnew\\n\\n## B\\n\\nkept\\n'
    """
    section = f"## {title}\n\n{body}\n\n"
    found = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if found.search(text):
        return found.sub(lambda _: section, text, count=1).rstrip("\n") + "\n"
    return f"{text.rstrip()}\n\n{section}".strip() + "\n"


def read_papers(bundle: Bundle) -> Papers:
    """Model card and metrics of a bundle; a bare card where it has none.

    Raises:
        BundleError: One of them is damaged.
    """
    card = bundle.read(CARD) if bundle.has(CARD) else f"# {bundle.name}\n".encode()
    try:
        return Papers(card=card.decode(), metrics=bundle.read_object(METRICS))
    except UnicodeDecodeError as error:
        raise BundleError(f"{bundle.path / CARD} is damaged: export the bundle again") from error


def updated_files(papers: Papers, record: CalibrationRecord) -> dict[str, bytes]:
    """Everything in the bundle that a new calibration changes."""
    return {
        CALIBRATION: record.to_json().encode(),
        CARD: card_with(papers.card, record).encode(),
        METRICS: metrics_with(papers.metrics, record),
    }
