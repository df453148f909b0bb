"""What a package that is installed beside Florilege may add to it: the hooks of its plugins.

A plugin is a module with functions that are marked `@hookimpl` and named like a method of `_Hooks`
below. Its package names the module as an entry point of the group ``florilege``. What Florilege
itself has in ``florilege/plugins`` uses the same hooks. Every command loads every plugin, so a
plugin imports what takes time inside its functions.
"""

import importlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import pluggy

from florilege.cores import Workers
from florilege.errors import UsageError

if TYPE_CHECKING:  # what hooks take and return belongs to the rooms above
    from fastapi import APIRouter

    from florilege.data.sources import DataLayout
    from florilege.server.predict.batch_settings import BatchSettings
    from florilege.server.predict.prediction import Line, Observation
    from florilege.server.settings import Settings

GROUP: Final = "florilege"
hookimpl: Final = pluggy.HookimplMarker(GROUP)
_hookspec: Final = pluggy.HookspecMarker(GROUP)

MARKER: Final = "pack.json"
"""A file of every exported folder, by which an earlier export is recognised and replaced."""

# Names, not entry points: a checkout on PYTHONPATH has no metadata, and has these all the same.
BUILT_IN: Final = ("devices", "exchange", "hub", "papers", "plantnet", "ray")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A verb of the command line, or with two words one of a verb's own, such as ``data check``.

    Args:
        module: The module whose ``app``, a `typer.Typer`, holds it under the last of its words.
        about: Its line in ``florilege --help``.
        if_stopped: What is printed after Ctrl-C.
        loads_torch: It takes some seconds before its first word.
    """

    module: str
    about: str
    if_stopped: str = "stopped; each file is complete or unchanged\n"
    loads_torch: bool = False


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A way to spread work over the processes of several machines.

    Args:
        demand: Raises `UsageError` if its library is not installed.
        spread: Applies work to items as `florilege.cores.in_order` does, in the order of the items.
            Each worker calls the first argument once, and what it returns once per item; all three
            are pickled.
    """

    demand: Callable[[], object]
    spread: Callable[
        [Callable[[], Callable[[Any], Any]], Sequence[Any], Workers], Generator[Any, None, None]
    ]


class ExportedFiles(NamedTuple):
    """What a target of ``florilege export`` writes."""

    contents: Mapping[str, bytes]  # by relative path; MARKER must be among them
    sizes: Mapping[str, int]  # what a device fetches, such as ``network_bytes``


@dataclass(frozen=True, kw_only=True)
class ExportTarget:
    """A folder that ``florilege export --target`` makes of a bundle.

    Args:
        about: What it is, in a few words.
        export: Returns the files for a bundle, the value of ``--runtime``, and ``--data`` with
            ``--split``. Raises a `FlorilegeError` if it cannot.
    """

    about: str
    export: Callable[[Path, Path | None, str | None, str], ExportedFiles]


@dataclass(frozen=True, kw_only=True)
class OutputFormat:
    """A format of ``florilege predict``, chosen with ``--format`` or by the file's ending.

    Args:
        writer: Returns, for one run and its photos, the function that converts lines to the
            content of a binary file. Raises a `FlorilegeError` if a table beside the photos is
            wrong. A line is what ``--format jsonl`` prints, as a dictionary.
        check: Raises `ValueError` if flags do not go together; called for every run.
        endings: Endings of files that mean this format, such as ``.csv``.
        is_binary: It can be written to a file only, not to a terminal.
    """

    writer: "Callable[[BatchSettings, Sequence[Observation]], Convert]"
    check: "Callable[[BatchSettings], None]" = lambda _: None
    endings: Sequence[str] = ()
    is_binary: bool = False


