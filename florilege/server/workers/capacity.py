"""How many workers a machine, or the limits of a container, can carry."""

from contextlib import suppress
from typing import Final

from florilege.cores import cores
from florilege.errors import UsageError
from florilege.models.bundle.bundle import MODEL
from florilege.processes.memory import free_bytes, memory_bytes
from florilege.server.settings import MEBIBYTE, Settings

_CORES_A_WORKER: Final = 2
"""A process holds the interpreter's lock for about a fifth of the processor time of a photo, so a
second core for each hides it; more processes cost memory and gain nothing (`docs/scaling.md`)."""
_BASE_BYTES: Final = 200 * MEBIBYTE  # of a process, without its network
NETWORKS: Final = 2  # its size in memory, as a multiple of its file
_BYTES_A_PIXEL: Final = 16  # while a picture is decoded


def worker_count(settings: Settings) -> int:
    """The workers that the settings ask for; of ``auto`` what cores and free memory carry.

    Raises `UsageError` for more than memory carries by the table in `docs/deploy.md`.
    """
    network = 0
    with suppress(OSError):  # whoever opens the bundle says what is wrong
        network = (settings.bundle / MODEL).stat().st_size
    uploads = settings.max_held_bytes + _BYTES_A_PIXEL * settings.max_decoding_pixels
    memory, size = memory_bytes(), _BASE_BYTES + NETWORKS * network
    fitting = max(1, (memory - uploads) // size)
    if settings.workers == "auto":
        fitting = (free_bytes() - uploads) // size
        return max(1, min(cores() // _CORES_A_WORKER, fitting))
    if settings.workers > fitting:
        raise UsageError(
            f"--workers {settings.workers}: each may take {size // MEBIBYTE} MiB, uploads and "
            f"decoding {uploads // MEBIBYTE} MiB, and there are {memory // MEBIBYTE} MiB: use "
            f"{fitting}, or lower --max-decoding-pixels"
        )
    return settings.workers
