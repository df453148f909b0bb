"""The losses, as modules and functions of PyTorch; see :mod:`florilege.training.losses`."""

from florilege.training.losses import *  # noqa: F403  # the same names
from florilege.training.losses import __all__ as __all__
