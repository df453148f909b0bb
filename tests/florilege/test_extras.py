"""The commands that a message names do install the extra."""

import tomllib
from pathlib import Path

from florilege.extras import install_hint

ROOT = Path(__file__).parents[2]


def test_the_commands_name_the_checkout_and_the_file_of_the_wheel() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert install_hint("train") == (
        "in a checkout pip install '.[train]', "
        f"from the wheel pip install 'florilege-{version}-py3-none-any.whl[train]'"
    )
