"""Docstrings as the reference shows them: formulas as MathML, which browsers draw by themselves."""

import re
from textwrap import dedent, indent
from typing import Any

import griffe
from latex2mathml.converter import convert


class Docstrings(griffe.Extension):
    """Turns what only Python tools read into Markdown, before the docstring is taken apart."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class or function."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """The same with ``.. math::``, ``:math:``, ``:func:`` and ``Example:`` as Markdown has them."""
    text = re.sub(r"^( *)\.\. math::(.*\n(?:\1 +.*\n|\n)*)", _displayed, f"{text}\n", flags=re.M)
    text = re.sub(r":math:`([^`]+)`", lambda found: convert(found[1]), text)
    text = re.sub(r":(?:func|class|meth|mod|attr|data|exc):`~?([^`]+)`", r"``\1``", text)
    return re.sub(r"^Example:$", "Examples:", text, flags=re.M)


def _displayed(found: re.Match[str]) -> str:
    formula = " ".join(dedent(found[2]).split())
    if r"\\" in formula:
        formula = rf"\begin{{aligned}} {formula} \end{{aligned}}"
    return indent(f"\n{convert(formula, display='block')}\n\n", found[1])
