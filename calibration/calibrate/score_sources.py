"""Scores that thresholds are chosen and measured on: of single photos, of plants, of a list.

Leaving the classes outside a list out after scoring would lose their share of the scores, and sets
of the same threshold would shrink. So scores are computed among the classes of the list, and a
threshold of its own brings the mean size back to K.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.photo_outputs import BundleOutputs, SplitOutputs
from florilege.calibration.fusion import Fusion, fuse
from florilege.calibration.photo_groups import MadeFrom, PhotoGroups
from florilege.calibration.rules import RULES
from florilege.calibration.scores import ScoreKind, logits_among, scale_logits, scores
from florilege.models.class_lists import RegionList
from florilege.models.occurrences import PlaceKind

Block = tuple[NDArray[np.float64], NDArray[np.int64] | None]  # scores, and labels if known


@dataclass(frozen=True, kw_only=True)
class Source:
    """Scores of one head, kind and temperature, of single photos or of groups, or of a list."""

    blocks: Callable[[], Iterator[Block]]  # starts a new pass over the scores
    rows: int  # total number of rows
    classes: int  # number of scored classes
    head: str  # head of the logits
    score_kind: ScoreKind  # how its logits become scores
    temperature: float  # the logits are divided by this first
    images: int = 1  # photos in a group
    fusion: Fusion = "mean_score"  # how the scores of a group become one row
    made_from: MadeFrom | None = None  # what its photos have in common; None for single photos
    list_name: str | None = None  # the list whose classes are scored; None for all classes
    place: PlaceKind | None = None  # what is known of the place of each photo
    plants: NDArray[np.int64] | None = None  # the plant of each row; None where all are independent


def single_photos(
    outputs: SplitOutputs, head: str, kind: ScoreKind, temperature: float, *, step: int = 1
) -> Source:
    """The scores of every ``step``-th photo alone."""

    def blocks() -> Iterator[Block]:
        first = 0
        for (logits,), labels in outputs.blocks(head):
            rows = slice(-first % step, None, step)
            yield scores(logits[rows], kind, temperature=temperature), labels[rows]
            first += len(labels)

    return Source(
        blocks=blocks,
        rows=len(outputs.labels[::step]),
        classes=outputs.columns[head],
        head=head,
        score_kind=kind,
        temperature=temperature,
        plants=None if outputs.plants is None else outputs.plants[::step],
    )


def served_scores(measured: BundleOutputs) -> Source:
    """The scores of every photo as the bundle serves them."""
    served = measured.record
    return single_photos(measured.outputs, served.head, served.score_kind, served.temperature)


def photos_of_list(outputs: SplitOutputs, single: Source, region: RegionList) -> Source:
    """The photos of a list's classes, scored among these alone; labels index these too."""
    classes = np.array(region.classes)  # ascending
    mask = np.isin(outputs.labels, classes)

    def blocks() -> Iterator[Block]:
        for (logits,), labels in outputs.blocks(single.head):
            rows = np.isin(labels, classes)
            if rows.any():
                listed = logits_among(logits[rows], classes)
                values = scores(listed, single.score_kind, temperature=single.temperature)
                yield values, np.searchsorted(classes, labels[rows])

    return replace(
        single,
        blocks=blocks,
        rows=int(mask.sum()),
        classes=len(classes),
        list_name=region.name,
        plants=None if single.plants is None else single.plants[mask],
    )


def fused_photos(
    outputs: SplitOutputs, single: Source, groups: PhotoGroups, *, k: int | None = None
) -> Source:
    """A row of scores, or with ``k`` of marginals, for each group of photos."""
    count, images = groups.rows.shape

    def blocks() -> Iterator[Block]:
        step = max(1, outputs.rows_at_once(single.head) // images)
        for start in range(0, count, step):
            part = groups.rows[start : start + step]
            logits = outputs.rows(single.head, part.reshape(-1)).reshape(*part.shape, -1)
            served = scale_logits(logits, single.temperature)
            fused = fuse(served, score_kind=single.score_kind, k=k)
            yield fused, outputs.labels[part[:, 0]]

    return replace(
        single,
        blocks=blocks,
        rows=count,
        images=images,
        fusion=RULES["average_k" if k is None else "top_k"].fusion,
        made_from=groups.made_from,
        plants=None,
    )
