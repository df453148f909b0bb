"""Write `clients/python/florilege_client/answers.py` from the description of the interface.

`python -m tests.florilege_client.write_answers`, after `python -m tests.server.write_golden`.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.server.write_golden import GOLDEN

MODULE = Path(__file__).parents[2] / "clients" / "python" / "florilege_client" / "answers.py"
HEAD = '''"""What the server answers and what may be asked, as types.

Written from the description of the interface; each class is a schema of `/openapi.json`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict
'''
NAMES: Final = {"lambda": "lambda_val"}
"""Fields whose names Python keeps for itself."""
NOT_READ: Final = {"Health", "ProblemDocument"}  # the client tells these otherwise
SIMPLE: Final = {"number": "float", "integer": "int", "string": "str", "boolean": "bool"}
WIDTH: Final = 96


def module() -> str:
    """The whole module."""
    document = json.loads(GOLDEN.read_text("utf-8"))
    shapes = {k: v for k, v in document["components"]["schemas"].items() if k not in NOT_READ}
    identify, survey = (
        document["paths"][f"/v1/{route}"]["post"]["parameters"] for route in ("identify", "survey")
    )
    words = _words(dict(_enums(shapes, identify)))
    parts = [*[_alias(name, values) for values, name in words.items()], ""]
    parts += [_shape(name, shapes[name], words) for name in _in_order(shapes)]
    options = [_options("Identify", identify, words), _options("Survey", survey, words)]
    return "\n".join([HEAD, *parts, *options])


def _enums(shapes: Mapping[str, Any], asked: list[Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every choice of words, by the name of a field that has it."""
    fields = [item for shape in shapes.values() for item in shape["properties"].items()]
    fields += [(each["name"], each["schema"]) for each in asked]
    for name, schema in fields:
        for inner in (schema, schema.get("items", {}), *schema.get("anyOf", [])):
            if "enum" in inner:
                yield name, tuple(inner["enum"])


def _words(found: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """A type's name for every choice: that of the shortest field."""
    by_length = sorted(found.items(), key=lambda item: (-len(item[0]), item[0]))
    named = {values: name.title().replace("_", "") for name, values in by_length}
    return dict(sorted(named.items(), key=lambda item: item[1]))


def _alias(name: str, values: tuple[str, ...]) -> str:
    return "\n".join([f"{name} = Literal[", *(f'    "{value}",' for value in values), "]"])


def _in_order(shapes: Mapping[str, Any]) -> list[str]:
    """Each class after those that it holds."""
    results: list[str] = []

    def add(name: str) -> None:
        for other in shapes:
            if f'/{other}"' in json.dumps(shapes[name]["properties"]) and other != name:
                add(other)
        if name not in results:
            results.append(name)

    for name in shapes:
        add(name)
    return results


def _shape(name: str, shape: Mapping[str, Any], words: Mapping[tuple[str, ...], str]) -> str:
    lines = ["", "@dataclass(frozen=True, kw_only=True, slots=True)", f"class {name}:"]
    lines += [*_said(shape["description"]), ""]
    for key, schema in shape["properties"].items():
        other = f' = field(metadata={{"json": "{key}"}})' if key in NAMES else ""
        lines.append(f"    {NAMES.get(key, key)}: {_type(schema, words)}{other}")
        lines += _said(schema.get("description", ""))
    return "\n".join([*lines, ""])


def _options(name: str, asked: list[Any], words: Mapping[tuple[str, ...], str]) -> str:
    lines = ["", f"class {name}Options(TypedDict, total=False):"]
    lines += [f'    """What `{name.lower()}` may ask; what is left out is the server\'s choice."""']
    lines += [""]
    for each in asked:
        outcome = _type(each["schema"], words).replace("tuple[", "Sequence[").replace(", ...]", "]")
        lines += [f"    {each['name']}: {outcome}", *_said(each["description"])]
    return "\n".join([*lines, ""])


def _said(text: str) -> list[str]:
    """A docstring of a class or field."""
    if not text:
        return []
    if len(text) <= WIDTH - 6:
        return [f'    """{text}"""']
    wrapped = textwrap.wrap(f'"""{text}', WIDTH, break_long_words=False)
    if len(wrapped) == 1:  # the closing quotes alone do not fit
        wrapped = textwrap.wrap(f'"""{text}', WIDTH - 10, break_long_words=False)
    return [*(f"    {line}" for line in wrapped), '    """']


def _type(schema: Mapping[str, Any], words: Mapping[tuple[str, ...], str]) -> str:
    """A schema in Python."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        inner = [_type(each, words) for each in schema["anyOf"] if each != {"type": "null"}]
        return " | ".join([*inner, *["None"] * ({"type": "null"} in schema["anyOf"])])
    if "enum" in schema:
        return words[tuple(schema["enum"])]
    if "prefixItems" in schema:
        return f"tuple[{', '.join(_type(each, words) for each in schema['prefixItems'])}]"
    if schema["type"] == "array":
        return f"tuple[{_type(schema['items'], words)}, ...]"
    if schema["type"] == "object":
        return f"Mapping[str, {_type(schema['additionalProperties'], words)}]"
    return SIMPLE[schema["type"]]


if __name__ == "__main__":
    MODULE.write_text(module(), "utf-8")
