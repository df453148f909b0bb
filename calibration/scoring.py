"""Logits of a whole split, computed the way the server computes them.

One photo at a time goes through decoder and network, in threads or in processes: no batch that
could change a last digit, and the very code that answers requests.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.logits import Logits, LogitStore, Scoring
from calibration.processes import in_processes
from data.dataset import Split
from models.bundle import MODEL, Bundle
from models.errors import DataError, UsageError
from models.images import ImageError, Preprocess, load
from models.progress import progress
from models.session import FEATURES, Session

NAMES_SHOWN = 10


View = Callable[[bytes, Preprocess], NDArray[np.uint8]]
"""From a picture's bytes to one or several inputs of the network, ``(views, side, side, 3)``."""


def whole(content: bytes, preprocess: Preprocess) -> NDArray[np.uint8]:
    """The one input that the server makes of a photo."""
    return load(content, preprocess)[np.newaxis]


def score_split(
    bundle: Bundle,
    split: Split,
    *,
    device: str = "auto",
    workers: int = 1,
    view: View = whole,
    views: int = 1,
    features: bool = False,
) -> Scoring:
    """Run every photo of a split through the bundle.

    Args:
        bundle: An opened bundle.
        split: The photos; labels index the bundle's classes.
        device: ``auto``, ``cpu`` or ``cuda``.
        workers: Processes; 1 is this one, with a thread for each core. Any number gives the same
            bits.
        view: What the network sees of a photo.
        views: How many inputs that is; their logits stand one after the other in a row of
            ``views * classes``.
        features: Whether features and the hashes of photos are kept too; the graph must give
            features, and there is one view.

    Raises:
        DataError: The split is empty, or photos cannot be read; the message lists them.
        UsageError: ``workers`` below 1.
        FlorilegeError: A process was killed.
    """
    if not len(split):
        raise DataError(f"split {split.name!r} has no photos: name another with --split")
    if workers < 1:
        raise UsageError(f"--workers must be at least 1, got {workers}")
    prepare = partial(_scorer, bundle, split, device, view, features)
    store = LogitStore(tuple(bundle.heads), views * len(bundle.classes), split.labels)
    kept = None
    if features:
        dimensions = Session(bundle, device="cpu").dimensions or 0
        kept = LogitStore((FEATURES,), dimensions, split.labels)
    stores = [store] if kept is None else [store, kept]
    photos: list[bytes] | None = [] if features else None
    try:
        with (
            progress(len(split), f"scoring {split.name}") as advance,
            closing(_scored(prepare, len(split), workers)) as results,
        ):
            data_sha256 = _gather(results, stores, photos, bundle, split, advance)
    except BaseException:
        for each in stores:
            each.close()
        raise
    return Scoring(
        logits=store,
        split=split.name,
        data_sha256=data_sha256,
        model_sha256=bundle.manifest.files[MODEL],
        observations=split.observations,
        features=kept,
        photos=tuple(photos or ()),
    )


def _gather(
    results: Iterator["_Scored"],
    stores: list[LogitStore],
    photos: list[bytes] | None,
    bundle: Bundle,
    split: Split,
    advance: Callable[[int], None],
) -> str:
    """Keep the outputs and the hash of every row; gives the hash of the data."""
    digest, failures = hashlib.sha256(), list[str]()
    for row, scored in enumerate(results):
        advance(1)
        if isinstance(scored.outcome, str):
            failures.append(scored.outcome)
        elif not failures:
            for store in stores:
                store.append(scored.outcome)
        if photos is not None:
            photos.append(scored.sha256)
        digest.update(scored.sha256)
        digest.update(bundle.classes.ids[split.labels[row]].encode() + b"\0")
    _refuse(failures, len(split))
    return digest.hexdigest()


class _Scored(NamedTuple):
    outcome: dict[str, Logits] | str  # the outputs, or why there are none
    sha256: bytes  # of the photo


def _scored(
    prepare: Callable[[], Callable[[int], _Scored]], rows: int, workers: int
) -> Generator[_Scored, None, None]:
    """The rows in order, from threads of this process or from others."""
    processes = min(workers, rows)
    if processes > 1:
        yield from in_processes(prepare, rows, processes)
    else:
        yield from in_order(prepare(), rows)


def _scorer(
    bundle: Bundle, split: Split, device: str, view: View, features: bool
) -> Callable[[int], _Scored]:
    """Scores a row; it has a session of its own."""
    return partial(_score, Session(bundle, device=device), bundle, split, view, features)


def _score(
    session: Session, bundle: Bundle, split: Split, view: View, features: bool, row: int
) -> _Scored:
    try:
        content = split.read(row)
        images = view(content, bundle.preprocess)
    except (OSError, ImageError) as error:
        return _Scored(f"{split.names[row]}: {error}", b"")
    outputs = session.outputs(images, features=features)
    found = {head: values.reshape(1, -1) for head, values in outputs.logits.items()}
    if outputs.features is not None:
        found[FEATURES] = outputs.features
    return _Scored(found, hashlib.sha256(content).digest())


def in_order(work: Callable[[int], _Scored], count: int) -> Iterator[_Scored]:
    """``work(0)``, ``work(1)``, ... computed by as many threads as there are cores."""
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        rows = iter(range(count))
        waiting: deque[Future[_Scored]] = deque(
            pool.submit(work, row) for row in islice(rows, 4 * workers)
        )
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(work, row) for row in islice(rows, 1))


def _refuse(failures: list[str], rows: int) -> None:
    if not failures:
        return
    shown = "\n".join(f"  {failure}" for failure in failures[:NAMES_SHOWN])
    more = len(failures) - NAMES_SHOWN
    rest = f"\n  and {more} more" if more > 0 else ""
    raise DataError(
        f"{len(failures)} of {rows} photos cannot be read; remove or mend them and start again "
        f"(`florilege data check` lists all):\n{shown}{rest}"
    )
