"""What tests expect of code that raises a `Problem`."""

import pytest

from florilege.server.problems import Code, Problem


def raises_problem(code: Code, match: str | None = None) -> "pytest.RaisesExc[Problem]":
    """As `pytest.raises`, for a `Problem` with this code."""
    return pytest.RaisesExc(Problem, match=match, check=lambda problem: problem.code is code)
