"""The tables of ``docs/http.md``, generated: ``python -m tests.server.write_tables``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from florilege.server.problems import OTHER_INTERFACES, Code
from florilege.server.prometheus import Metrics

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "http.md"
GOLDEN = ROOT / "tests" / "golden" / "openapi.json"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def parameters() -> str:
    """The query of ``POST /v1/identify``."""
    operation = json.loads(GOLDEN.read_text("utf-8"))["paths"]["/v1/identify"]["post"]
    query = [each for each in operation["parameters"] if each["in"] == "query"]
    rows = [(f"`{each['name']}`", _meaning(each)) for each in query]
    return _table(("parameter", ""), rows)


def _meaning(parameter: dict[str, Any]) -> str:
    """The description of a parameter, its choices and its default."""
    schema = parameter["schema"]
    choices = ", ".join(f"`{each}`" for each in schema.get("enum", ()))
    default = schema.get("default")
    words = parameter["description"].split()
    words += [f"One of {choices}."] if choices else []
    words += [] if default is None else [f"Default: `{str(default).lower()}`."]
    return " ".join(words)


def problems() -> str:
    """Every code of a problem."""
    codes = sorted(set(Code) - set(OTHER_INTERFACES), key=lambda code: (code.status, code))
    rows = [
        (str(code.status), f"`{code}`", "yes" if code.retryable else "no", code.summary)
        for code in codes
    ]
    return _table(("status", "`code`", "`retryable`", "meaning"), rows)


def metrics() -> str:
    """Every metric of ours."""
    rows = []
    for family in Metrics().registry.collect():
        if family.name.startswith("florilege_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            rows.append((f"`{name}`", family.documentation))
    return _table(("metric", ""), rows)


def page() -> str:
    """The whole page with the current tables."""
    text = PAGE.read_text("utf-8")
    for table in (parameters, problems, metrics):
        begin, end = f"<!-- {table.__name__} -->\n", f"<!-- /{table.__name__} -->\n"
        before, _, rest = text.partition(begin)
        text = before + begin + table() + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
