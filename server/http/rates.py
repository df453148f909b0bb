"""Rate limits: requests of one client counted in a moving window, in this process."""

import ipaddress
import math
import time

from fastapi import Request
from limits import RateLimitItem
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from florilege.server.problems import Code, Problem

SITE_BITS = 64  # of an IPv6 address; one client has all addresses of this network


class RateCounter:
    """Counts the requests of each client; ``what`` names the client in messages and headers."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def count(self, rate: RateLimitItem, client: str) -> dict[str, str]:
        """Count one request, and return the rate limit headers.

        Raises:
            Problem: There are too many requests for this rate.
        """
        within_rate = self._limiter.hit(rate, client)
        reset, remaining = self._limiter.get_window_stats(rate, client)
        seconds = max(1, math.ceil(reset - time.time()))
        headers = {
            "RateLimit-Policy": f'"{self._what}";q={rate.amount};w={rate.get_expiry()}',
            "RateLimit": f'"{self._what}";r={remaining};t={seconds}',
        }
        if not within_rate:
            raise Problem(
                Code.RATE_LIMITED,
                f"this {self._what} may send {rate.amount} requests in {rate.get_expiry()} "
                f"seconds; try again in {seconds}",
                limit=rate.amount,
                retry_after=seconds,
                headers=headers,
            )
        return headers


def client_of(request: Request) -> str:
    """The client: its key if keys are required, else its address, of IPv6 the network."""
    if request.state.key is not None:
        return f"key {request.state.key}"
    host = "" if request.client is None else request.client.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((address, SITE_BITS), strict=False))
