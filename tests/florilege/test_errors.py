"""Exit codes are a contract of the command line; install hints name the right extra."""

import tomllib
from pathlib import Path

import pytest

from florilege import errors

ROOT = Path(__file__).parents[2]


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


def test_the_commands_name_the_checkout_and_the_file_of_the_wheel() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert errors.install_hint("train") == (
        "in a checkout pip install '.[train]', "
        f"from the wheel pip install 'florilege-{version}-py3-none-any.whl[train]'"
    )
