"""Scores that thresholds are chosen and measured on: of single photos, of plants, of a list.

If the classes outside a list were removed after scoring, their share of the scores would be lost,
and sets at the same threshold would shrink. So scores are computed among the classes of the list.
Its own threshold brings the mean size back to K.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.fusion import Fusion, fuse
from florilege.calibration.photo_groups import MadeFrom, PhotoGroups
from florilege.calibration.rules import RULES
from florilege.calibration.scores import ScoreKind, logits_among, scale_logits, scores
from florilege.calibration.validation import Bools, Floats, Ints
from florilege.models.class_lists import RegionList
from florilege.models.occurrences import PlaceKind

Block = tuple[Floats, Ints | None]  # scores, and labels if known


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
    plants: Ints | None = None  # the plant of each row; None where all are independent

    @classmethod
    def of_photos(
        cls, outputs: SplitOutputs, head: str, kind: ScoreKind, temperature: float, *, step: int = 1
    ) -> "Source":
        """The scores of every ``step``-th photo alone."""
        among = None if step == 1 else np.arange(len(outputs.labels)) % step == 0

        def blocks() -> Iterator[Block]:
            for (logits,), labels in outputs.blocks(head, among=among):
                yield scores(logits, kind, temperature=temperature), labels

        return cls(
            blocks=blocks,
            rows=len(outputs.labels[::step]),
            classes=outputs.columns[head],
            head=head,
            score_kind=kind,
            temperature=temperature,
            plants=None if outputs.plants is None else outputs.plants[::step],
        )

    def of_list(self, outputs: SplitOutputs, region: RegionList) -> "Source":
        """The photos of a list's classes, scored among these alone; labels index these too."""
        classes = np.array(region.classes)  # ascending
        mask = np.isin(outputs.labels, classes)

        def blocks() -> Iterator[Block]:
            for (logits,), labels in outputs.blocks(self.head, among=mask):
                listed = logits_among(logits, classes)
                values = scores(listed, self.score_kind, temperature=self.temperature)
                yield values, np.searchsorted(classes, labels)

        return self.of_rows(mask, blocks, classes=len(classes), list_name=region.name)

    def of_groups(
        self, outputs: SplitOutputs, groups: PhotoGroups, *, k: int | None = None
    ) -> "Source":
        """A row of scores, or with ``k`` of marginals, for each group of photos."""
        count, images = groups.rows.shape

        def blocks() -> Iterator[Block]:
            step = max(1, outputs.rows_at_once(self.head) // images)
            for start in range(0, count, step):
                part = groups.rows[start : start + step]
                logits = outputs.rows(self.head, part.reshape(-1)).reshape(*part.shape, -1)
                served = scale_logits(logits, self.temperature)
                fused = fuse(served, score_kind=self.score_kind, k=k)
                yield fused, outputs.labels[part[:, 0]]

        return replace(
            self,
            blocks=blocks,
            rows=count,
            images=images,
            fusion=RULES["average_k" if k is None else "top_k"].fusion,
            made_from=groups.made_from,
            plants=None,
        )

    def of_rows(
        self, mask: Bools, blocks: Callable[[], Iterator[Block]], **properties: Any
    ) -> "Source":
        """The rows under a mask, whose scores are ``blocks``, with some other properties."""
        plants = None if self.plants is None else self.plants[mask]
        return replace(self, blocks=blocks, rows=int(mask.sum()), plants=plants, **properties)
