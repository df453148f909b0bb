"""How long Linux lets threads run before it turns to others."""

import ctypes
import platform
import struct
from pathlib import Path

import pytest

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}


def turn_ms(thread: int) -> float:
    """The milliseconds that a thread has asked for; skips the test where Linux cannot tell."""
    number, answer = SCHED_GETATTR.get(platform.machine()), ctypes.create_string_buffer(48)
    if number is None or ctypes.CDLL(None).syscall(number, thread, answer, len(answer), 0):
        pytest.skip("this system has no such call")
    nanoseconds: int = struct.unpack("=IIQiIQQQ", answer)[5]
    if not nanoseconds:
        pytest.skip("before Linux 6.12")
    return nanoseconds / 1e6


def turns_ms(process: int) -> set[float]:
    """Those of all threads of a process."""
    return {turn_ms(int(task.name)) for task in Path(f"/proc/{process}/task").iterdir()}
