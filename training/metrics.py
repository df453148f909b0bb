"""Reading ``metrics.csv`` back."""

import csv
from typing import Any

from models.errors import BundleError
from training.run_folder import RunFolder


def best_row(folder: RunFolder) -> dict[str, Any]:
    """The figures of the epoch whose weights are in ``best.safetensors``.

    Returns:
        By column name, numbers as numbers; empty for a run of no epochs.

    Raises:
        BundleError: The file is damaged.
    """
    if not folder.metrics.is_file():
        return {}
    try:
        with folder.metrics.open(encoding="utf-8", newline="") as file:
            rows = [
                {key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)
            ]
        return max(rows, key=lambda row: float(row["val_score"])) if rows else {}
    except (OSError, csv.Error, KeyError, ValueError, TypeError) as error:
        raise BundleError(f"{folder.metrics} cannot be read: {error!r}") from error


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
