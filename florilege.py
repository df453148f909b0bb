"""The front door: the one command `florilege`, and the only place where packages are composed.

Each verb lives in the `cli.py` of its package and is imported when it is called, so that
`florilege --help` loads neither torch nor ONNX Runtime.
"""

import errno
import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
import yaml
from typer.core import TyperCommand, TyperGroup

from models.errors import FlorilegeError, UsageError

# verb: (the module whose `app` holds it, what `florilege --help` says of it)
VERBS = {
    "data": ("data.cli", "Check a data set, or cut it into train, val and test."),
    "train": ("training.cli", "Train a network with a loss made for sets."),
    "export": ("training.cli", "Turn a run folder into a bundle, the folder the server opens."),
    "calibrate": ("calibration.cli", "Set the thresholds of a bundle on validation photos."),
    "evaluate": ("calibration.cli", "Measure set sizes and hit rates of a bundle on test photos."),
    "predict": ("server.cli", "Print the prediction sets of photos."),
    "serve": ("server.cli", "Serve prediction sets over HTTP, with a page to try them."),
    "bundle": ("models.cli", "Inspect, verify or compare bundles."),
    "doctor": ("server.cli", "Say what this installation can do."),
}
OURS = ("florilege", "server", "training", "calibration", "data", "models")
GROUPS = ("data", "bundle")  # verbs that have verbs of their own
OPEN_RUNS = ("predict", "serve")  # verbs that accept a run folder in place of a bundle


class LazyVerbs(TyperGroup):
    """The verbs by name; a package is imported only when one of its verbs is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        listed = {verb: TyperCommand(verb, help=about) for verb, (_, about) in VERBS.items()}
        self.commands = listed | dict(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the verb; for the listing of ``--help`` its name and one line will do."""
        if cmd_name not in VERBS or ctx.meta.get("listing") or ctx.resilient_parsing:
            return self.commands.get(cmd_name)
        return _load(cmd_name, VERBS[cmd_name][0])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the verbs without importing them."""
        ctx.meta["listing"] = True
        super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; a failure a person can mend becomes one line and its exit code."""
        try:
            return super().invoke(ctx)
        except FlorilegeError as error:
            _complain(str(error))
            raise typer.Exit(error.exit_code) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            place = f" while writing {error.filename}" if error.filename else ""
            _complain(f"the disk is full{place}; nothing was changed: free some space and repeat")
            raise typer.Exit(1) from error


def _complain(message: str) -> None:
    sys.stderr.write(f"error: {message}\n")


def _load(verb: str, module: str) -> Any:
    """The command object of a verb, with ``--config`` and, where it fits, run folders."""
    try:
        app = importlib.import_module(module).app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OURS:
            raise
        raise UsageError(_missing(verb, error.name or "")) from error
    command = typer.main.get_command(app)
    if verb in GROUPS:
        return command
    command = getattr(command, "commands", {}).get(verb, command)
    if all(parameter.name != "config" for parameter in command.params):
        command.params.extend(_config_option().params[:1])
    if verb in OPEN_RUNS:
        _accept_runs(command)
    return command


def _missing(verb: str, module: str) -> str:
    extra = {"onnxruntime": "cpu", "matplotlib": "report", "pyarrow": "report"}.get(module, "train")
    return f"`florilege {verb}` needs {module}; from a checkout: pip install '.[{extra}]'"


def _read_config(ctx: typer.Context, path: Path | None) -> None:
    """Let a YAML file of flag names and values stand between the environment and the defaults."""
    if path is None:
        return
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path} cannot be read as YAML: {error}") from error
    known = {parameter.name for parameter in ctx.command.params}
    names = {str(name).replace("-", "_"): value for name, value in dict(content or {}).items()}
    if unknown := sorted(set(names) - known):
        allowed = ", ".join(sorted(name for name in known if name and name != "config"))
        raise UsageError(f"--config {path} has {', '.join(unknown)}; allowed are {allowed}")
    ctx.default_map = names


def _config_option() -> Any:
    def holder(
        config: Annotated[
            Path | None,
            typer.Option(
                callback=_read_config,
                expose_value=False,
                is_eager=True,
                help="YAML file of flag names and values; flags and FLORILEGE_* win over it.",
            ),
        ] = None,
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(holder)
    return typer.main.get_command(app)


def _accept_runs(command: Any) -> None:
    """Let a verb take a run folder: it is exported and calibrated beside the run first."""
    original = command.callback

    def callback(**arguments: Any) -> Any:
        return original(**arguments | {"bundle": bundle_of(Path(arguments["bundle"]))})

    command.callback = callback


def bundle_of(path: Path) -> Path:
    """The bundle to open: ``path`` itself, or the one made of the run folder ``path``.

    Args:
        path: A bundle, or a run folder of ``florilege train``.

    Raises:
        UsageError: ``path`` is a run folder and the `train` extra is not installed.
    """
    if (path / "bundle.json").exists() or not (path / "config.yaml").exists():
        return path
    try:
        from training.export import export_run
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{path} is a run folder; to open it install the extra: pip install '.[train]', "
            f"or export it elsewhere: florilege export {path} --out BUNDLE"
        ) from error
    from calibration.calibrate import calibrate_bundle

    bundle = path / "bundle"
    newest = max(
        file.stat().st_mtime for file in (path / "best.safetensors", path / "config.yaml")
    )
    if not (bundle / "bundle.json").exists() or (bundle / "bundle.json").stat().st_mtime < newest:
        export_run(path, bundle)
        data = yaml.safe_load((path / "config.yaml").read_text("utf-8"))["data"]
        calibrate_bundle(bundle, data, "val")
    return bundle


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"florilege {importlib.metadata.version('florilege')}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyVerbs,
    name="florilege",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"auto_envvar_prefix": "FLORILEGE", "help_option_names": ["-h", "--help"]},
    help="Train, calibrate and serve prediction sets: K species on average, more where a photo is "
    "ambiguous, fewer where it is clear.",
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Hold the options that stand before the verb."""


def main() -> None:
    """Run the command line."""
    app(prog_name="florilege")


if __name__ == "__main__":
    main()
