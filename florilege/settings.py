"""Settings and their flags: one field defines the flag, variable, file key, help and check.

``FlagSettings`` and ``flags_of`` handle settings that are flags, ``fields_of`` those of a file, by
group. ``complaint`` says of all what is wrong. A setting may name the code of a user, such as the
loss ``my_losses:Focal``: `load_extension` imports it.
"""

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from florilege.errors import UsageError, did_you_mean, nearest, suggestion

_NONE: Final[Mapping[str, Any]] = {}
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
Verb = TypeVar("Verb", bound=Callable[..., None])


class FlagSettings(BaseModel):
    """Immutable settings, validated on construction.

    A field defines everything: type, default, bounds and, in the text below it, the help for its
    flag. :func:`flags_of` makes the flags.

    Raises:
        ValueError: A field refuses its value; the message starts with the field's name.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(complaint(error, type(self), null=False)) from error


@dataclass(frozen=True, kw_only=True)
class Flag:
    """How a field appears on the command line, where this differs from its name and type."""

    name: str | None = None  # such as ``--cors-origin``
    short: str | None = None  # such as ``-o``, for a flag with a name
    type: Any = None  # of the command-line value, which the field's validators convert
    help: str | None = None  # if the field's description does not suit a command line
    argument: bool = False  # a positional argument instead of a flag
    metavar: str | None = None  # placeholder for the value in the help, such as ``DATA``
    default: str | None = None  # shown in the help if None means "not given"


def flags_of(
    model: type[BaseModel], panels: Mapping[str, Sequence[str]] = _NONE
) -> Callable[[Verb], Verb]:
    """Turn a verb's parameter of type ``model``, or of a base of it, into one flag per field.

    ``panels`` are headings of the help, each with its fields.

    Example:
        >>> from pydantic import Field
        >>> class Limits(FlagSettings):
        ...     threads: int = Field(2, ge=1, description="Photos at once.")
        >>> @flags_of(Limits)
        ... def verb(settings: Limits) -> None:
        ...     print(settings.threads)
        >>> verb(threads=3)
        3
    """

    def decorate(verb: Verb) -> Verb:
        signature, fields = inspect.signature(verb), dict(_parameters(model, panels))
        others = dict(signature.parameters)
        target = next(
            name for name, parameter in others.items() if parameter.annotation in model.__mro__
        )
        del others[target]
        # The verb's own flags first: what they are is for everybody.
        parameters = [
            *(parameter.replace(kind=_KEYWORD) for parameter in others.values()),
            *fields.values(),
        ]

        @functools.wraps(verb)
        def call(**arguments: Any) -> None:
            values = {
                name: arguments.pop(parameter.name, None) for name, parameter in fields.items()
            }
            values = {name: value for name, value in values.items() if value is not None}
            try:
                arguments[target] = model(**values)
            except ValueError as error:
                reason = str(error)  # FlagSettings have said it already
                if isinstance(error, ValidationError):
                    reason = complaint(error, model, null=False)
                raise UsageError(_by_flag(reason, fields)) from error
            verb(**arguments)

        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by Typer
        # Typer takes the flags from the signature and their types from the annotations.
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call  # type: ignore[return-value]  # the same verb with other parameters

    return decorate


def _by_flag(reason: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """A complaint that begins with the flag people wrote, where the field is called otherwise."""
    name = re.match(r"\w*", reason)
    own = parameters[name[0]].name if name and name[0] in parameters else None
    if name is None or own in (None, name[0]):
        return reason
    return f"--{str(own).replace('_', '-')}{reason[name.end() :]}"


def _parameters(
    model: type[BaseModel], panels: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, inspect.Parameter]]:
    """Each field with the parameter that Typer turns into its flag."""
    for name, field in model.model_fields.items():
        flag = next((part for part in field.metadata if isinstance(part, Flag)), Flag())
        own = (flag.name or name).lstrip("-").replace("-", "_")
        panel = next((title for title, names in panels.items() if name in names), None)
        default = inspect.Parameter.empty if field.is_required() else _default(field)
        kind: Any = Annotated[flag.type or field.annotation, _declaration(own, flag, field, panel)]
        yield name, inspect.Parameter(own, _KEYWORD, default=default, annotation=kind)


def _declaration(own: str, flag: Flag, field: FieldInfo, panel: str | None) -> Any:
    """What Typer needs to know of a flag or argument besides its type and default."""
    about: dict[str, Any] = {
        "help": " ".join((flag.help or field.description or "").split()),
        "metavar": flag.metavar,
        "show_default": flag.default or True,
        "rich_help_panel": panel,
    }
    if flag.argument:
        return typer.Argument(**about)
    # A placeholder without a name would become the name itself in typer 0.27.
    spelled = flag.name or (flag.metavar and f"--{own.replace('_', '-')}")
    return typer.Option(*filter(None, (spelled, flag.short)), **about)


def _default(field: FieldInfo) -> Any:
    default = field.get_default(call_default_factory=True)
    return list(default) or None if isinstance(default, tuple | list) else default


@functools.cache
def fields_of(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """The JSON schema of each setting by its full name, such as ``optimiser.momentum``."""
    schema, fields = model.model_json_schema(), dict[str, dict[str, Any]]()
    for name, field in schema["properties"].items():
        group = schema.get("$defs", {}).get(field.get("$ref", "").rpartition("/")[2])
        single = group and {f"{name}.{key}": value for key, value in group["properties"].items()}
        fields |= single or {name: field}
    return fields


def _allowed_values(field: Mapping[str, Any], *, null: bool = True) -> str:
    """The allowed values of a setting, in words; ``field`` is its JSON schema.

    Example:
        >>> _allowed_values({"anyOf": [{"type": "number", "minimum": 0}, {"type": "null"}]})
        'a number >= 0, or null'
    """
    kinds = field.get("anyOf", [field])
    words = " or ".join(_allowed(kind) for kind in kinds if kind.get("type") != "null")
    return f"{words}, or null" if null and {"type": "null"} in kinds else words


_TYPES: Final = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "array": "a list of numbers",
    "object": "settings by name",
}


def _allowed(kind: Mapping[str, Any]) -> str:
    if "const" in kind:
        return str(kind["const"])
    words = _kind_in_words(kind)
    bounds = kind.get("items") or kind.get("prefixItems", [kind])[0]
    low, high = bounds.get("minimum"), bounds.get("maximum")
    above, below = bounds.get("exclusiveMinimum", low), bounds.get("exclusiveMaximum", high)
    if below is not None:
        opening, closing = "(" if low is None else "[", ")" if high is None else "]"
        return f"{words} in {opening}{above}, {below}{closing}"
    return words if above is None else f"{words} {'>' if low is None else '>='} {above}"


def _kind_in_words(kind: Mapping[str, Any]) -> str:
    """The type of a value, without its bounds."""
    if "enum" in kind:
        return f"one of {', '.join(kind['enum'])}"
    if "maxItems" in kind:
        return f"a list of {kind['maxItems']} numbers"
    items = kind.get("items", {})
    if "enum" in items:
        return f"a list of any of {', '.join(items['enum'])}"
    if items.get("type") == "string":
        return "a list of texts"
    return f"text that matches {kind['pattern']}" if "pattern" in kind else _TYPES[kind["type"]]


def complaint(
    error: ValidationError,
    model: type[BaseModel],
    abbreviations: Mapping[str, str] = _NONE,
    *,
    null: bool = True,
) -> str:
    """The first refused setting in words: its full name, its allowed values and its value.

    All settings complain so: those of flags, of files, of training, of the server and of a query.
    ``abbreviations`` holds full names by short names that people may write; ``null`` says whether
    they can write null, as in a file but not as a flag.
    """
    first, fields = error.errors(include_url=False)[0], fields_of(model)
    path = [part for part in first["loc"] if isinstance(part, str)]
    name, reason = _setting_at(path, fields), first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "extra_forbidden":
            return _unknown_setting(path, fields, abbreviations)
        case "missing" if first["loc"][-1:] == (path[-1],):  # a list may be too short
            return f"{name} is missing"
        case "model_type" | "dict_type":
            guess = _guess_of_name(name, first["input"], fields)
            return f"{name} must hold settings by name, got {first['input']!r}{guess}"
        case _ if name not in fields:  # incompatible settings, or a file that is no JSON
            return ".".join([*path, f"{reason[0].lower()}{reason[1:]}"])
        case "value_error":
            rule = f": {reason}"
        case kind:
            finite = "finite and " if kind == "finite_number" else ""
            rule = f" must be {finite}{_allowed_values(fields[name], null=null)}"
    guess = suggestion(str(first["input"]), _choices(fields[name]))
    return f"{name}{rule}, got {first['input']!r}{guess}"


def _guess_of_name(group: str, value: Any, fields: Collection[str]) -> str:
    """What ``group=value`` may mean where settings by name belong: the one called ``name``."""
    has_name = isinstance(value, str) and (group in fields or f"{group}.name" in fields)
    return did_you_mean([f"{group}.name={value}"] if has_name else [])


def _setting_at(path: Sequence[str], fields: Collection[str]) -> str:
    """The full name of the setting at a path, which may go on to a part of its type."""
    name = ".".join(path) or "the file"
    return next((part for part in (name, *path[:1]) if part in fields), name)


def _choices(field: Mapping[str, Any]) -> list[str]:
    """The words that a setting takes, alone or in a list."""
    kinds = field.get("anyOf", [field])
    return [word for kind in kinds for word in kind.get("items", kind).get("enum", ())]


def _unknown_setting(
    path: Sequence[str], fields: Iterable[str], abbreviations: Mapping[str, str]
) -> str:
    """The message about an unknown setting: those of its group, and the closest."""
    name = ".".join(path)
    group = [key.split(".") for key in fields if key.startswith(name.rpartition(".")[0])]
    listed = ", ".join(dict.fromkeys(key[len(path) - 1] for key in group))
    guess = did_you_mean(_nearest_settings(name, fields, abbreviations))
    return f"unknown setting {name}; allowed: {listed}{guess}"


def _nearest_settings(
    name: str, fields: Iterable[str], abbreviations: Mapping[str, str]
) -> list[str]:
    """The full names closest to an unknown one, at most three; none if none is close."""
    group, _, last = name.lower().rpartition(".")
    if last in abbreviations:
        return [abbreviations[last]]
    names = dict.fromkeys(part for field in fields for part in (field, field.partition(".")[0]))
    candidates = [name for name in names if name.startswith(f"{group}.")] or list(names)
    # Reversed: of two settings with one last word the first remains.
    full_names = {name.rpartition(".")[2]: name for name in reversed(candidates)}
    return [full_names[short] for short in nearest(last, full_names)]


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
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{name}: {module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, attribute):
        near = suggestion(attribute, vars(module))
        raise UsageError(f"{name}: {module_name} has no {attribute}{near}")
    return getattr(module, attribute)
