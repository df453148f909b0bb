"""What is raised where a call gets no answer."""

from collections.abc import Sequence


class NoAnswer(Exception):
    """Base of all of these."""


class Unreachable(NoAnswer):
    """Nobody answered: no connection, one that broke off, or a time limit.

    Attributes:
        passing: Whether trying again may help.
    """

    def __init__(self, detail: str, *, passing: bool) -> None:
        super().__init__(detail)
        self.passing = passing


class StrangeAnswer(NoAnswer):
    """A success that is not in the shape of the interface: probably another server answered."""


class Problem(NoAnswer):
    """The server refused, or something before it did.

    Attributes:
        status: HTTP status.
        code: Stable word for programs, such as ``not_calibrated``; None where something else than
            Florilege answered, such as a proxy.
        detail: What is wrong with this request, for a person.
        request_id: Id to report; None where there is none.
        retryable: Whether the same request may succeed later.
        retry_after: Seconds to wait before, where the server says so.
        limit: The bound that was crossed, where there is one.
        allowed: What would have been accepted, where it can be listed.
    """

    def __init__(
        self,
        detail: str,
        *,
        status: int,
        code: str | None = None,
        request_id: str | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        limit: float | None = None,
        allowed: Sequence[float | str] | None = None,
    ) -> None:
        super().__init__(f"{status}{f' {code}' if code else ''}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.request_id = request_id
        self.retryable = retryable
        self.retry_after = retry_after
        self.limit = limit
        self.allowed = None if allowed is None else tuple(allowed)
