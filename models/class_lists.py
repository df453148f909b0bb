"""Lists of classes, such as the species of a region, to which an answer can be restricted.

A list file holds one class id a line in UTF-8. A ``#`` that begins a line or follows a space begins
a comment.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from florilege.errors import DataError, UsageError, repeated
from florilege.models.classes import ClassTable
from florilege.suggestions import nearest

_COMMENT = re.compile(r"(^|\s)#.*")
LONGEST_NAME = 100
NEAR_IDS_FOR = 20
"""Near ids are looked for, which takes a while, for this many unknown ones."""


@dataclass(frozen=True, kw_only=True)
class RegionList:
    """Some of the classes of a model.

    Attributes:
        name: What requests call it.
        classes: Output indices of its classes, ascending, at least one.
    """

    name: str
    classes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.classes or list(self.classes) != sorted(set(self.classes)):
            raise ValueError(f"list {self.name!r} must hold classes, ascending, each once")
        if self.classes[0] < 0:
            raise ValueError(f"list {self.name!r} holds class {self.classes[0]}")


def read_list(path: Path, classes: ClassTable, *, name: str | None = None) -> RegionList:
    """Read a list file.

    Args:
        path: The file.
        classes: Those of the model.
        name: By default the name of the file without its ending.

    Raises:
        DataError: It cannot be read, is not UTF-8, holds no id, an id twice, or ids that the model
            does not have (each is named, with ids and names that look alike), or the name cannot
            be used.
    """
    list_name = _checked_name(path.stem if name is None else name, path)
    ids = _ids(path)
    if not ids:
        raise DataError(f"{path} holds no class id: write one a line")
    if twice := repeated(ids):
        raise DataError(f"{path}: these class ids appear twice: {', '.join(twice)}")
    if unknown := [id_ for id_ in ids if id_ not in classes.index_of]:
        raise DataError(
            f"{path}: {len(unknown)} of {len(ids)} class ids are not among the {len(classes):,} of "
            f"the model; correct them or take them out:{_with_near_names(unknown, classes)}"
        )
    return RegionList(name=list_name, classes=tuple(sorted(classes.index_of[id_] for id_ in ids)))


def read_lists(words: Iterable[str], classes: ClassTable) -> tuple[RegionList, ...]:
    """Read the lists that `list_files` finds for each of ``words``.

    Raises:
        DataError: As `list_files` and `read_list`.
        UsageError: Two lists have one name.
    """
    lists = [
        read_list(file, classes, name=name) for word in words for name, file in list_files(word)
    ]
    if twice := repeated(each.name for each in lists):
        raise UsageError(f"--list: two lists are named {', '.join(twice)}; rename one")
    return tuple(lists)


def list_files(word: str) -> list[tuple[str | None, Path]]:
    """The list files that ``[NAME=]FILE`` or a folder stands for, each with its name if given.

    Hidden files of a folder are left out.

    Raises:
        DataError: It is a folder without a file, or cannot be read.
    """
    name, separator, path = word.partition("=")
    if separator:
        return [(name, Path(path))]
    folder = Path(word)
    if not folder.is_dir():
        return [(None, folder)]
    try:
        files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from error
    if not files:
        raise DataError(f"{folder} holds no list file: put one for each region there")
    return [(None, file) for file in files]


def _ids(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{path} is not UTF-8 in line {line}: save it as UTF-8") from error
    lines = (_COMMENT.sub("", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def _with_near_names(unknown: list[str], classes: ClassTable) -> str:
    """A line for each unknown id, the first ones with the known ids that are near."""
    id_of = {info.scientific_name: info.id for info in classes}
    text = ""
    for row, unknown_id in enumerate(unknown):
        candidates = [*classes.ids, *id_of] if row < NEAR_IDS_FOR else []
        near = dict.fromkeys(id_of.get(each, each) for each in nearest(unknown_id, candidates))
        text += f"\n  {unknown_id}" + (f" (near: {', '.join(near)})" if near else "")
    return text


def _checked_name(name: str, path: Path) -> str:
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise DataError(
            f"{path}: a list cannot be named {name[:LONGEST_NAME]!r}: take 1 to {LONGEST_NAME} "
            "printable characters without spaces around them"
        )
    return name
