"""Is it worth showing the network ten crops of each photo? Measured, not served.

References:
    Berrada, Zisserman and Kumar, "Smooth loss functions for deep top-k classification",
    ICLR 2018, section 5.2.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calibration.comparison import Change, Comparison, compare
from calibration.crops import CROPS, ten_crops
from calibration.evidence import Evidence
from calibration.fusion import Fusion, fuse
from calibration.logits import Scoring
from calibration.marginals import LARGEST_K
from calibration.measure import sizes_and_hits
from calibration.record import CalibrationRecord
from calibration.scored import ScoredBundle, scored_bundle
from calibration.scoring import score_split
from calibration.sets import SetRule
from calibration.tabulating import top_k_rule
from models.images import Preprocess, decode
from models.session import Session

LARGER = Fraction(8, 7)
"""The picture is this much larger than a crop: 256 for crops of 224."""
RESAMPLE = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
THRESHOLD_FROM = "these photos, without their labels"


@dataclass(frozen=True, kw_only=True)
class CropResult:
    """One rule with ten crops against one view, on the same photos.

    Attributes:
        rule: ``average_k`` or ``top_k``.
        k: Size asked for.
        fusion: How the crops' scores become one row.
        comparison: ``old`` is one view, ``new`` ten crops.
    """

    rule: str
    k: float
    fusion: Fusion
    comparison: Comparison

    def to_plain(self) -> dict[str, Any]:
        """For json. No bundle serves crops, so nothing here is calibrated."""
        found = self.comparison
        return {
            "rule": self.rule,
            "k": self.k,
            "crops": CROPS,
            "fusion": self.fusion,
            "calibrated": False,
            "threshold_from": None if self.rule == "top_k" else THRESHOLD_FROM,
            "rows": found.rows,
            "mean_set_size": _plain(found.size),
            "hit_rate": _plain(found.hit_rate),
        }


def compare_crops(
    path: str | Path, data: str, split: str = "test", *, device: str = "auto"
) -> list[CropResult]:
    """Ten crops against one view, for ``average_k`` and ``top_k`` at every K last asked for.

    For ``average_k`` both get a threshold chosen on these very photos, so that their sets have the
    same mean size and only the hits differ. Choosing it needs no labels, so the hit rates are as
    honest as any on a test split. Crops have no threshold in the bundle.

    Args:
        path: The bundle's folder.
        data: What ``--data`` takes.
        split: Name of the split, or a part of it.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        DataError: The data cannot be opened, or photos cannot be read.
        BundleError: The bundle is damaged or not calibrated.
    """
    with scored_bundle(path, data, split, device=device) as one:
        return crops_against(one, device=device)


def crops_against(one: ScoredBundle, *, device: str = "auto") -> list[CropResult]:
    """What :func:`compare_crops` gives, for a view that was scored before."""
    ten = score_split(Session(one.bundle, device=device), one.photos, view=crops_of, views=CROPS)
    with closing(ten):
        return [
            _compared(rule, k, fusion, one.scoring, ten, one.record)
            for rule, k, fusion in _all(one.record)
        ]


def crops_of(content: bytes, preprocess: Preprocess) -> NDArray[np.uint8]:
    """Ten crops of an encoded photo, each as large as the input of the network.

    The whole photo is resized, antialiased, so that its short side is 8/7 of a crop, or what
    ``crop_fraction`` asks for where that is more.

    Args:
        content: An encoded picture.
        preprocess: Of the bundle.

    Returns:
        Shape ``(10, image_size, image_size, 3)``.

    Raises:
        ImageError: The picture cannot be decoded.
    """
    short = max(preprocess.resize_side, round(preprocess.image_size * LARGER))
    picture = decode(content, target=short)
    scale = short / min(picture.size)
    size = (max(short, round(picture.width * scale)), max(short, round(picture.height * scale)))
    resized = picture.resize(size, RESAMPLE[preprocess.resample])
    return ten_crops(np.asarray(resized), preprocess.image_size)


def _all(record: CalibrationRecord) -> Iterator[tuple[str, float, Fusion]]:
    for k in sorted(record.asked_k):
        yield "average_k", k, "mean_score"
    for k in sorted(record.asked_k):
        if k in record.ks("top_k") and k <= LARGEST_K:
            yield "top_k", k, "mean_marginal"
            yield "top_k", k, "mean_score"


def _compared(
    rule: str, k: float, fusion: Fusion, one: Scoring, ten: Scoring, record: CalibrationRecord
) -> CropResult:
    views = [
        _View(one, record, 1, "mean_score", None),
        _View(ten, record, CROPS, fusion, int(k) if fusion == "mean_marginal" else None),
    ]
    old, new = (view.sets(rule, k) for view in views)
    return CropResult(rule=rule, k=k, fusion=fusion, comparison=compare(old, new, rule=rule))


@dataclass(frozen=True)
class _View:
    """The scores of photos seen in one or ten crops."""

    scoring: Scoring
    record: CalibrationRecord
    crops: int
    fusion: Fusion
    k: int | None

    def blocks(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
        record = self.record
        for (values,), labels in self.scoring.outputs.blocks(record.head):
            crops = record.adjusted(values.reshape(len(labels), self.crops, -1))
            yield fuse(crops, score_kind=record.score_kind, fusion=self.fusion, k=self.k), labels

    def sets(self, rule: str, k: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Whether each set holds the truth, and its size."""
        chosen = top_k_rule(int(k), 0) if rule == "top_k" else self._average_k(k)
        found = [sizes_and_hits([chosen], values, labels) for values, labels in self.blocks()]
        sizes, hits = (np.concatenate([part[index][:, 0] for part in found]) for index in (0, 1))
        return hits.astype(np.bool_), sizes.astype(np.int64)

    def _average_k(self, k: float) -> SetRule:
        evidence = Evidence(
            rows=len(self.scoring.labels),
            classes=self.record.classes,
            max_average_k=k,
            min_size=self.record.point("average_k").min_size,
        )
        for values, _ in self.blocks():
            evidence.update(values)
        return evidence.average_k(k)


def _plain(change: Change) -> dict[str, Any]:
    return {
        "one": change.old,
        "ten": change.new,
        "difference": change.difference,
        "difference_ci95": change.ci95,
    }
