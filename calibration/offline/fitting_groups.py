"""Thresholds for requests with several photos of one plant."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from calibration.fusion import Fusion, fuse
from calibration.marginals import LARGEST_K
from calibration.measurement import Measurement
from calibration.offline.logits import Scoring, rows_at_once
from calibration.offline.promise import promised_tables
from calibration.offline.settings import Settings
from calibration.offline.tabulate import Source, rows_of, tabulate, top_k_rule
from calibration.photo_groups import FEWEST_GROUPS, PhotoGroups, groups_of
from calibration.record.tables import Table
from calibration.rules import RULES
from calibration.scores import ScoreKind, adjusted

MARGINAL_GROUPS = 2000
"""Top-k marginals take long, and ``top_k`` needs no threshold: so many are enough to measure it."""


def group_tables(
    scoring: Scoring,
    settings: Settings,
    *,
    head: str,
    score_kind: ScoreKind,
    temperature: float,
    images: int,
    weights: NDArray[np.float64],
) -> list[Table]:
    """Tables of every rule for groups of ``images`` photos, at the K and coverages asked for.

    Groups are of one plant where the data know plants, else of one species; the tables say which.
    Memory does not grow with the groups times classes.

    Args:
        scoring: Logits of the calibration split.
        settings: What is asked for.
        head: The head that serves.
        score_kind: The kind of score that serves.
        temperature: The temperature that serves.
        images: Photos in a group.
        weights: Of the balanced rules, shape ``(classes,)``.

    Returns:
        The tables; none where there are fewer than 100 groups.
    """
    groups = groups_of(scoring.labels, size=images, observations=scoring.observations)
    if len(groups) < FEWEST_GROUPS:
        return []
    grouped = _Grouped(scoring, groups, head, score_kind, temperature, settings.classes)
    source = grouped.source(RULES["average_k"].fusion)
    ks = settings.compared
    tables = tabulate(source, settings, ks, fixed=False).tables
    tables += tabulate(source, settings, ks, weights=weights).tables
    tables += promised_tables(source, settings)
    return tables + grouped.top_k(settings)


class _Grouped:
    """The scores of groups of photos, fused, read as often as wanted."""

    def __init__(
        self,
        scoring: Scoring,
        groups: PhotoGroups,
        head: str,
        score_kind: ScoreKind,
        temperature: float,
        classes: int,
    ) -> None:
        self._scoring, self._head, self._kind = scoring, head, score_kind
        self._temperature = temperature
        self._made_from = groups.made_from
        self._rows = np.random.default_rng(0).permutation(groups.rows)  # (groups, images)
        self._groups_at_once = max(1, rows_at_once(classes) // groups.rows.shape[1])

    def source(self, fusion: Fusion, *, most: int | None = None) -> Source:
        rows = self._rows[:most]
        return Source(
            blocks=lambda: self._blocks(rows, fusion, None),
            rows=len(rows),
            head=self._head,
            score_kind=self._kind,
            temperature=self._temperature,
            images=rows.shape[1],
            fusion=fusion,
            made_from=self._made_from,
        )

    def top_k(self, settings: Settings) -> list[Table]:
        """The table of ``top_k``; each k has marginals of its own."""
        source = self.source(RULES["top_k"].fusion, most=MARGINAL_GROUPS)
        found = []
        for k in settings.sizes(settings.compared):
            if k <= LARGEST_K:
                measured = Measurement([top_k_rule(k, source.rows)], settings.classes)
                for values, labels in self._blocks(self._rows[: source.rows], source.fusion, k):
                    measured.update(values, labels)
                found += rows_of(measured, [k])
        return [source.table("top_k", settings, found)] if found else []

    def _blocks(
        self, rows: NDArray[np.int64], fusion: Fusion, k: int | None
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
        outputs, labels = self._scoring.outputs, self._scoring.labels
        for start in range(0, len(rows), self._groups_at_once):
            part = rows[start : start + self._groups_at_once]
            values = outputs.rows(self._head, part.reshape(-1)).reshape(*part.shape, -1)
            served = adjusted(values, temperature=self._temperature, log_ratios=None)
            yield (
                fuse(served, score_kind=self._kind, fusion=fusion, k=k),
                labels[part[:, 0]],
            )
