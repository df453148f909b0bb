"""Scores of the test photos of a bundle, for pictures that explain sets."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.photo_outputs import bundle_outputs
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.view import PLAIN
from florilege.data.records import Split
from florilege.data.sources import open_dataset


class ScoredPhotos(NamedTuple):
    """Test photos, what the network says of them, and what the bundle cuts."""

    split: Split
    class_ids: Sequence[str]
    labels: NDArray[np.int64]  # (photos,)
    scores: NDArray[np.float64]  # (photos, classes)
    record: CalibrationRecord

    @classmethod
    def of(cls, bundle: Path, data: Path) -> "ScoredPhotos":
        """Score the test photos, as ``evaluate`` does."""
        dataset = open_dataset(str(data), splits=["test"])
        with bundle_outputs(bundle, str(data), "test") as result:
            blocks = result.outputs.blocks(result.record.head)
            rows = [(logits, labels) for (logits,), labels in blocks]
            logits, labels = (np.concatenate(part) for part in zip(*rows, strict=True))
        scores = result.record.scores(logits)
        return cls(dataset.split("test"), dataset.classes.ids, labels, scores, result.record)

    def row(self, name: str) -> int:
        """Where the photo of this name is."""
        return list(self.split.names).index(name)

    def name(self, label: int) -> str:
        """The class as words."""
        return self.class_ids[label].replace("-", " ")

    def cut(self, k: float) -> float:
        """The threshold of sets of K on average."""
        cut = self.record.point(PLAIN, self.record.setting("average_k", k)).lambda_val
        assert cut is not None  # it is for top-k alone
        return cut

    def sets(self, k: float) -> NDArray[np.bool_]:
        """Who is in the set of each photo, ``(photos, classes)``."""
        return self.record.point(PLAIN, self.record.setting("average_k", k)).sets(self.scores)

    def hit_rate(self, k: float) -> float:
        """Share of the sets with the true class."""
        return float(self.sets(k)[np.arange(len(self.labels)), self.labels].mean())

    def clearest(self, label: int) -> bytes:
        """The photo of a class that scores best for it."""
        rows = np.flatnonzero(self.labels == label)
        return self.split.read(int(rows[self.scores[rows, label].argmax()]))
