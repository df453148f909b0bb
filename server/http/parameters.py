"""What route functions get beside their query: parts of the server, and no parameter twice."""

from typing import Annotated, Any, Final

from fastapi import Depends, Request

from florilege.server.engine import Engine
from florilege.server.http.bundle_info import BundleInfo
from florilege.server.problems import Code, Problem


# Asynchronous: FastAPI runs plain functions in a thread, which costs more than they do.
async def _engine(request: Request) -> Any:
    return request.app.state.engine


async def _about(request: Request) -> Any:
    return request.app.state.about


EngineOf = Annotated[Engine, Depends(_engine)]
BundleInfoOf = Annotated[BundleInfo, Depends(_about)]

REPEATED: Final = frozenset({"include", "only", "always"})
"""Parameters that may be repeated; for any other, all but one value would be ignored."""
MAX_PARAMETERS: Final = 30
"""Different parameters in a query; each unknown one would take an error to describe."""


async def refuse_repeated(request: Request) -> None:
    """Raise a `Problem` if a parameter not in `REPEATED` is, or if there are too many."""
    names: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name in names and name not in REPEATED:
            detail = f"parameter `{name[:80]}`: it is given more than once"
            raise Problem(Code.INVALID_PARAMETER, detail)
        names.add(name)
        if len(names) > MAX_PARAMETERS:
            detail = f"more than {MAX_PARAMETERS} parameters; /openapi.json lists them"
            raise Problem(Code.INVALID_PARAMETER, detail)
