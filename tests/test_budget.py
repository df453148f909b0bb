"""What `make lint` refuses of names; its limits are figures in `tests.budget`."""

from pathlib import Path

import pytest

from tests import budget


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        (
            "florilege/data/rows.py",
            "found = 1\n",
            "florilege/data/rows.py has a variable found: say what it holds",
        ),
        ("florilege/data/rows.py", "for seen in ():\n    pass\n", "has a variable seen"),
        ("florilege/data/rows.py", "def size(told):\n    return told\n", "has a variable told"),
        (
            "florilege/data/looking.py",
            "rows = 1\n",
            "a module is called looking: name it by a noun",
        ),
        ("florilege/data/batching.py", "rows = 1\n", None),
    ],
)
def test_names_that_say_nothing_are_refused(
    path: str, code: str, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "product", lambda: {Path(path): code})
    monkeypatch.setattr(budget, "written_words", dict)  # a full page is no fault of a name
    faults = list(budget.faults())
    assert [message in fault for fault in faults] == [True] if message else faults == []
