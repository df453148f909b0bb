"""Import the code of users by name, such as the loss ``my_losses:Focal``."""

import importlib
import sys
from pathlib import Path
from typing import Any

from florilege.errors import UsageError, suggestion


def is_extension(name: str) -> bool:
    """Whether a name is that of a user's code: ``package.module:Name``.

    Example:
        >>> is_extension("my_losses:Focal"), is_extension("focal"), is_extension("timm:resnet18")
        (True, False, False)
    """
    module, colon, attribute = name.partition(":")
    return bool(colon) and module != "timm" and attribute.isidentifier()


def load_extension(name: str) -> Any:
    """Import the object with the name ``package.module:Name``; a `UsageError` if that fails.

    Modules in the working directory come first, as with ``python -m``.
    """
    module_name, _, attribute = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{name}: there is no module {error.name}; run the command in the folder that has "
            f"{module_name}, or install the package"
        ) from error
    except Exception as error:
        raise UsageError(
            f"{name}: {module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, attribute):
        near = suggestion(attribute, vars(module))
        raise UsageError(f"{name}: {module_name} has no {attribute}{near}")
    return getattr(module, attribute)
