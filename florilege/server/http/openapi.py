"""The document at `/openapi.json`, complete enough to generate clients from."""

import json
from collections import defaultdict
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.encoders import jsonable_encoder
from fastapi.openapi.utils import get_openapi

from florilege.server.http.request import FIELD
from florilege.server.problems import MEDIA_TYPE, Code, ProblemDocument
from florilege.server.settings import MAX_IMAGES

EXAMPLES = files("florilege.server") / "http" / "examples.json"
COMMON_PROBLEMS = (
    *(Code.UNKNOWN_PARAMETER, Code.INVALID_PARAMETER, Code.KEY_MISSING, Code.KEY_UNKNOWN),
    *(Code.RATE_LIMITED, Code.HEADERS_TOO_LARGE, Code.INTERNAL_ERROR),
)
_RETRY_AFTER = {
    "description": "Seconds to wait before trying again.",
    "schema": {"type": "integer"},
}
_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_KEY_IN_ADDRESS = {"query": {"type": "apiKey", "in": "query", "name": "api-key"}}
"""Also accepted by the `/v2/` routes, which follow another service's API."""

PHOTO = {"type": "string", "format": "binary"}


def body_of(content: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI description of a body that a route reads itself, by media type."""
    return {"requestBody": {"required": True, "content": content}}


def form_of_photos(**fields: Any) -> dict[str, Any]:
    """The OpenAPI content of a form with one to five photos and further ``fields``."""
    images = {"type": "array", "items": PHOTO, "minItems": 1, "maxItems": MAX_IMAGES}
    schema = {"type": "object", "required": [FIELD], "properties": {FIELD: images, **fields}}
    return {"multipart/form-data": {"schema": schema}}


PHOTOS = body_of(
    {
        **form_of_photos(),
        "image/*": {"schema": PHOTO},
        "application/octet-stream": {"schema": PHOTO},  # code generators do not know wildcards
    }
)


def problem_responses(*codes: Code) -> dict[int | str, Any]:
    """The errors of a route, by status, for FastAPI's ``responses``."""
    texts = defaultdict[int, list[str]](list)
    for code in sorted(codes, key=lambda each: each.status):
        texts[code.status].append(f"`{code}`: {code.summary.lower()}.")
    return {
        status: {"description": " ".join(text), "content": _PROBLEM}
        | ({"headers": {"Retry-After": _RETRY_AFTER}} if status in (429, 503) else {})
        for status, text in texts.items()
    }


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document with our problems instead of its validation errors, keys and examples."""
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes
    )
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = ProblemDocument.model_json_schema(mode="serialization")
    schemas["ProblemDocument"] = jsonable_encoder(problem, exclude_none=True)
    examples = json.loads(EXAMPLES.read_bytes())
    for operations in document["paths"].values():
        for operation in operations.values():
            responses = operation["responses"]
            if responses.get("422", {}).get("description") == "Validation Error":  # of FastAPI
                del responses["422"]
            for status, example in examples.get(operation["operationId"], {}).items():
                next(iter(responses[status]["content"].values()))["example"] = example
    if app.state.keys is not None:
        _add_keys(document)
    return document


def _add_keys(document: dict[str, Any]) -> None:
    used = dict[str, Any]()
    for path, operations in document["paths"].items():
        if path.startswith(("/v1/", "/v2/")):
            schemes = KEYS if path.startswith("/v1/") else {**_KEY_IN_ADDRESS, **KEYS}
            used |= schemes
            for operation in operations.values():
                operation["security"] = [{name: []} for name in schemes]
    document["components"]["securitySchemes"] = used
