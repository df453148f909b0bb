from florilege import errors
from tests.shipped import VERSION


def test_the_commands_name_the_checkout_and_the_file_of_the_wheel() -> None:
    assert errors.install_hint("train") == (
        "in a checkout pip install '.[train]', "
        f"from the wheel pip install 'florilege-{VERSION}-py3-none-any.whl[train]'"
    )
