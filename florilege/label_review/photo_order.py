"""Which photos people review first: at random, by doubt in the label, or by the size of the set."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from florilege.calibration.calibrate import SplitOutputs, outputs_of
from florilege.calibration.photo_groups import observation_numbers
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import calibrated_runtimes, read_record
from florilege.calibration.rules.label_doubt import label_doubt
from florilege.calibration.sets import Singles
from florilege.calibration.view import PLAIN
from florilege.data.corrections import RANDOM
from florilege.data.options import fraction
from florilege.data.records import Dataset
from florilege.data.sources import Pool
from florilege.errors import BundleError, DataError, UsageError, first, os_error_as
from florilege.label_review import ReviewPage, Summary, Verdict
from florilege.models.bundle import Bundle, open_bundle
from florilege.models.output_store import OutputStore, photo_id
from florilege.models.runtime import Runtime
from florilege.models.session import FEATURES, Session
from florilege.run_bundle import bundle_folder
from florilege.terminal import warn

Order = Literal["random", "doubt", "size"]


def _random_rows(names: Sequence[str], seed: int) -> list[int]:
    """All rows in an order drawn from the names, so that a larger sample holds a smaller one.

    Example:
        >>> _random_rows(["a", "b", "c", "d"], 0) == _random_rows(["a", "b", "c", "d"], 0)
        True
    """
    # The key is not the bare name: options of the data draw by that, as `hold_out` draws val.
    return sorted(range(len(names)), key=lambda row: fraction(f"review/{names[row]}", seed))


@dataclass(frozen=True, kw_only=True)
class _Ranking:
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

    def sets_of(self, pool: Pool, rows: Sequence[int]) -> dict[int, Sequence[str]]:
        """The set of each of these rows: class ids, best first.

        Raises:
            UsageError: There are only kept features.
            BundleError: The bundle is not calibrated.
        """
        if self.bundle is None:
            raise UsageError(f"{self.path} holds kept features, which make no sets: name a bundle")
        record = self.record or read_record(self.bundle)  # which says how to calibrate
        with _outputs(pool.of(rows), self, features=False) as outputs:
            return dict(zip(rows, _sets(self.bundle, record, outputs), strict=True))

    def features_of(self, pool: Pool) -> tuple[Singles, dict[int, Sequence[str]]]:
        """The features of all photos, ``(photos, dimensions)``, and any sets of theirs."""
        if self.bundle is None:
            return _stored_features(pool, self.path), {}
        with _outputs(pool, self, features=True) as outputs:
            blocks = [values for (values,), _ in outputs.blocks(FEATURES)]
            sets = [] if self.record is None else _sets(self.bundle, self.record, outputs)
            return np.concatenate(blocks), dict(enumerate(sets))


@dataclass(frozen=True, kw_only=True)
class Review:
    """A review: which photos, in which order."""

    dataset: Dataset
    pool: Pool
    sample: int
    order: Order
    seed: int
    model: ReviewedModel | None

    def summary(self, verdicts: Mapping[str, Verdict]) -> Summary:
        """What the answers say of the labels."""
        sample = self.pool.of(_random_rows(self.pool.names, self.seed)[: self.sample])
        return Summary.of(verdicts, sample.names, observation_numbers(sample.observations))

    @cached_property
    def ranking(self) -> _Ranking:
        """The photos of the pool in order, and what came of finding it.

        Raises:
            UsageError: The order needs a network, and there is none; or one that has the features.
            BundleError: The order needs a calibrated bundle.
            DataError: Photos cannot be read.
        """
        pool, model, rows = self.pool, self.model, _random_rows(self.pool.names, self.seed)
        if self.order == "random":
            return _Ranking(rows=rows)
        if model is None:
            kinds = {"doubt": "a run, a bundle or kept features", "size": "a calibrated bundle"}
            needs = kinds[self.order]
            raise UsageError(f"--order {self.order} needs {needs}: add --model PATH")
        if self.order == "size":
            sets = model.sets_of(pool, rows)
            return _Ranking(rows=sorted(rows, key=lambda row: -len(sets[row])), sets=sets)
        features, sets = model.features_of(pool)
        observations = observation_numbers(pool.observations)
        doubt = label_doubt(
            features,
            pool.labels,
            observations=observations,
            answers=self.dataset.answers(pool.names),
            seed=self.seed,
        )
        # NaN, for which no other observation has the label, comes last.
        places = np.argsort(doubt.probabilities[rows], kind="stable").tolist()
        ordered = [rows[place] for place in places]
        return _Ranking(rows=ordered, sets=sets, wrong_rate=doubt.wrong_now)

    def page(self, verdicts: Mapping[str, Verdict]) -> ReviewPage:
        """The page with the photos that no verdict decides.

        Raises:
            DataError: There is no such photo, and as `ranking`.
        """
        sample, model = {*self.ranking.rows[: self.sample]}, self.model
        rows = self._undecided(verdicts)
        if not rows:
            raise DataError("every photo of the sample is decided: there is nothing to review")
        sets = self.ranking.sets or self._sets(rows)
        photos = self.pool.of(rows)
        return ReviewPage(
            source=self.dataset.source,
            classes=self.dataset.classes,
            others=None if model is None or model.bundle is None else model.bundle.classes,
            photos=photos,
            splits=photos.splits,
            orders=[
                self._order(verdicts.get(name), sampled=row in sample)
                for name, row in zip(photos.names, rows, strict=True)
            ],
            sets=[sets.get(row, []) for row in rows],
            answers={name: verdict.answers for name, verdict in verdicts.items()},
        )

    def _undecided(self, verdicts: Mapping[str, Verdict]) -> list[int]:
        """The first photos of the order without those decided; answers that are open come first.

        What other orders drew of a random sample stays in it: without them, which are mostly wrong,
        the rest would tell too small a rate.
        """
        names, ranked = self.pool.names, self.ranking.rows
        sample, others = ranked[: self.sample], ranked[self.sample :]
        # What people disagree about is shown again, whichever page it was on.
        answered = (row for row in (*others, *sample) if names[row] in verdicts)
        opened = [row for row in answered if verdicts[names[row]].class_id is None]
        unanswered = (row for row in sample if not self._is_answered(verdicts.get(names[row])))
        return [*dict.fromkeys([*opened, *unanswered])]

    def _is_answered(self, verdict: Verdict | None) -> bool:
        return verdict is not None and (self.order != RANDOM or verdict.at_random)

    def _sets(self, rows: Sequence[int]) -> Mapping[int, Sequence[str]]:
        model = self.model
        if model is None or model.bundle is None:  # kept features make no sets
            return {}
        if model.record is None:
            warn(f"{model.path} is not calibrated: the page shows no sets")
            return {}
        return model.sets_of(self.pool, rows)

    def _order(self, verdict: Verdict | None, *, sampled: bool) -> str:
        """The order of the review that drew a photo: random if this one or an earlier did."""
        orders = [] if verdict is None else [verdict.order]
        orders += [self.order] if sampled else []
        return RANDOM if RANDOM in orders else orders[-1]


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


def _stored_features(pool: Pool, folder: Path) -> Singles:
    """The features that a training stored in ``folder``."""
    with os_error_as(DataError, "a photo cannot be read", "; `florilege data check` lists all"):
        ids = [photo_id(pool.read(row)) for row in range(len(pool))]
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
