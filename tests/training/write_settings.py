"""The settings in ``docs/training.md`` and the losses in ``docs/losses.md``, generated.

``python -m tests.training.write_settings`` writes both; a test compares them.
"""

import inspect
import json
from pathlib import Path
from typing import Any

from florilege.settings import _allowed_values, fields_of
from florilege.training.config import DEFAULT_LOSS, TrainConfig
from florilege.training.losses import LOSSES

DOCS = Path(__file__).parents[2] / "docs"
SHARED = ("reduction", "weight", "ignore_index")  # options of every loss


def table() -> str:
    """One row for each setting: name, default, what it takes, meaning."""
    lines = ["| setting | default | takes | meaning |", "|---|---|---|---|"]
    for name, field in fields_of(TrainConfig).items():
        takes, meaning = _allowed_values(field), " ".join(field["description"].split())
        lines.append(f"| `{name}` | {_default(name, field)} | {takes} | {meaning} |")
    return "\n".join(lines) + "\n"


def _default(name: str, field: dict[str, Any]) -> str:
    default = DEFAULT_LOSS if name == "loss" else field.get("default", "")
    view = default if isinstance(default, str) else json.dumps(default)
    return f"`{view}`" if view else ""


def losses() -> str:
    """One row for each loss: its head, and its parameters with their defaults."""
    rows = ["| loss | head | parameters |", "|---|---|---|"]
    for name, loss in LOSSES.items():
        own = [p for p in inspect.signature(loss).parameters.values() if p.name not in SHARED]
        texts = [f"`{p.name}`" + f" = {p.default}" * (p.default is not p.empty) for p in own]
        head = loss.head.replace("two_head", "two heads")
        rows.append(f"| `{name}` | {head} | {', '.join(texts)} |")
    return "\n".join(rows) + "\n"


TABLES = {"training.md": ("settings", table), "losses.md": ("losses", losses)}


def page(name: str) -> str:
    """The whole page with the current table."""
    block, write = TABLES[name]
    begin, end = f"<!-- {block} -->\n", f"<!-- /{block} -->\n"
    before, _, rest = (DOCS / name).read_text("utf-8").partition(begin)
    return before + begin + write() + end + rest.partition(end)[2]


if __name__ == "__main__":
    for name in TABLES:
        (DOCS / name).write_text(page(name), "utf-8")
