"""Settings and their flags: one field gives the flag, variable, file line, help and check."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from florilege.errors import UsageError
from florilege.suggestions import meant

_BY_NAME = inspect.Parameter.KEYWORD_ONLY
Verb = TypeVar("Verb", bound=Callable[..., None])


class FlagSettings(BaseModel):
    """Settings that are checked when they are made and never change.

    A field says all there is to know: type, default, bounds and, in the text below it, the help
    for its flag. :func:`flags_of` makes the flags.

    Raises:
        ValueError: A field refuses its value; the message begins with the field's name.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(_complaint(error)) from error


@dataclass(frozen=True, kw_only=True)
class Flag:
    """How a field looks on the command line, where that differs from its own name and type."""

    name: str | None = None  # such as ``--cors-origin``
    short: str | None = None  # such as ``-o``
    type: Any = None  # of what is typed, which the field's validators turn into its value
    help: str | None = None  # if the field's description does not suit a command line
    argument: bool = False  # a positional argument instead of a flag
    metavar: str | None = None  # stands for the value in the help, such as ``DATA``
    default: str | None = None  # shown in the help if None means "not given"
    hidden: bool = False  # a flag of an earlier version, which the help leaves out


def flags_of(model: type[BaseModel]) -> Callable[[Verb], Verb]:
    """Turn the verb's parameter of type ``model``, or of a base of it, into one flag per field.

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
        signature, fields = inspect.signature(verb), dict(_parameters(model))
        others = dict(signature.parameters)
        filled = next(name for name, each in others.items() if each.annotation in model.__mro__)
        del others[filled]
        parameters = [*fields.values(), *(each.replace(kind=_BY_NAME) for each in others.values())]

        @functools.wraps(verb)
        def call(**given: Any) -> None:
            values = {name: given.pop(each.name, None) for name, each in fields.items()}
            values = {name: value for name, value in values.items() if value is not None}
            try:
                given[filled] = model(**values)
            except ValidationError as error:
                raise UsageError(_complaint(error)) from error
            except ValueError as error:
                raise UsageError(str(error)) from error
            verb(**given)

        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by Typer
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call  # type: ignore[return-value]  # the same verb with other parameters

    return decorate


def _parameters(model: type[BaseModel]) -> Iterator[tuple[str, inspect.Parameter]]:
    """Each field with the parameter that Typer turns into its flag."""
    for name, field in model.model_fields.items():
        flag = next((part for part in field.metadata if isinstance(part, Flag)), Flag())
        long = flag.name or (f"--{name.replace('_', '-')}" if flag.short else None)
        names = [each for each in (long, flag.short) if each is not None]
        word = typer.Argument if flag.argument else typer.Option
        typed = word(
            *names,
            help=flag.help or field.description,
            metavar=flag.metavar,
            show_default=flag.default or True,
            hidden=flag.hidden,
        )
        own = (flag.name or name).lstrip("-").replace("-", "_")
        default = inspect.Parameter.empty if field.is_required() else _default(field)
        kind: Any = Annotated[flag.type or field.annotation, typed]
        yield name, inspect.Parameter(own, _BY_NAME, default=default, annotation=kind)


def _default(field: FieldInfo) -> Any:
    default = field.get_default(call_default_factory=True)
    return list(default) or None if isinstance(default, tuple | list) else default


def _complaint(error: ValidationError) -> str:
    """The first refused value, and why it is refused."""
    first = error.errors(include_url=False)[0]
    name = ".".join(part for part in first["loc"] if isinstance(part, str))
    message = first["msg"].removeprefix("Value error, ")
    if not name:
        return message
    said = f"{name}: {message[0].lower()}{message[1:]}"
    if first["type"] == "missing":
        return said
    choices = re.findall(r"'([^']*)'", first.get("ctx", {}).get("expected", ""))
    return f"{said}, got {first['input']!r}{meant(str(first['input']), choices)}"
