"""Giving memory back: what one large picture took must be there for the next, in another thread.

glibc raises the size from which blocks are returned to the system with each such block that is
freed, up to 32 MiB. After a few large pictures every thread keeps what it once needed: four
threads that decoded one 50-megapixel PNG each, one after the other, held 1.26 GB instead of 0.49.
A size that is set stays.
"""

import ctypes
import sys

M_MMAP_THRESHOLD = -3
LARGE_BYTES = 4 * 2**20
"""Small enough for every large picture; what a photo of a phone takes as JPEG stays below."""


def return_large_blocks() -> bool:
    """Let blocks of 4 MiB and more go back to the system when they are freed.

    For the whole process, so it is for a program to call and not for a library.

    Returns:
        Whether the C library took the setting; others than glibc have none.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGE_BYTES))