if TYPE_CHECKING:
    Convert = Callable[[Iterable[Line], BinaryIO], None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings under a name."""

    about: str  # what it is for
    settings: Mapping[str, Any]
    data: str = ""  # the data set it is for, as its folder may be called
    options: str = ""  # of the data, such as ``noise=0.2``: added unless ``--data`` has others
    data_place: str = ""  # where to get them, such as "... is at Zenodo, DOI ..."
    cost: str = ""  # of a run, in words

    @property
    def place(self) -> str:
        """The data it is for and where to get them; empty for your own data."""
        return f"this recipe is for {self.data}: {self.data_place}" if self.data else ""

    @property
    def example(self) -> str:
        """An example of ``--data``; the options may be left out."""
        return f"{self.data}:{self.options}" if self.options else self.data


class _Hooks:
    """The hooks. A plugin has those it needs, each with the parameters it needs."""

    @_hookspec
    def clusters(self) -> Mapping[str, Cluster]:  # type: ignore[empty-body]
        """Clusters by name; the flag ``--ray`` takes the one named ``ray``."""

    @_hookspec
    def commands(self) -> Mapping[str, Command]:  # type: ignore[empty-body]
        """Commands by their words, such as ``push`` or ``data import-occurrences``."""

    @_hookspec(firstresult=True)
    def local_bundle(self, address: str) -> Path | None:
        """The folder of a bundle that is somewhere else; None for an address of another kind.

        Raises a `FlorilegeError` if it cannot be fetched.
        """

    @_hookspec
    def data_layouts(self) -> "Sequence[DataLayout]":  # type: ignore[empty-body]
        """Layouts that ``--data`` takes; the first that knows a path lists it."""

    @_hookspec
    def export_targets(self) -> Mapping[str, ExportTarget]:  # type: ignore[empty-body]
        """Targets of ``florilege export`` by the name that ``--target`` takes."""

    @_hookspec
    def output_formats(self) -> Mapping[str, OutputFormat]:  # type: ignore[empty-body]
        """Formats of ``florilege predict`` by the name that ``--format`` takes."""

    @_hookspec
    def recipes(self) -> Mapping[str, Recipe]:  # type: ignore[empty-body]
        """Named settings for ``florilege train --recipe``."""

    @_hookspec
    def routers(self, settings: "Settings") -> "Sequence[APIRouter]":  # type: ignore[empty-body]
        """Routes of a server with these settings, in the order in which they are tried.

        A route finds the open bundle at ``request.app.state.engine.pipeline``.
        """


@cache
def _plugins() -> pluggy.PluginManager:
    """All plugins: our own, then those that other packages name.

    Raises:
        UsageError: A plugin of another package cannot be loaded, or has a hook that there is not.
    """
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(_Hooks)
    for name in BUILT_IN:
        manager.register(importlib.import_module(f"{GROUP}.plugins.{name}"))
    for entry in entry_points(group=GROUP):
        try:
            # By its module, not by its name: two packages may name theirs alike.
            manager.register(entry.load())
            manager.check_pending()
        except Exception as error:
            package = "a package" if entry.dist is None else entry.dist.name
            raise UsageError(
                f"the plugin {entry.name} of {package} cannot be loaded: {error}; mend it, or "
                f"remove it with `pip uninstall {package}`"
            ) from error
    return manager


def cluster(name: str) -> Cluster:
    """The cluster of this name, which must exist."""
    clusters: dict[str, Cluster] = _united("cluster", _plugins().hook.clusters())
    return clusters[name]


def commands() -> dict[str, Command]:
    """The commands of all plugins by their words."""
    return _united("command", _plugins().hook.commands())


def local_bundle(bundle: str) -> Path:
    """The folder of a bundle, which a plugin fetches if it is the address of one."""
    return _plugins().hook.local_bundle(address=bundle) or Path(bundle)


@cache
def data_layouts() -> "Sequence[DataLayout]":
    """The layouts of all plugins."""
    return [layout for part in _plugins().hook.data_layouts() for layout in part]


def export_targets() -> dict[str, ExportTarget]:
    """The targets of all plugins by name."""
    return _united("export target", _plugins().hook.export_targets())


def output_formats() -> dict[str, OutputFormat]:
    """The formats of all plugins by name."""
    return _united("output format", _plugins().hook.output_formats())


def recipes() -> dict[str, Recipe]:
    """The recipes of all plugins by name."""
    return _united("recipe", _plugins().hook.recipes())


def routers(settings: "Settings") -> "list[APIRouter]":
    """The routes of all plugins."""
    return [router for part in _plugins().hook.routers(settings=settings) for router in part]


def _united(kind: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all plugins have by name; a `UsageError` if two have the same name."""
    united: dict[str, Any] = {}
    for part in reversed(parts):  # the last registered comes first
        if twice := sorted(united.keys() & part.keys()):
            raise UsageError(f"two plugins have the {kind} {twice[0]!r}: remove one of them")
        united |= part
    return united
