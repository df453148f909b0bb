"""The section of a bundle's model card and metrics that calibration writes."""

import json
import re
from collections.abc import Mapping
from typing import Any

from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.inspection import METRICS
from florilege.calibration.record.record_file import CALIBRATIONS
from florilege.calibration.record.schema import Row
from florilege.calibration.scores import score_name
from florilege.calibration.threshold import threshold_text
from florilege.errors import BundleError
from florilege.models.bundle.bundle import Bundle

CARD = "MODEL_CARD.md"
TITLE = "## Calibration"


def read_card_files(bundle: Bundle) -> tuple[str, Mapping[str, Any]]:
    """Read the model card, with a title if there is none, and metrics; BundleError if damaged."""
    card = bundle.read(CARD) if bundle.has(CARD) else f"# {bundle.manifest.name}\n".encode()
    try:
        return card.decode(), bundle.read_object(METRICS)
    except UnicodeDecodeError as error:
        raise BundleError(f"{bundle.path / CARD} is damaged: export the bundle again") from error


def updated_files(
    card: str, metrics: Mapping[str, Any], record: CalibrationRecord
) -> dict[str, bytes]:
    """The files that a new calibration changes, with the rest of their content unchanged."""
    rows = [record.point("average_k", k=k).row for k in sorted(record.asked_k)]
    measured = record.measured
    figures = [
        {"k": row.value, "mean_set_size": row.size, "hit_rate": row.hit_rate} for row in rows
    ]
    calibration = {"split": measured.split, "rows": measured.rows, "average_k": figures}
    section = [
        TITLE,
        f"\nCalibrated on the {measured.rows:,} photos of the split `{measured.split}`, head "
        f"`{record.head}`, scores `{score_name(record.score_kind, record.temperature)}`.",
        "",
        "| K | lambda | mean size | hit rate | 95 % interval |",
        "|---|---|---|---|---|",
        *map(_line, rows),
    ]
    if note := selection_note(record):
        section += ["", f"{note}."]
    return {
        CALIBRATIONS[measured.runtime]: record.to_json().encode(),
        CARD: _with_section(card, "\n".join(section)).encode(),
        METRICS: json.dumps({**metrics, "calibration": calibration}, indent=1).encode(),
    }


def selection_note(record: CalibrationRecord) -> str:
    """The expected hit rate where these photos chose head and scores; empty if they did not."""
    measured, choice = record.measured, record.selection
    if not measured.chose_head:
        return ""
    low, high = choice.honest_ci95
    overlap = "; some also trained or chose the network" if measured.chose_checkpoint else ""
    return (
        f"these photos chose head and scores among {choice.candidates} at K = {choice.k:g}: on "
        f"other photos such a choice hits {choice.honest_hit_rate:.4f} "
        f"(95 %: {low:.4f} to {high:.4f}){overlap}"
    )


def _with_section(card: str, section: str) -> str:
    """The card with this section in place of the one with the same title, or after its end."""
    pattern = re.compile(rf"^{TITLE}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if pattern.search(card):
        return pattern.sub(lambda _: f"{section}\n\n", card, count=1).rstrip("\n") + "\n"
    return f"{card.rstrip()}\n\n{section}".strip() + "\n"


def _line(row: Row) -> str:
    threshold, hits = threshold_text(row.lambda_val), "not measured | "
    if row.hit_rate is not None:
        hits = f"{row.hit_rate:.4f} | {row.hit_low:.4f} to {row.hit_high:.4f}"
    return f"| {row.value:g} | {threshold} | {row.size:.3f} | {hits} |"
