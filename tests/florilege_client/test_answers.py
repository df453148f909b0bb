"""The types are those of the interface, and errors hold what problem documents say."""

import json

from florilege_client.errors import Problem
from tests.florilege_client.write_answers import MODULE, module
from tests.server.write_golden import GOLDEN


def test_the_types_are_written_from_the_description() -> None:
    """After a wanted change: `python -m tests.florilege_client.write_answers`."""
    assert MODULE.read_text("utf-8") == module()


def test_a_problem_holds_every_field_of_a_problem_document() -> None:
    document = json.loads(GOLDEN.read_text("utf-8"))
    outcome = set(document["components"]["schemas"]["ProblemDocument"]["properties"])
    total = set(vars(Problem("it is gone", status=404)))
    assert total == outcome - {"type", "title", "instance"} | {"request_id", "retry_after"}
