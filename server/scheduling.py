"""Fewer interruptions: what reaches the network stack waits a moment for the photo in hand.

Linux stops a thread that computes whenever one that waited may go on, which with many requests
under way happens several times for each photo, and each time the caches are filled anew. Under
the policy SCHED_BATCH it stops it at the end of its slice, a few milliseconds at most. Shares of
the processor stay the same, and no privilege is needed.
"""

import os
import sys


def schedule_as_batch() -> bool:
    """Ask this for the calling thread and for all threads and processes that it begins.

    Returns:
        Whether the system took it; others than Linux have no such policy, and sandboxes refuse it.
    """
    if sys.platform != "linux":
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:
        return False
    return True
