"""Memory of photos: what a large picture took goes back, what an ordinary one took is kept.

glibc raises the size from which blocks are returned to the system with each such block that is
freed, up to 32 MiB. After a few large pictures every thread keeps what it once needed: four
threads that decoded one 50-megapixel PNG each, one after the other, held 1.26 GB instead of 0.49.
A size that is set stays. But then glibc also goes on to return the end of a heap as soon as
128 KiB of it are free, so that each photo is given its memory anew, page by page: 575 pages for a
photo of 250 KB, 2,200 for one of 12 megapixels, 3 and 5 % of all it takes.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 4 * 2**20
"""Small enough for every large picture; what a photo of a phone takes as JPEG stays below."""
KEPT_BYTES = 16 * 2**20
"""Of the free end of a heap, of which each thread may have one; a photo takes about half."""


def tune_malloc() -> bool:
    """Let blocks of 4 MiB and more go back to the system when they are freed, and keep others.

    For the whole process, so it is for a program to call and not for a library.

    Returns:
        Whether the C library took the settings; others than glibc have none.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGE_BYTES) and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
