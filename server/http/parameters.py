"""The query parameters of the interface. Unknown ones are refused, not ignored."""

from fastapi import Request
from pydantic import Field

from server.answers.ask import Language
from server.errors import InvalidParameter
from server.schemas import Strict


class NoQuery(Strict):
    """No parameters at all."""


class ClassQuery(Strict):
    """How to show one class."""

    lang: Language = None


class ClassesQuery(ClassQuery):
    """Which classes to list, and how."""

    q: str | None = Field(
        None,
        description="Only classes whose id or any name contains this, without regard to case.",
        max_length=200,
    )
    limit: int | None = Field(None, ge=0, description="Most classes to list; all by default.")


async def refuse_repeated(request: Request) -> None:
    """`include` and `only` may be given more than once: of the others a value would be ignored.

    Raises:
        InvalidParameter: Another one was.
    """
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name in seen and name not in ("include", "only"):
            raise InvalidParameter(f"parameter `{name[:80]}`: it is given more than once")
        seen.add(name)
