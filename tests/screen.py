"""What a terminal shows in the end: a program runs in one, and what it wrote is drawn."""

import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl

# a control sequence, or anything else one by one
_PARTS = re.compile(r"\x1b\[(\?)?([\d;]*)([A-Za-z])|(.)", re.DOTALL)


def shown_by(
    program: str, *, columns: int = 80, interrupt_at: str = "", stdout: int | None = None
) -> list[str]:
    """Run a Python program in a terminal and return the lines it leaves, scrolled ones too.

    Args:
        program: Its source.
        columns: Width of the terminal.
        interrupt_at: Press Ctrl-C as soon as this has been written.
        stdout: Where its standard output goes instead.
    """
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=theirs,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env=environment | {"TERM": "xterm-256color"},
        start_new_session=True,
        preexec_fn=_take_the_terminal,
    )
    os.close(theirs)
    text, pressed, end = b"", 0.0 if interrupt_at else math.inf, time.monotonic() + 100
    while time.monotonic() < end:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                text += os.read(ours, 65536)
            except OSError:  # the last process has closed it
                break
        if time.monotonic() > pressed + 5 and interrupt_at.encode() in text:  # again if need be
            os.write(ours, b"\x03")
            pressed = time.monotonic()
    process.wait(10)
    os.close(ours)
    return drawn(text.decode(), columns)


def _take_the_terminal() -> None:
    """So that Ctrl-C reaches the program, also where whoever started the tests ignores it."""
    ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


_UNWANTED = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}


def drawn(written: str, columns: int) -> list[str]:
    """The lines that a terminal of this width shows."""
    lines, row, column = [[" "] * columns], 0, 0
    for private, number, letter, character in _PARTS.findall(written):
        if character == "\r":
            column = 0
        elif character:
            if character == "\n" or column == columns:
                row, column = row + 1, column % columns
                lines += [[" "] * columns] * (row == len(lines))
            if character != "\n":
                lines[row] = [*lines[row][:column], character, *lines[row][column + 1 :]]
                column += 1
        elif letter == "A":
            row = max(0, row - int(number or 1))
        elif letter == "K" and number == "2":
            lines[row] = [" "] * columns
        elif letter and not (private or letter == "m"):
            raise ValueError(f"control sequence {number}{letter} cannot be drawn")
    result = ["".join(line).rstrip() for line in lines]
    return result[: max((n for n, line in enumerate(result, 1) if line), default=0)]
