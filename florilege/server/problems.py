"""The errors of the HTTP interface: one small family, one shape (RFC 9457).

Inner code raises them without knowing HTTP; `florilege.server.http.middleware` renders them.
The values of ``code`` are stable and listed in ``docs/http.md``.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Self

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from florilege.server.schemas import ResponseModel

MEDIA_TYPE: Final = "application/problem+json"


class Code(StrEnum):
    """The stable codes of problems."""

    status: int  # of HTTP
    summary: str  # the title
    retryable: bool  # whether the same request may succeed later

    def __new__(cls, text: str, status: int, summary: str, retryable: bool = False) -> Self:
        code = str.__new__(cls, text)
        code._value_, code.status, code.summary, code.retryable = text, status, summary, retryable
        return code

    INTERNAL_ERROR = "internal_error", 500, "The server failed"
    MALFORMED_REQUEST = "malformed_request", 400, "The request cannot be read"
    UNKNOWN_PARAMETER = "unknown_parameter", 400, "There is no such parameter"
    INVALID_PARAMETER = "invalid_parameter", 400, "A parameter has an unusable value"
    KEY_MISSING = "key_missing", 401, "A key is needed"
    KEY_UNKNOWN = "key_unknown", 403, "This key is not known"
    NOT_FOUND = "not_found", 404, "There is nothing at this address"
    CLASS_NOT_FOUND = "class_not_found", 404, "The model does not know this class"
    THUMBNAIL_NOT_FOUND = "thumbnail_not_found", 404, "There is no picture of this class"
    ANSWER_NOT_FOUND = "answer_not_found", 404, "This answer is not remembered"
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, "This address does not take this method"
    UPLOAD_TOO_SLOW = "upload_too_slow", 408, "The upload took too long", True
    BODY_TOO_LARGE = "body_too_large", 413, "The upload has too many bytes"
    IMAGE_TOO_LARGE = "image_too_large", 413, "The photo has too many pixels"
    UNSUPPORTED_IMAGE_TYPE = "unsupported_image_type", 415, "This is not an accepted image type"
    IMAGE_UNREADABLE = "image_unreadable", 422, "The photo is damaged"
    WRONG_NUMBER_OF_IMAGES = "wrong_number_of_images", 422, "Too few or too many photos"
    UNKNOWN_LIST = "unknown_list", 422, "There is no such list"
    UNKNOWN_CLASS = "unknown_class", 422, "The model does not know such a class"
    NOT_CALIBRATED = "not_calibrated", 422, "The model is not calibrated for this"
    NO_FEATURES = "no_features", 422, "The model gives no features"
    TOO_MANY_TILES = "too_many_tiles", 422, "The photo has too many tiles"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused", 422, "The key belongs to another request"
    RATE_LIMITED = "rate_limited", 429, "Too many requests", True
    HEADERS_TOO_LARGE = "headers_too_large", 431, "The header lines are too long"
    OVERLOADED = "overloaded", 503, "The server is busy", True
    QUEUE_TIMEOUT = "queue_timeout", 503, "The server is busy", True
    FEEDBACK_NOT_STORED = "feedback_not_stored", 503, "The feedback is not stored", True
    LOADING = "loading", 503, "The server is starting", True
    DRAINING = "draining", 503, "The server is stopping", True
    SPECIES_NOT_FOUND = "species_not_found", 404, "Species not found"
    FILE_UNREADABLE = "file_unreadable", 422, "The file cannot be read"


OTHER_INTERFACES: Final = (Code.SPECIES_NOT_FOUND, Code.FILE_UNREADABLE)
"""Codes of the routes under `/v2` and of `florilege predict`; no other route has them."""


class ProblemDocument(ResponseModel):
    """Every error response, as `application/problem+json` (RFC 9457)."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    type: str = Field(description="`/problems/` followed by the code.")
    title: str
    status: int
    detail: str = Field(description="What is wrong with this request, for a person.")
    instance: str = Field(description="The X-Request-Id of the request.")
    code: str = Field(
        description="Stable identifier for programs.",
        json_schema_extra={"enum": [*sorted(set(Code) - set(OTHER_INTERFACES))]},
    )
    retryable: bool = Field(description="Whether the same request may succeed later.")
    limit: float | SkipJsonSchema[None] = Field(
        None, description="The limit that was exceeded; absent if there is none."
    )
    allowed: list[float | str] | SkipJsonSchema[None] = Field(
        None, description="The accepted values; absent if they cannot be listed."
    )


class Problem(Exception):  # the word of RFC 9457
    """An error response.

    ``detail`` is one sentence for a person: what is wrong with this request and what to do;
    ``allowed`` are the accepted values, ``retry_after`` whole seconds, ``headers`` further ones.
    """

    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        limit: float | None = None,
        allowed: Sequence[Any] | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(code, detail)  # pickle creates it from these
        self.code = code
        self.detail = detail
        self.limit = limit
        self.allowed = None if allowed is None else list(allowed)
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def __str__(self) -> str:
        return self.detail

    @property
    def advice(self) -> str:
        """The detail, and the accepted values where they can be listed."""
        values = [v if isinstance(v, str) else f"{v:g}" for v in self.allowed or ()]
        if len(values) > 12:
            values = [*values[:5], "...", *values[-3:]]
        return f"{self.detail}; possible values: {', '.join(values)}" if values else self.detail
