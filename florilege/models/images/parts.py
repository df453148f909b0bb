"""Count the parts of a file, so that a hostile one with millions of them costs nothing."""

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from florilege.models.images.sniff import DamagedImage

_Part = TypeVar("_Part")
MOST_PARTS: Final = 100_000  # reading this many takes a tenth of a second


class PartCounter:
    """Passes on the parts of one file, and refuses it once there are too many in all."""

    def __init__(self) -> None:
        self._parts = 0

    def __call__(self, parts: Iterable[_Part]) -> Iterator[_Part]:
        for part in parts:
            self._parts += 1
            if self._parts > MOST_PARTS:
                raise DamagedImage(f"the file has more than {MOST_PARTS} parts")
            yield part
