"""Exit codes are a contract of the command line."""

import pytest

from florilege import errors


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("FlorilegeError", 1),
        ("UsageError", 2),
        ("DataError", 3),
        ("BundleError", 4),
        ("GateFailed", 5),
        ("SomeInputsFailed", 6),
    ],
)
def test_each_error_has_its_exit_code(name: str, code: int) -> None:
    error = getattr(errors, name)
    assert issubclass(error, errors.FlorilegeError)
    assert error.exit_code == code
