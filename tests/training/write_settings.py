"""The table of settings in ``docs/training.md``, generated from the fields.

``python -m tests.training.write_settings`` writes it; a test compares it.
"""

import json
from pathlib import Path
from typing import Any

from florilege.settings import allowed_values, fields_of
from florilege.training.config import DEFAULT_LOSS, TrainConfig

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
BEGIN, END = "<!-- settings -->\n", "<!-- /settings -->\n"


def table() -> str:
    """One row for each setting: name, default, what it takes, meaning."""
    lines = ["| setting | default | takes | meaning |", "|---|---|---|---|"]
    for name, field in fields_of(TrainConfig).items():
        takes, meaning = allowed_values(field), " ".join(field["description"].split())
        lines.append(f"| `{name}` | {_default(name, field)} | {takes} | {meaning} |")
    return "\n".join(lines) + "\n"


def _default(name: str, field: dict[str, Any]) -> str:
    default = DEFAULT_LOSS if name == "loss" else field.get("default", "")
    view = default if isinstance(default, str) else json.dumps(default)
    return f"`{view}`" if view else ""


def page() -> str:
    """The whole page with the current table."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
