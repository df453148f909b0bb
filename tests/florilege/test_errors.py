"""Exit codes are a contract of the command line; install hints name the right extra."""

import tomllib
from pathlib import Path

from florilege import errors

ROOT = Path(__file__).parents[2]


def test_each_error_has_its_exit_code() -> None:
    names = ["FlorilegeError", "UsageError", "DataError"]
    names += ["BundleError", "GateFailed", "SomeInputsFailed"]
    classes = [getattr(errors, name) for name in names]
    assert [each.exit_code for each in classes] == [1, 2, 3, 4, 5, 6]
    assert all(issubclass(each, errors.FlorilegeError) for each in classes)


def test_the_commands_name_the_checkout_and_the_file_of_the_wheel() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert errors.install_hint("train") == (
        "in a checkout pip install '.[train]', "
        f"from the wheel pip install 'florilege-{version}-py3-none-any.whl[train]'"
    )
