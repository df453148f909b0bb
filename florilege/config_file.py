"""``--config FILE``: a YAML file of flags, which rank between the environment and the defaults."""

from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
import yaml

from florilege.errors import UsageError
from florilege.renames import current_keys
from florilege.suggestions import suggestion


def _read_config(ctx: typer.Context, path: Path | None) -> None:
    """Use a YAML file of flag names and values instead of the defaults."""
    if path is None:
        return
    content = _read_yaml(path)
    parameters = {parameter.name: parameter for parameter in ctx.command.params if parameter.name}
    del parameters["config"]
    typed = {str(name).replace("-", "_"): value for name, value in content.items()}
    names = current_keys(ctx.command_path.partition(" ")[2], typed)
    if unknown := sorted(set(names) - set(parameters)):
        allowed = ", ".join(sorted(parameters))
        near = suggestion(unknown[0], parameters)
        raise UsageError(f"--config {path} has {', '.join(unknown)}; allowed are {allowed}{near}")
    ctx.default_map = {name: _flag_value(parameters[name], value) for name, value in names.items()}


def _read_yaml(path: Path) -> dict[Any, Any]:
    try:
        content = yaml.safe_load(path.read_text("utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path} cannot be read as YAML: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"--config {path} must hold lines `flag: value`; see the README")
    return content


def _flag_value(parameter: Any, value: Any) -> Any:
    """The value of a line: a list if the flag may be repeated, otherwise one value."""
    if getattr(parameter, "multiple", False) or parameter.nargs != 1:
        return value if isinstance(value, list) or value is None else [value]
    return ",".join(map(str, value)) if isinstance(value, list) else value  # [1, 2] as --k 1,2


def config_option() -> Any:
    """A Typer command whose only parameter is ``--config``."""

    def command(
        config: Annotated[
            Path | None,
            typer.Option(
                callback=_read_config,
                expose_value=False,
                is_eager=True,
                help="YAML file of flag names and values; flags and FLORILEGE_* override it.",
            ),
        ] = None,
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(command)
    return typer.main.get_command(app)
