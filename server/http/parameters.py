"""What every route checks before any other work: the key, and the names of the parameters."""

from typing import Final

from fastapi import Depends, Request

from florilege.server.http.api_keys import check_key
from florilege.server.problems import Code, Problem

REPEATED: Final = frozenset({"include", "only", "always"})
"""Parameters that may be repeated; for any other, all but one value would be ignored."""
MAX_PARAMETERS: Final = 30
"""Different parameters in a query; each unknown one would take an error to describe."""


# Asynchronous: FastAPI runs plain functions in a thread, which costs more than they do.
async def _refuse_repeated(request: Request) -> None:
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


GUARDS: Final = (Depends(check_key), Depends(_refuse_repeated))
