"""The photos that a calibration was measured on, and the choice of its head."""

from dataclasses import dataclass

from florilege.calibration.rules.label_noise import LabelNoise
from florilege.models.runtime import Precision, Runtime, RuntimeName

TRAFFIC = "traffic"  # name of the split of a calibration from a score log


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The photos and the runtime that a record was measured with.

    Attributes:
        split: Name of the split; ``traffic`` for unlabelled photos of a score log.
        rows: Number of its photos that chose the thresholds, and measure the figures.
        choosing_rows: Number of further photos that chose head, scores and temperature; 0 where the
            same photos did both.
        classes_seen: Number of classes among them; None without labels.
        data_sha256: Hash of their bytes and class ids, in order.
        model_sha256: Hash of the graph.
        runtime: The runtime of the network.
        precision: Its numeric precision.
        decoder: Version of the decoder that read the photos; 1 ignored their colour profiles.
        observations: Number of plants that these photos show; None where the data do not name them.
        train_photos: How many of these photos also trained the network; None where the bundle lacks
            the hashes of its photos.
        near_copies: How many of those are here in other bytes, resized, re-encoded or cropped; None
            where nobody compared them.
        selection_photos: How many of them also chose the checkpoint.
        chose_checkpoint: Whether any of them did either; None where unknown.
        networks: How many networks they compared, such as the epochs of a run; None where nobody
            counted.
        chose_head: Whether they also chose among heads and kinds of score.
        label_noise: The assumption about their wrong labels; None where they are taken as they are.
    """

    split: str
    rows: int
    choosing_rows: int = 0
    classes_seen: int | None
    data_sha256: str
    model_sha256: str
    runtime: RuntimeName = "onnxruntime"
    precision: Precision = "float32"
    decoder: int = 1
    observations: int | None = None
    train_photos: int | None = None
    near_copies: int | None = None
    selection_photos: int | None = None
    chose_checkpoint: bool | None
    networks: int | None = None
    chose_head: bool
    label_noise: LabelNoise | None = None

    @property
    def served_by(self) -> Runtime:
        """The runtime of the network, which these thresholds are valid for."""
        return Runtime(self.runtime, self.precision)

    @property
    def selection_split(self) -> bool | None:
        """Whether some of these photos also trained or chose the network or head; None if unknown.

        If so, hit rates are too optimistic for new photos.
        """
        return True if self.chose_head else self.chose_checkpoint


@dataclass(frozen=True, kw_only=True)
class PlacePrior:
    """How much the place of a photo counts.

    Attributes:
        strength: Factor of the logarithms that are added to the logits; 0 where they gain nothing.
        gain: Hit rate at the default K that the place gains, on photos that did not choose.
        rows: Photos with a place, and a month if enough have one.
        simulated: Whether their places were drawn from the records of their species.
        occurrences_sha256: Hash of the table of occurrences.
    """

    strength: float
    gain: float
    rows: int
    simulated: bool
    occurrences_sha256: str


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The choice of the head and the kind of score to serve.

    Attributes:
        k: Mean set size of the comparison.
        candidates: Number of compared pairs of head and kind; 1 where both were given.
        hit_rate: Hit rate of the best pair on the rows that chose it.
        honest_hit_rate: Hit rate of a pair chosen in the same way, on rows that did not choose it,
            see :mod:`florilege.calibration.nested_cross_validation`.
        honest_ci95: 95 % interval of the chosen pair, valid whichever was chosen.
    """

    k: float
    candidates: int
    hit_rate: float
    honest_hit_rate: float
    honest_ci95: tuple[float, float]
