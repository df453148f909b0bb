"""Progress of long work, under the path that scripts know; `florilege.terminal` draws it."""

from florilege.terminal import Advance, progress

__all__ = ["Advance", "progress"]
