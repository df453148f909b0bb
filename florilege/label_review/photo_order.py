"""Which photos people review first: at random, by doubt in the label, or by the size of the set."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from florilege.calibration.calibrate import SplitOutputs, outputs_of
from florilege.calibration.photo_groups import observation_numbers
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import calibrated_runtimes, read_record
from florilege.calibration.rules.label_doubt import label_doubt
from florilege.calibration.sets import Ints, Singles
from florilege.calibration.view import PLAIN
from florilege.data.options import fraction
from florilege.data.pool import Pool
from florilege.errors import BundleError, DataError, UsageError, first
from florilege.models.bundle import Bundle, open_bundle
from florilege.models.output_store import OutputStore, photo_id
from florilege.models.runtime import Runtime
from florilege.models.session import FEATURES, Session
from florilege.run_bundle import bundle_folder


def plants_of(pool: Pool) -> Ints | None:
    """The plant of each photo; None where the data name none."""
    return None if pool.observations is None else observation_numbers(pool.observations)


def random_rows(names: Sequence[str], seed: int) -> list[int]:
    """All rows in an order drawn from the names, so that a larger sample holds a smaller one.

    Example:
        >>> random_rows(["a", "b", "c", "d"], 0) == random_rows(["a", "b", "c", "d"], 0)
        True
    """
    # The key is not the bare name: options of the data draw by that, as `hold_out` draws val.
    return sorted(range(len(names)), key=lambda row: fraction(f"review/{names[row]}", seed))


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The photos of a pool in the order of a review."""

    rows: Sequence[int]  # best first
    sets: Mapping[int, Sequence[str]] = field(default_factory=dict)  # class ids, best first, by row
    wrong_rate: float | None = None  # of labels, as the heads of the order doubt estimate it


@dataclass(frozen=True)
class ReviewedModel:
    """What ``--model`` names: a bundle, or the folder of kept features."""

    path: Path
    bundle: Bundle | None
    record: CalibrationRecord | None  # None unless the bundle is calibrated

    @classmethod
    def open(cls, name: str) -> "ReviewedModel":
        """Open a bundle, a run folder, which is exported and calibrated, or kept features.

        Raises:
            BundleError: There is none, or it is damaged.
            UsageError: The folder keeps the features of several networks.
        """
        path = Path(name)
        stores = [*path.glob("features.f32"), *path.glob("*/features.f32")]
        if len(stores) > 1:
            networks = first(sorted(store.parent.name for store in stores))
            raise UsageError(f"{path} keeps the features of several networks, name one: {networks}")
        if stores:
            return cls(stores[0].parent, None, None)
        bundle = open_bundle(bundle_folder(name))
        return cls(path, bundle, read_record(bundle) if calibrated_runtimes(bundle) else None)


def rank(pool: Pool, order: str, seed: int, model: ReviewedModel | None) -> Ranking:
    """Order the photos of a pool.

    Raises:
        UsageError: The order needs a network, and there is none; or one that has the features.
        BundleError: The order needs a calibrated bundle.
        DataError: Photos cannot be read.
    """
    rows = random_rows(pool.names, seed)
    if order == "random":
        return Ranking(rows=rows)
    if model is None:
        needs = "a run, a bundle or kept features" if order == "doubt" else "a calibrated bundle"
        raise UsageError(f"--order {order} needs {needs}: add --model PATH")
    if order == "size":
        sets = sets_of(pool, model, rows)
        return Ranking(rows=sorted(rows, key=lambda row: -len(sets[row])), sets=sets)
    features, sets = _features(pool, model)
    plants = plants_of(pool)
    doubt = label_doubt(features, pool.labels, observations=plants, seed=seed)
    # NaN, for which no other plant has the label, comes last.
    ranked = np.argsort(doubt.probabilities[rows], kind="stable")
    ordered = [rows[place] for place in ranked.tolist()]
    return Ranking(rows=ordered, sets=sets, wrong_rate=doubt.wrong_rate)


def sets_of(pool: Pool, model: ReviewedModel, rows: Sequence[int]) -> dict[int, Sequence[str]]:
    """The set of each of these rows: class ids, best first.

    Raises:
        UsageError: There are only kept features.
        BundleError: The bundle is not calibrated.
    """
    if model.bundle is None:
        raise UsageError(f"{model.path} holds kept features, which make no sets: name a bundle")
    record = model.record or read_record(model.bundle)  # which says how to calibrate
    with _outputs(pool.of(rows), model, features=False) as outputs:
        return dict(zip(rows, _sets(model.bundle, record, outputs), strict=True))


@contextmanager
def _outputs(pool: Pool, model: ReviewedModel, *, features: bool) -> Iterator[SplitOutputs]:
    """Run the network; its classes may be others than those of the data."""
    assert model.bundle is not None
    runtime = Runtime() if model.record is None else model.record.measured.served_by
    session = Session(model.bundle, runtime=runtime)
    if features and session.dimensions is None:
        raise UsageError(
            f"{model.path}: the graph of this bundle gives no features, which --order doubt "
            "needs: name another network"
        )
    # The outputs do not depend on labels, which would have to be classes of the network.
    unlabelled = replace(pool, labels=np.zeros_like(pool.labels))
    with closing(outputs_of(session, unlabelled, features=features)) as outputs:
        yield outputs


def _sets(bundle: Bundle, record: CalibrationRecord, outputs: SplitOutputs) -> Iterator[list[str]]:
    # At the K that the server answers with.
    point, ids = record.point(PLAIN, record.setting("average_k")), bundle.classes.ids
    for (logits,), _ in outputs.blocks(record.head):
        scores = record.scores(logits)
        ranks = np.argsort(-point.rank_by(scores), axis=1, kind="stable")
        for best_first, inside in zip(ranks, point.sets(scores), strict=True):
            yield [ids[index] for index in best_first[inside[best_first]].tolist()]


def _features(pool: Pool, model: ReviewedModel) -> tuple[Singles, dict[int, Sequence[str]]]:
    """The features of all photos, ``(photos, dimensions)``, and their sets, if there are any."""
    if model.bundle is None:
        return _stored_features(pool, model.path), {}
    with _outputs(pool, model, features=True) as outputs:
        blocks = [values for (values,), _ in outputs.blocks(FEATURES)]
        sets = [] if model.record is None else _sets(model.bundle, model.record, outputs)
        return np.concatenate(blocks), dict(enumerate(sets))


def _stored_features(pool: Pool, folder: Path) -> Singles:
    """The features that a training stored in ``folder``."""
    try:
        ids = [photo_id(pool.read(row)) for row in range(len(pool))]
    except OSError as error:
        raise DataError(f"a photo cannot be read: {error}; `florilege data check`") from error
    try:
        store = OutputStore.of_features(folder)
    except ValueError as error:
        raise BundleError(f"{folder}: {error}") from error
    if missing := [row for row, photo in enumerate(ids) if photo not in store]:
        raise UsageError(
            f"{folder} holds no features of {len(missing):,} of {len(pool):,} photos, such as "
            f"{pool.names[missing[0]]}: name the run or a bundle"
        )
    values: Singles = store.values(FEATURES)[store.rows_of(ids)]
    return values
