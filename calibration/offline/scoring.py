"""Outputs of the network for a whole split, computed the way the server computes them.

One photo at a time goes through decoder and network: no batch that could change a last digit, and
the very code that answers requests.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from calibration.offline.logits import FEATURES, Outputs, OutputStore, Scoring
from data.dataset import Split
from models.bundle.bundle import MODEL, Bundle
from models.cores import in_order
from models.errors import DataError
from models.images import ImageError, load
from models.progress import progress
from models.session import Session

NAMES_SHOWN = 10


def score_split(session: Session, split: Split, *, features: bool = False) -> Scoring:
    """Run every photo of a split through the network, in as many threads as there are cores.

    Args:
        session: The network.
        split: The photos; labels index the classes of its bundle.
        features: Whether features are kept too; the graph must give them.

    Raises:
        DataError: The split is empty, or photos cannot be read; the message lists them.
    """
    if not len(split):
        raise DataError(f"split {split.name!r} has no photos: name another with --split")
    bundle = session.bundle
    columns = dict.fromkeys(bundle.heads, len(bundle.classes))
    if features:
        columns[FEATURES] = session.dimensions or 0
    store = OutputStore(columns, split.labels)
    score = partial(_score, session, split, features)
    try:
        photos, data_sha256 = _gather(score, store, bundle, split)
    except BaseException:
        store.close()
        raise
    return Scoring(
        outputs=store,
        heads=tuple(bundle.heads),
        split=split.name,
        data_sha256=data_sha256,
        model_sha256=bundle.manifest.files[MODEL],
        observations=split.observations,
        photos=photos,
    )


class _Scored(NamedTuple):
    outcome: dict[str, Outputs] | str  # the outputs, or why there are none
    sha256: bytes  # of the photo


def _gather(
    score: Callable[[int], _Scored], store: OutputStore, bundle: Bundle, split: Split
) -> tuple[tuple[bytes, ...], str]:
    """Keep the outputs of every row; gives the hash of each photo, and that of the data."""
    digest, failures, photos = hashlib.sha256(), list[str](), list[bytes]()
    with progress(len(split), f"scoring {split.name}") as advance:
        for row, scored in enumerate(in_order(score, range(len(split)))):
            advance(1)
            if isinstance(scored.outcome, str):
                failures.append(scored.outcome)
            elif not failures:
                store.append(scored.outcome)
            photos.append(scored.sha256)
            digest.update(scored.sha256)
            digest.update(bundle.classes.ids[split.labels[row]].encode() + b"\0")
    _refuse(failures, len(split))
    return tuple(photos), digest.hexdigest()


def _score(session: Session, split: Split, features: bool, row: int) -> _Scored:
    try:
        content = split.read(row)
        image = load(content, session.bundle.preprocess)
    except (OSError, ImageError) as error:
        return _Scored(f"{split.names[row]}: {error}", b"")
    outputs = session.outputs(image[np.newaxis], features=features)
    found = dict(outputs.logits)
    if outputs.features is not None:
        found[FEATURES] = outputs.features
    return _Scored(found, hashlib.sha256(content).digest())


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
