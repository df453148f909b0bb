"""What a calibration was measured on, and how its head was chosen."""

from dataclasses import dataclass

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
        chose_checkpoint: Whether the split was also used to choose the checkpoint; None where that
            was not recorded.
        chose_head: Whether it was also used to choose among heads and kinds of score.
    """

    split: str
    rows: int
    classes_seen: int | None
    data_sha256: str
    model_sha256: str
    chose_checkpoint: bool | None
    chose_head: bool


@dataclass(frozen=True, kw_only=True)
class Selection:
    """How the head and the kind of score that serve were chosen.

    Attributes:
        k: Mean set size at which they were compared.
        candidates: How many pairs of head and kind were compared; 1 where both were given.
        hit_rate: Of the best pair on the rows that chose it.
        honest_hit_rate: Of a pair chosen in the same way, on rows that had no part in choosing it,
            see :mod:`calibration.nested`.
    """

    k: float
    candidates: int
    hit_rate: float
    honest_hit_rate: float
