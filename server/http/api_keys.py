"""API keys: who may send requests, and how many. The server holds only their hashes."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import Request
from limits import RateLimitItem, parse

from florilege.errors import UsageError
from florilege.server.http.rates import RateCounter
from florilege.server.problems import Code, Problem

NAME: Final = re.compile(r"[\w.@-]{1,64}")
SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")
KEY_HINT: Final = "send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"


@dataclass(frozen=True)
class _ApiKey:
    """One line of a keys file, without its hash."""

    name: str
    rate: RateLimitItem | None  # None: unlimited


class ApiKeys:
    """The keys of a file, and how often each was used.

    Args:
        path: One key per line: ``NAME SHA256 [RATE]``, such as ``app 9f86... 60/minute``; ``#``
            starts a comment.

    Raises:
        UsageError: It cannot be read, holds no key, or has invalid lines, which are named.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rates = RateCounter("key")
        self._by_hash: Mapping[str, _ApiKey] = {}
        self.read()

    def __len__(self) -> int:
        return len(self._by_hash)

    def read(self) -> None:
        """Read the file again. If that fails, the keys stay as they are. Counts are kept."""
        self._by_hash = _read(self._path)

    def check(self, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """Count one request; returns the name of its key and its rate limit headers.

        Raises:
            Problem: There is no key in the headers, or it is not in the file, or there are too many
                requests for its rate.
        """
        scheme, _, key_text = headers.get("authorization", "").partition(" ")
        key_text = key_text.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return self.check_key_text(key_text.encode("latin-1", "replace"))

    def check_key_text(self, key_text: bytes) -> tuple[str, dict[str, str]]:
        """As `check`, with the key itself; empty for none."""
        if not key_text:
            raise Problem(
                Code.KEY_MISSING,
                f"this server requires a key: {KEY_HINT}",
                headers={"WWW-Authenticate": "Bearer"},
            )
        key = self._by_hash.get(hashlib.sha256(key_text).hexdigest())
        if key is None:
            raise Problem(Code.KEY_UNKNOWN, f"this key is wrong or no longer valid; {KEY_HINT}")
        if key.rate is None:
            return key.name, {}
        return key.name, self._rates.count(key.rate, key.name)


def _read(path: Path) -> Mapping[str, _ApiKey]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--keys-file {path} cannot be read: {reason}") from error
    keys, names, mistakes = dict[str, _ApiKey](), set[str](), list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        key = _key(words)
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
        rate = parse(words[2]) if len(words) == 3 else None
    except ValueError:
        return None
    return _ApiKey(words[0], rate) if rate is None or rate.amount > 0 else None


async def check_key(request: Request) -> None:
    """Refuse a request without a valid key, if keys are required.

    Raises:
        Problem: As `ApiKeys.check`.
    """
    keys: ApiKeys | None = request.app.state.keys
    if keys is not None:
        request.state.key, request.state.rate_limit = keys.check(request.headers)
