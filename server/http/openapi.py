"""The document at `/openapi.json`, complete enough to generate clients from.

Each route names the problems it may answer with (`problem_responses`); FastAPI's document is then
corrected where it is incomplete or wrong.
"""

import json
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from florilege.server.http.multipart import FIELD
from florilege.server.problems import MEDIA_TYPE, OTHER_INTERFACES, Code, ProblemDocument
from florilege.server.settings import MAX_IMAGES

EXAMPLES = files("florilege.server") / "http" / "examples.json"
COMMON_PROBLEMS = (
    *(Code.UNKNOWN_PARAMETER, Code.INVALID_PARAMETER, Code.KEY_MISSING, Code.KEY_UNKNOWN),
    *(Code.RATE_LIMITED, Code.HEADERS_TOO_LARGE, Code.INTERNAL_ERROR),
)
RETRY_AFTER = {"description": "Seconds to wait before trying again.", "schema": {"type": "integer"}}
KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
KEY_IN_ADDRESS = {"query": {"type": "apiKey", "in": "query", "name": "api-key"}}
"""Also accepted by the `/v2/` routes, which follow another service's API."""

PHOTO = {"type": "string", "format": "binary"}


def form_of_photos(**fields: Any) -> dict[str, Any]:
    """The OpenAPI content of a form with one to five photos and further ``fields``."""
    images = {"type": "array", "items": PHOTO, "minItems": 1, "maxItems": MAX_IMAGES}
    schema = {"type": "object", "required": [FIELD], "properties": {FIELD: images, **fields}}
    return {"multipart/form-data": {"schema": schema}}


def problem_responses(*codes: Code) -> dict[int | str, Any]:
    """The errors of a route, by status, for FastAPI's ``responses``."""
    by_status: dict[int | str, Any] = {}
    for code in sorted(codes, key=lambda each: each.status):
        response = by_status.setdefault(code.status, {"model": ProblemDocument, "description": ""})
        response["description"] += f"`{code}`: {code.summary.lower()}. "
    return by_status


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document with the problems as they are sent, keys and examples."""
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes
    )
    examples = json.loads(EXAMPLES.read_bytes())
    for operations in document["paths"].values():
        for operation in operations.values():
            _correct(operation["responses"], examples.get(operation["operationId"], {}))
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["ProblemDocument"]["properties"]["code"]["enum"] = sorted(
        code for code in Code if code not in OTHER_INTERFACES
    )
    if app.state.keys is not None:
        _add_keys(document)
    return document


def _add_keys(document: dict[str, Any]) -> None:
    used = dict[str, Any]()
    for path, operations in document["paths"].items():
        if path.startswith(("/v1/", "/v2/")):
            schemes = KEYS if path.startswith("/v1/") else {**KEY_IN_ADDRESS, **KEYS}
            used |= schemes
            for operation in operations.values():
                operation["security"] = [{name: []} for name in schemes]
    document["components"]["securitySchemes"] = used


def _correct(responses: dict[str, Any], examples: dict[str, Any]) -> None:
    for status, response in list(responses.items()):
        content = response.get("content", {})
        shape = content.get("application/json", {}).get("schema", {}).get("$ref", "")
        if shape.endswith("HTTPValidationError"):
            del responses[status]
        elif shape.endswith("ProblemDocument"):
            response["content"] = {MEDIA_TYPE: content["application/json"]}
            response["description"] = response["description"].strip()
            if status in ("429", "503"):
                response["headers"] = {"Retry-After": RETRY_AFTER}
        if status in examples:
            next(iter(response["content"].values()))["example"] = examples[status]
