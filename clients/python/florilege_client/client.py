"""`Client` and `AsyncClient`: the same calls, waiting or awaiting."""

import asyncio
import random
import time
from collections.abc import Generator
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, cast

from florilege_client import calls
from florilege_client.answers import (
    Answer,
    ClassDetails,
    ClassList,
    Embeddings,
    FeedbackReceipt,
    IdentifyOptions,
    ModelCard,
    SurveyAnswer,
    SurveyOptions,
)
from florilege_client.calls import Call, Photo
from florilege_client.errors import Problem, Unreachable
from florilege_client.reading import Reply
from florilege_client.retrying import Retries, Send, Wait, conversation

try:
    import httpx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "florilege_client needs httpx: pip install httpx", name="httpx"
    ) from error

T = TypeVar("T")
Talk = Generator[Send | Wait, Reply | Unreachable | None, T]

PASSING = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError)
"""Failures of a connection that may not happen again."""
PATIENT: Final = Retries()
ONCE: Final = Retries(tries=1)


class _Talking:
    """What both clients have in common: addresses, keys, limits."""

    def __init__(self, base_url: str, key: str | None, timeout: float, retries: Retries) -> None:
        if not str(base_url).startswith(("http://", "https://")):
            raise ValueError(f"base_url must begin with http:// or https://, got {base_url!r}")
        if not timeout > 0:
            raise ValueError(f"timeout must be more than 0 seconds, got {timeout}")
        self.base_url = base_url.rstrip("/")
        self.timeout = timeout
        self.retries = retries
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def _talk(self, call: Call[T], retries: Retries | None = None) -> Talk[T]:
        clocks = {"now": time.monotonic, "today": time.time, "draw": random.random}
        return conversation(call, retries or self.retries, self.timeout, **clocks)

    def _arguments(self, call: Call[T], step: Send) -> dict[str, Any]:
        """What `request` of httpx takes."""
        arguments = call.arguments()
        arguments["headers"] = {**self._headers, **arguments.get("headers", {})}
        return {"url": self.base_url + call.path, "timeout": step.timeout_s, **arguments}


def _reply(response: httpx.Response) -> Reply:
    return Reply(response.status_code, response.headers, response.content)


def _unreachable(error: httpx.HTTPError, base_url: str) -> Unreachable:
    message = str(error) or type(error).__name__
    unreachable = Unreachable(
        f"no answer from {base_url}: {message}", passing=isinstance(error, PASSING)
    )
    unreachable.__cause__ = error
    return unreachable


def _is_well(error: Problem) -> bool:
    """False for a server that says it is not; another refusal is no answer to the question."""
    if error.status != 503:
        raise error
    return False


