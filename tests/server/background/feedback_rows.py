"""What a feedback store holds."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from florilege.feedback_store import FILE


def words(store: Path) -> list[dict[str, Any]]:
    """All feedback in order, each with its answer."""
    result = rows(
        store, "SELECT answers.*, feedback.* FROM feedback JOIN answers ON id = answer_id"
    )
    return [{**row, "members": json.loads(row["members"])} for row in result]


def photos(store: Path) -> list[bytes]:
    """All photos, in the order of arrival."""
    return [row["jpeg"] for row in rows(store, "SELECT jpeg FROM photos ORDER BY rowid")]


def rows(store: Path, query: str) -> list[dict[str, Any]]:
    """The rows of a query."""
    with closing(sqlite3.connect(store / FILE)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute(query)]
