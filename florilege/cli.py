"""The command `florilege`, the only module that combines all packages.

Each verb is in the `cli.py` of its package and is imported when it is called, so that
`florilege --help` loads neither torch nor ONNX Runtime.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup, TyperOption

from florilege.command_line import (
    HELP_ALL,
    current_keys,
    current_words,
    error_message,
    usage_exit,
    variables,
    write_help,
    write_overview,
)
from florilege.cores import wait_without_spinning
from florilege.errors import FlorilegeError, UsageError, install_hint, own_version, suggestion
from florilege.hooks import Command, commands
from florilege.models.runtime import silence_telemetry
from florilege.terminal import between_words, is_first, is_step, open_streams, printable, say

_TO_CONTINUE = "stopped; repeat the command to continue\n"
_UNCHANGED = "stopped; nothing was changed\n"
VERBS = {
    "fit": Command(
        module="florilege.command_line.fit_cli",
        about="Photos to a calibrated bundle in one command: all steps below.",
        if_stopped=_TO_CONTINUE,
    ),
    "data": Command(
        module="florilege.label_review.cli",
        about="Check a data set, cut it into splits, or review its labels.",
    ),
    "train": Command(
        module="florilege.training.cli",
        about="Train a network, or a head on a pretrained one.",
        if_stopped="",  # it says itself how to continue
        loads_torch=True,
    ),
    "export": Command(
        module="florilege.command_line.import_export",
        about="Turn a run folder into a bundle, or a bundle into an offline page or files for an "
        "app.",
    ),
    "import": Command(
        module="florilege.command_line.import_export",
        about="Make a bundle from a classifier trained elsewhere.",
    ),
    "calibrate": Command(
        module="florilege.calibration.cli",
        about="Set the thresholds of a bundle on validation photos.",
    ),
    "evaluate": Command(
        module="florilege.calibration.cli",
        about="Measure set sizes and hit rates of a bundle on test photos.",
        if_stopped=_UNCHANGED,
    ),
    "predict": Command(
        module="florilege.server.cli",
        about="Print the prediction sets of photos.",
        if_stopped="stopped\n",  # it says itself which results are kept
    ),
    "serve": Command(
        module="florilege.server.cli",
        about="Serve prediction sets over HTTP, with a page to try them.",
        if_stopped="stopped\n",
    ),
    "bundle": Command(
        module="florilege.calibration.commands.bundle_cli",
        about="Inspect, verify, compare or name bundles.",
        if_stopped=_UNCHANGED,
    ),
    "doctor": Command(
        module="florilege.server.cli",
        about="Report what this installation can do.",
        if_stopped=_UNCHANGED,
    ),
    "demo": Command(
        module="florilege.command_line.demo",
        about="Train, calibrate and serve a small model on the built-in flora, or on photos of "
        "flowers.",
        if_stopped=_TO_CONTINUE,
    ),
}
"""The verbs by name; those of plugins follow them."""
OURS = "florilege"
_OPEN_RUNS = ("evaluate", "predict", "serve")  # verbs that accept a run folder in place of a bundle
_NO_SETTINGS = ("help", "help_all", None)  # flags that no variable sets
_EXTRAS = {"onnxruntime": "cpu", "onnx": "import", "matplotlib": "report", "pyarrow": "report"}
# Newer versions of typer contain their own click, where the base of its errors has no public name.
ClickException = cast(
    type[Exception],
    [base for base in typer.BadParameter.mro() if "format_message" in vars(base)][-1],
)


class _LazyVerbs(TyperGroup):
    """The verbs by name; a package is imported only when one of its verbs is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            verb: TyperCommand(verb, help=spec.about)
            for verb, spec in _verbs().items()
            if " " not in verb
        }

    def format_help(self, ctx: Any, formatter: Any) -> None:
        write_overview(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the verb that is called or completed; listing the verbs imports none."""
        verb, command, words = super().resolve_command(ctx, args)
        if verb is not None:
            if not ctx.resilient_parsing:
                _refuse_empty([verb, *words])
            if not ctx.resilient_parsing and not {"-h", "--help", "--help-all"} & {*args}:
                _announce(verb)
            try:
                command = _load(verb)
            except UsageError:
                if not ctx.resilient_parsing:  # completing a verb whose extra is missing
                    raise
        return verb, command, words

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().parse_args(ctx, args if ctx.resilient_parsing else current_words(args))
        except ClickException as error:
            raise usage_exit(error) from error

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; turn any error into one or two lines and an exit code."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise  # typer handles these; a closed pipe is not an error
        except ClickException as error:
            raise usage_exit(error) from error
        except KeyboardInterrupt as error:
            if not is_step():
                verb = _verbs().get(str(ctx.invoked_subcommand))  # none yet while it is imported
                sys.stderr.write(_UNCHANGED if verb is None else verb.if_stopped)
            # 128 and the number of SIGINT, as shells report it.
            raise typer.Exit(130) from error
        except Exception as raised:
            problem = _explained(str(ctx.invoked_subcommand), raised)
            full = ctx.params.get("traceback", False)
            message = error_message(problem, traceback=full)
            sys.stderr.write(printable(message) if full else between_words(message))
            code = problem.exit_code if isinstance(problem, FlorilegeError) else 1
            raise typer.Exit(code) from problem


def _explained(verb: str, error: Exception) -> Exception:
    """The error of a verb; that of a missing package says which extra has it."""
    missing = str(error.name) if isinstance(error, ModuleNotFoundError) else OURS
    if missing.partition(".")[0] == OURS:
        return error
    extra = _EXTRAS.get(missing, "train")
    explained = UsageError(f"`florilege {verb}` needs {missing}: {install_hint(extra)}")
    explained.__cause__ = error
    return explained


def _refuse_empty(words: Sequence[str]) -> None:
    """Refuse an empty argument, mostly of an unset variable: as a path it is the working folder."""
    for before, word in pairwise(words):
        if not word or (word.startswith("--") and word.endswith("=")):
            problem = f"what follows {word or before} is empty"
            raise UsageError(f"{problem}; perhaps a variable of the shell is not set")


def _announce(verb: str) -> None:
    """Say on a terminal why nothing happens for some seconds."""
    loads = _verbs()[verb].loads_torch and "torch" not in sys.modules
    if loads and sys.stderr.isatty() and is_first():
        say(f"florilege {verb}: loading PyTorch")


def _verbs() -> dict[str, Command]:
    """The verbs, and the commands of plugins, by their words."""
    return {**VERBS, **commands()}


def _group(words: str) -> Any:
    """The commands of the module that has a command."""
    try:
        return typer.main.get_group(importlib.import_module(_verbs()[words].module).app)
    except ModuleNotFoundError as error:
        raise _explained(words, error) from error


def _load(verb: str) -> Any:
    """The command object of a verb, with ``--config`` and, for some verbs, run folders."""
    group = _group(verb)
    if verb not in group.commands:  # it has subcommands
        for words in _verbs():
            if words.startswith(f"{verb} "):
                name = words.removeprefix(f"{verb} ")
                group.commands[name] = _group(words).commands[name]
        for name, inner in group.commands.items():
            _prepare_flags(inner, f"{verb} {name}")
        group.format_help = write_overview
        return group
    command: Any = group.commands[verb]
    if all(parameter.name != "config" for parameter in command.params):
        # Typer gives a finished command no further flag: it gets one of a command that nobody
        # calls.
        command.params.append(typer.main.get_command(_shared_app).params[0])
    _prepare_flags(command, verb)
    if verb in _OPEN_RUNS:  # they take a run folder, which is first exported and calibrated
        run = command.callback
        command.callback = lambda **arguments: run(**arguments | _opened(arguments))
    return command


def _opened(arguments: Mapping[str, Any]) -> dict[str, Path]:
    """The bundles among the values of a verb; that of a run folder is made first."""
    from florilege.run_bundle import bundle_folder

    folders = {name: arguments.get(name) for name in ("bundle", "baseline")}
    return {name: bundle_folder(str(path)) for name, path in folders.items() if path is not None}


def _prepare_flags(command: Any, name: str) -> None:
    """Name the environment variables of each flag after the flag, and write the help ourselves."""
    if any(getattr(parameter, "rich_help_panel", None) for parameter in command.params):
        command.params.append(typer.main.get_command(_shared_app).params[1])
    kinds = get_type_hints(command.callback, include_extras=True)
    command.format_help = partial(write_help, kinds | {"config": Path})
    for parameter in command.params:
        if isinstance(parameter, TyperOption) and parameter.name not in _NO_SETTINGS:
            parameter.envvar = variables(name, max(parameter.opts, key=len))
            parameter.show_envvar = False  # it follows from the flag; help has 80 columns


def _read_config(ctx: typer.Context, path: Path | None) -> None:
    """Use a YAML file of flag names and values instead of the defaults."""
    if path is None:
        return
    import yaml  # --help needs none of it

    try:
        content = yaml.safe_load(path.read_text("utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path} cannot be read as YAML: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"--config {path} must hold lines `flag: value`; see docs/reference.md")
    parameters = {parameter.name: parameter for parameter in ctx.command.params if parameter.name}
    del parameters["config"]
    typed = {str(name).replace("-", "_"): value for name, value in content.items()}
    names = current_keys(ctx.command_path.partition(" ")[2], typed)
    if unknown := sorted(set(names) - set(parameters)):
        allowed = ", ".join(sorted(parameters))
        near = suggestion(unknown[0], parameters)
        raise UsageError(f"--config {path} has {', '.join(unknown)}; allowed are {allowed}{near}")
    ctx.default_map = {name: _flag_value(parameters[name], value) for name, value in names.items()}


def _flag_value(parameter: Any, value: Any) -> Any:
    """A list if the flag may be repeated, otherwise one value."""
    if getattr(parameter, "multiple", False) or parameter.nargs != 1:
        return value if isinstance(value, list) or value is None else [value]
    return ",".join(map(str, value)) if isinstance(value, list) else value  # [1, 2] as --k 1,2


def _describe_all(context: typer.Context, requested: bool) -> None:
    if requested:
        context.meta[HELP_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


_shared_app = typer.Typer(add_completion=False)


@_shared_app.command()
def _shared_flags(
    config: Annotated[
        Path | None,
        typer.Option(
            callback=_read_config,
            expose_value=False,
            is_eager=True,
            help="YAML file of flags and values, which flags and variables override.",
        ),
    ] = None,
    help_all: Annotated[
        bool,
        typer.Option(
            "--help-all",
            callback=_describe_all,
            expose_value=False,
            is_eager=True,
            help="Describe every flag, those under the headings below too.",
        ),
    ] = False,
) -> None:
    """Declare ``--config``, which every verb takes, and ``--help-all`` of those with many flags."""


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"florilege {own_version()}")
        raise typer.Exit


app = typer.Typer(
    cls=_LazyVerbs,
    name="florilege",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"auto_envvar_prefix": "FLORILEGE", "help_option_names": ["-h", "--help"]},
    help="Train, calibrate and serve prediction sets: K species on average, more if a photo is "
    "ambiguous, fewer if it is clear.",
)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            allow_from_autoenv=False,  # a container image may define FLORILEGE_VERSION
            help="Print the version and exit.",
        ),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show errors with their full traceback.")
    ] = False,
) -> None:
    """Declare the options that come before the verb."""


def main() -> None:
    """Run the command line."""
    open_streams()
    silence_telemetry()
    wait_without_spinning()
    app(prog_name="florilege")
