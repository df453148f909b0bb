"""How to install an extra: no package index has Florilege, so from a checkout or its wheel."""

from importlib.metadata import version


def install_hint(extra: str) -> str:
    """The commands that install an extra, for the end of a message.

    Example:
        >>> install_hint("report").partition(",")[0]
        "in a checkout pip install '.[report]'"
    """
    wheel = f"florilege-{version('florilege')}-py3-none-any.whl"
    return f"in a checkout pip install '.[{extra}]', from the wheel pip install '{wheel}[{extra}]'"