class Client(_Talking):
    """Asks a server.

    Threads may share one. Close it, or use it in a ``with`` statement.

    Args:
        base_url: Address of the server, such as ``https://flora.example.org``.
        key: Where the server needs one.
        timeout: Seconds that each try may wait for the network, to connect, send or receive.
        retries: What is tried again; ``Retries(tries=1)`` for nothing.
        http: A client of httpx to send with, for proxies or certificates; it stays open.

    Raises:
        ValueError: One of these cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: Retries = PATIENT,
        http: httpx.Client | None = None,
    ) -> None:
        super().__init__(base_url, key, timeout, retries)
        self._http = http or httpx.Client()
        self._owned = http is None

    def identify(self, *photos: Photo, **options: Unpack[IdentifyOptions]) -> Answer:
        """Return the set of species that photos of one plant may show.

        Args:
            photos: Each a path, bytes or an open binary file; read once, whole.
            options: As the query parameters of ``POST /v1/identify``; see `IdentifyOptions`.

        Raises:
            Problem: The server refused.
            Unreachable: Nobody answered in time.
            StrangeAnswer: Something else than Florilege answered.
            OSError: A file cannot be read.
        """
        return self._ask(calls.identify(photos, options))

    def survey(self, photo: Photo, **options: Unpack[SurveyOptions]) -> SurveyAnswer:
        """Return the species that one large photo of a plot may show.

        Arguments and errors are those of `identify`, with the options of ``POST /v1/survey``.
        """
        return self._ask(calls.survey(photo, options))

    def embeddings(self, *photos: Photo) -> Embeddings:
        """Return the features of one to five photos; errors are those of `identify`."""
        return self._ask(calls.embeddings(photos))

    def model(self) -> ModelCard:
        """Return which model answers, what it is calibrated for, and the limits of a request."""
        return self._ask(calls.model())

    def classes(
        self, *, q: str | None = None, limit: int | None = None, lang: str | None = None
    ) -> ClassList:
        """Return the classes the model knows, those whose id or any name contains ``q``."""
        return self._ask(calls.classes(q=q, limit=limit, lang=lang))

    def species(self, class_id: str, *, lang: str | None = None) -> ClassDetails:
        """Return one class by its id."""
        return self._ask(calls.species(class_id, lang=lang))

    def feedback(
        self,
        answer: Answer | str,
        class_id: str,
        *,
        note: str | None = None,
        consent: bool = False,
        idempotency_key: str | None = None,
    ) -> FeedbackReceipt:
        """Say what the photos of an answer really showed.

        Args:
            answer: The answer, or its id.
            class_id: Id of the right class, ``not_listed`` or ``not_an_organism``.
            note: Anything else, in a few words.
            consent: Whether the person agrees that the photos are kept, and gives them under the
                licence that `model().feedback_licence` names.
            idempotency_key: Any word; the same again stores nothing twice. By default a new one.
        """
        call = calls.feedback(
            answer, class_id, note=note, consent=consent, idempotency_key=idempotency_key
        )
        return self._ask(call)

    def live(self) -> bool:
        """Whether the server answers at all; asked once."""
        return self._well("/livez")

    def ready(self) -> bool:
        """Whether the server is ready for photos; asked once."""
        return self._well("/readyz")

    def close(self) -> None:
        """Close the connections."""
        if self._owned:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _well(self, path: str) -> bool:
        try:
            return self._ask(calls.health(path), ONCE)
        except Unreachable:
            return False
        except Problem as error:
            return _is_well(error)

    def _ask(self, call: Call[T], retries: Retries | None = None) -> T:
        talk = self._talk(call, retries)
        outcome: Reply | Unreachable | None = None
        try:
            while True:
                step = talk.send(outcome)
                outcome = None
                if isinstance(step, Send):
                    outcome = self._send(call, step)
                else:
                    time.sleep(step.seconds)
        except StopIteration as end:
            return cast("T", end.value)

    def _send(self, call: Call[T], step: Send) -> Reply | Unreachable:
        try:
            return _reply(self._http.request(**self._arguments(call, step)))
        except httpx.HTTPError as error:
            return _unreachable(error, self.base_url)


class AsyncClient(_Talking):
    """`Client` for asyncio: the same calls, awaited; closed by `aclose` or ``async with``."""

    def __init__(
        self,
        base_url: str,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: Retries = PATIENT,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        super().__init__(base_url, key, timeout, retries)
        self._http = http or httpx.AsyncClient()
        self._owned = http is None

    async def identify(self, *photos: Photo, **options: Unpack[IdentifyOptions]) -> Answer:
        """As `Client.identify`; files are read in a thread."""
        return await self._ask(await asyncio.to_thread(calls.identify, photos, options))

    async def survey(self, photo: Photo, **options: Unpack[SurveyOptions]) -> SurveyAnswer:
        """As `Client.survey`."""
        return await self._ask(await asyncio.to_thread(calls.survey, photo, options))

    async def embeddings(self, *photos: Photo) -> Embeddings:
        """As `Client.embeddings`."""
        return await self._ask(await asyncio.to_thread(calls.embeddings, photos))

    async def model(self) -> ModelCard:
        """As `Client.model`."""
        return await self._ask(calls.model())

    async def classes(
        self, *, q: str | None = None, limit: int | None = None, lang: str | None = None
    ) -> ClassList:
        """As `Client.classes`."""
        return await self._ask(calls.classes(q=q, limit=limit, lang=lang))

    async def species(self, class_id: str, *, lang: str | None = None) -> ClassDetails:
        """As `Client.species`."""
        return await self._ask(calls.species(class_id, lang=lang))

    async def feedback(
        self,
        answer: Answer | str,
        class_id: str,
        *,
        note: str | None = None,
        consent: bool = False,
        idempotency_key: str | None = None,
    ) -> FeedbackReceipt:
        """As `Client.feedback`."""
        call = calls.feedback(
            answer, class_id, note=note, consent=consent, idempotency_key=idempotency_key
        )
        return await self._ask(call)

    async def live(self) -> bool:
        """As `Client.live`."""
        return await self._well("/livez")

    async def ready(self) -> bool:
        """As `Client.ready`."""
        return await self._well("/readyz")

    async def aclose(self) -> None:
        """Close the connections."""
        if self._owned:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _well(self, path: str) -> bool:
        try:
            return await self._ask(calls.health(path), ONCE)
        except Unreachable:
            return False
        except Problem as error:
            return _is_well(error)

    async def _ask(self, call: Call[T], retries: Retries | None = None) -> T:
        talk = self._talk(call, retries)
        outcome: Reply | Unreachable | None = None
        try:
            while True:
                step = talk.send(outcome)
                outcome = None
                if isinstance(step, Send):
                    outcome = await self._send(call, step)
                else:
                    await asyncio.sleep(step.seconds)
        except StopIteration as end:
            return cast("T", end.value)

    async def _send(self, call: Call[T], step: Send) -> Reply | Unreachable:
        try:
            return _reply(await self._http.request(**self._arguments(call, step)))
        except httpx.HTTPError as error:
            return _unreachable(error, self.base_url)
