"""What a calibration was measured on, and how its head was chosen."""

from dataclasses import dataclass

from florilege.models.runtime import Precision, Runtime, RuntimeName

TRAFFIC = "traffic"
"""Name of the split of a calibration from a score log."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What the record was measured on.

    Attributes:
        split: Name of the split; ``traffic`` for photos without labels from a score log.
        rows: Number of its photos.
        classes_seen: Number of classes among them; None where they are not labelled.
        data_sha256: Over the bytes and class ids of all of them, in order.
        model_sha256: Of the graph that gave the scores.
        runtime: What ran it.
        precision: What it calculated with.
        observations: Number of plants that these photos show; None where the data do not name them.
        train_photos: How many of these photos also trained the network; None where the bundle does
            not hold the hashes of its photos.
        selection_photos: How many of them also chose the checkpoint.
        chose_checkpoint: Whether some of them did either; None where that is not known.
        chose_head: Whether they also chose among heads and kinds of score.
    """

    split: str
    rows: int
    classes_seen: int | None
    data_sha256: str
    model_sha256: str
    runtime: RuntimeName = "onnxruntime"
    precision: Precision = "float32"
    observations: int | None = None
    train_photos: int | None = None
    selection_photos: int | None = None
    chose_checkpoint: bool | None
    chose_head: bool

    @property
    def served_by(self) -> Runtime:
        """What ran the network, and must run it for these thresholds to hold."""
        return Runtime(self.runtime, self.precision)

    @property
    def selection_split(self) -> bool | None:
        """Whether some of these photos also trained or chose what serves; None if not known.

        Hit rates are then too good for new photos, and no promise about these holds.
        """
        return True if self.chose_head else self.chose_checkpoint


@dataclass(frozen=True, kw_only=True)
class Selection:
    """How the head and the kind of score that serve were chosen.

    Attributes:
        k: Mean set size at which they were compared.
        candidates: How many pairs of head and kind were compared; 1 where both were given.
        hit_rate: Of the best pair on the rows that chose it.
        honest_hit_rate: Of a pair chosen in the same way, on rows that had no part in choosing it,
            see :mod:`florilege.calibration.nested_cross_validation`.
        honest_ci95: 95 % interval of the pair that serves, whichever was chosen.
    """

    k: float
    candidates: int
    hit_rate: float
    honest_hit_rate: float
    honest_ci95: tuple[float, float]
