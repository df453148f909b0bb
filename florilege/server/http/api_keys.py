"""API keys: who may send requests, and how many. The server holds only their hashes."""

import hashlib
import ipaddress
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from fastapi import Request
from limits import RateLimitItem, parse

from florilege.errors import UsageError
from florilege.files import read_written
from florilege.processes import WorkerGroup
from florilege.processes.shared_state import request_times
from florilege.server.problems import Code, Problem
from florilege.server.settings import one_rate

NAME: Final = re.compile(r"[\w.@-]{1,64}")
SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")
_KEY_HINT: Final = "send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
_SITE_BITS: Final = 64  # of an IPv6 address; one client has all addresses of this network


class RateCounter:
    """Counts requests by client in a moving window; messages call such a client ``what``.

    Call it in one thread. `limits.storage.MemoryStorage` would start a thread for most requests, to
    forget old ones, and has no storage that several processes of one machine share.
    """

    def __init__(self, what: str, group: WorkerGroup | None = None) -> None:
        self._what, self._times = what, request_times(group, what)

    def count(self, rate: RateLimitItem, client: str) -> dict[str, str]:
        """Count one request; returns the rate limit headers. Raises a `Problem` at too many."""
        window = self._times.add(client, rate)
        remaining, seconds = rate.amount - window.requests, max(1, math.ceil(window.resets_in_s))
        headers = {
            "RateLimit-Policy": f'"{self._what}";q={rate.amount};w={rate.get_expiry()}',
            "RateLimit": f'"{self._what}";r={remaining};t={seconds}',
        }
        if not window.within_rate:
            raise Problem(
                Code.RATE_LIMITED,
                f"this {self._what} may send {rate.amount} requests in {rate.get_expiry()} "
                f"seconds; try again in {seconds}",
                limit=rate.amount,
                retry_after=seconds,
                headers=headers,
            )
        return headers


class _ApiKey(NamedTuple):
    name: str
    rate: RateLimitItem | None  # None: unlimited


class ApiKeys:
    """The keys of a file, and how often each was used.

    The file has one key per line: ``NAME SHA256 [RATE]``, such as ``app 9f86... 60/minute``; ``#``
    starts a comment. Raises `UsageError` if it cannot be read or has no key or invalid lines.
    """

    def __init__(self, path: Path, group: WorkerGroup | None = None) -> None:
        self._path, self._rates = path, RateCounter("key", group)
        self._by_hash = _read(path)

    def read(self) -> int:
        """Read the file again; returns the number of keys. If it fails, the current keys stay."""
        self._by_hash = _read(self._path)
        return len(self._by_hash)

    def check(
        self, headers: Mapping[str, str], address_key: str = ""
    ) -> tuple[str, dict[str, str]]:
        """Count one request; returns the name of its key and its rate limit headers.

        ``address_key`` is a key in the address of the request, which precedes one in ``headers``.
        Raises a `Problem` if there is no key, if it is not in the file, or at too many requests.
        """
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        in_header = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Starlette reads headers as Latin-1: so these are the bytes that were sent, also of a key
        # in UTF-8.
        key_text = address_key.encode() or in_header.encode("latin-1", "replace")
        if not key_text:
            raise Problem(
                Code.KEY_MISSING,
                f"this server requires a key: {_KEY_HINT}",
                headers={"WWW-Authenticate": "Bearer"},
            )
        # Found by its hash, so that the time it takes tells nothing of a key. Without salt or
        # rounds: keys are random, of 192 bits where `docs/deploy.md` was followed, and nobody can
        # guess them.
        key = self._by_hash.get(hashlib.sha256(key_text).hexdigest())
        if key is None:
            raise Problem(Code.KEY_UNKNOWN, f"this key is wrong or no longer valid; {_KEY_HINT}")
        return key.name, {} if key.rate is None else self._rates.count(key.rate, key.name)


def _read(path: Path) -> Mapping[str, _ApiKey]:
    try:
        # Editors on Windows may begin a file with a byte order mark.
        text = read_written(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--keys-file {path} cannot be read: {reason}") from error
    keys, names, mistakes = dict[str, _ApiKey](), set[str](), list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        key = _key(words)
        # Rates are counted by name and feedback is stored with it: two keys of one name would share
        # both.
        if key is None or words[1].lower() in keys or key.name in names:
            mistakes.append(f"line {number}")
        else:
            keys[words[1].lower()] = key
            names.add(key.name)
    if mistakes:
        raise UsageError(
            f"--keys-file {path}: {', '.join(mistakes)}: write NAME SHA256 [RATE], such as "
            "app 9f86...0a08 60/minute, the hash in 64 hexadecimal digits, each name and hash once"
        )
    if not keys:
        raise UsageError(f"--keys-file {path} holds no key; omit the flag to require none")
    return keys


def _key(words: list[str]) -> _ApiKey | None:
    """The key of a line; None if the line is invalid."""
    if not (2 <= len(words) <= 3 and NAME.fullmatch(words[0]) and SHA256.fullmatch(words[1])):
        return None
    try:
        return _ApiKey(words[0], parse(one_rate(words[2])) if len(words) == 3 else None)
    except ValueError:
        return None


def check_key(request: Request, address_key: str = "") -> None:
    """Refuse a request without a valid key, if keys are required, as `ApiKeys.check` does."""
    keys: ApiKeys | None = request.app.state.keys
    if keys is not None:
        request.state.key, request.state.rate_limit = keys.check(request.headers, address_key)


def client_of(request: Request) -> str:
    """The client: its key if keys are required, else its IPv4 address or IPv6 network."""
    if request.state.key is not None:
        return f"key {request.state.key}"
    host = "" if request.client is None else request.client.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    # A port that is open to both (`--host ::`) names an IPv4 client ::ffff:192.0.2.1: with its
    # network, ::/64, all of them would be one client.
    ipv4 = getattr(address, "ipv4_mapped", address)
    if ipv4 is not None:
        return str(ipv4)
    return str(ipaddress.ip_network((address, _SITE_BITS), strict=False))
