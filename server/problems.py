"""The errors of the HTTP interface: one small family, one shape (RFC 9457).

Inner code raises them without knowing HTTP; `florilege.server.http.error_handlers` renders each of
them as ``application/problem+json``. The values of ``code`` are stable and listed in
``docs/http.md``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from florilege.server.schemas import ResponseModel

MEDIA_TYPE: Final = "application/problem+json"


class ProblemDocument(ResponseModel):
    """Every error response, as `application/problem+json` (RFC 9457)."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    type: str = Field(description="`/problems/` followed by the code.")
    title: str
    status: int
    detail: str = Field(description="What is wrong with this request, for a person.")
    instance: str = Field(description="The X-Request-Id of the request.")
    code: str = Field(description="Stable identifier for programs.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    limit: float | SkipJsonSchema[None] = Field(
        None, description="The limit that was exceeded; absent if there is none."
    )
    allowed: list[float | str] | SkipJsonSchema[None] = Field(
        None, description="The accepted values; absent if they cannot be listed."
    )


class Problem(Exception):  # the word of RFC 9457
    """Base of every error response.

    Args:
        detail: One sentence for a person: what is wrong with this request and what to do.
        limit: The limit that was exceeded, if there is one.
        allowed: The accepted values, if they can be listed.
        retry_after: Whole seconds to wait before trying again.
        headers: Further response headers.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "The server failed"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        detail: str,
        *,
        limit: float | None = None,
        allowed: Sequence[Any] | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.limit = limit
        self.allowed = None if allowed is None else list(allowed)
        self.retry_after = retry_after
        self.headers = dict(headers or {})

    def response_headers(self) -> dict[str, str]:
        """Its response headers."""
        if self.retry_after is None:
            return self.headers
        return {**self.headers, "Retry-After": str(self.retry_after)}


class InternalError(Problem):
    """A bug. The client gets a request id; the log gets the details."""


class MalformedRequest(Problem):
    """The body is not what its Content-Type says."""

    status, code, title = 400, "malformed_request", "The request cannot be read"


class UnknownParameter(Problem):
    """This address does not have such a parameter."""

    status, code, title = 400, "unknown_parameter", "There is no such parameter"


class InvalidParameter(Problem):
    """The parameter does not accept this value."""

    status, code, title = 400, "invalid_parameter", "A parameter has an unusable value"


class KeyMissing(Problem):
    """The server requires a key, and the request has none."""

    status, code, title = 401, "key_missing", "A key is needed"


class KeyUnknown(Problem):
    """The server does not know the key of the request."""

    status, code, title = 403, "key_unknown", "This key is not known"


class NotFound(Problem):
    """No route has this address."""

    status, code, title = 404, "not_found", "There is nothing at this address"


class ClassNotFound(Problem):
    """The address names a class that the model does not have."""

    status, code, title = 404, "class_not_found", "The model does not know this class"


class ThumbnailNotFound(Problem):
    """The bundle has no reference picture of this class."""

    status, code, title = 404, "thumbnail_not_found", "There is no picture of this class"


class AnswerNotFound(Problem):
    """The server does not remember the answer that feedback is about."""

    status, code, title = 404, "answer_not_found", "This answer is not remembered"


class MethodNotAllowed(Problem):
    """The route does not accept the method."""

    status, code, title = 405, "method_not_allowed", "This address does not take this method"


class UploadTooSlow(Problem):
    """The body did not arrive before the deadline."""

    status, code, title, retryable = 408, "upload_too_slow", "The upload took too long", True


class BodyTooLarge(Problem):
    """The body has more bytes than a request may have."""

    status, code, title = 413, "body_too_large", "The upload has too many bytes"


class ImageTooLarge(Problem):
    """The header of the image declares more pixels than allowed."""

    status, code, title = 413, "image_too_large", "The photo has too many pixels"


class UnsupportedImageType(Problem):
    """The content is not of an accepted image type."""

    status, code, title = 415, "unsupported_image_type", "This is not an accepted image type"


class ImageUnreadable(Problem):
    """The image has an accepted type, but is empty, damaged or cut off."""

    status, code, title = 422, "image_unreadable", "The photo is damaged"


class WrongNumberOfImages(Problem):
    """The request has no photo, or more than allowed."""

    status, code, title = 422, "wrong_number_of_images", "Too few or too many photos"


class UnknownList(Problem):
    """``list`` does not name a list of the server."""

    status, code, title = 422, "unknown_list", "There is no such list"


class UnknownClass(Problem):
    """``only`` names something that is not a class, genus or family."""

    status, code, title = 422, "unknown_class", "The model does not know such a class"


class NotCalibratedFor(Problem):
    """The bundle holds no threshold for this rule, K, coverage or guarantee."""

    status, code, title = 422, "not_calibrated", "The model is not calibrated for this"


class IdempotencyKeyReused(Problem):
    """An Idempotency-Key came with other content before."""

    status, code, title = 422, "idempotency_key_reused", "The key belongs to another request"


class RateLimited(Problem):
    """A key sent too many requests, or a client too much feedback."""

    status, code, title, retryable = 429, "rate_limited", "Too many requests", True


class HeadersTooLarge(Problem):
    """The address and the header lines together are too long."""

    status, code, title = 431, "headers_too_large", "The header lines are too long"


class Overloaded(Problem):
    """The queue is full, or uploads fill the memory set aside for them."""

    status, code, title, retryable = 503, "overloaded", "The server is busy", True


class QueueTimeout(Problem):
    """The request waited too long for its turn."""

    status, code, title, retryable = 503, "queue_timeout", "The server is busy", True


class FeedbackNotStored(Problem):
    """The store or the disk is full, or the store cannot be written."""

    status, code, title, retryable = 503, "feedback_not_stored", "The feedback is not stored", True


class Loading(Problem):
    """The bundle is still being loaded."""

    status, code, title, retryable = 503, "loading", "The server is starting", True


class Draining(Problem):
    """The server is stopping."""

    status, code, title, retryable = 503, "draining", "The server is stopping", True
