"""A calibrated bundle and its logits on a split: scored once, looked at as often as wanted."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from calibration.offline.logits import Scoring
from calibration.offline.parts import Part
from calibration.offline.scoring import score_split
from calibration.record import CalibrationRecord
from calibration.record.reading import read_record
from data.dataset import Split
from data.sources import open_dataset
from models.bundle import Bundle, open_bundle
from models.session import Session


@dataclass(frozen=True, kw_only=True)
class ScoredBundle:
    """A calibrated bundle and what its network says about some photos.

    Attributes:
        bundle: The bundle.
        record: Its calibration.
        photos: The photos; labels index the bundle's classes.
        scoring: What its network says.
    """

    bundle: Bundle
    record: CalibrationRecord
    photos: Split
    scoring: Scoring


def photos_for(bundle: Bundle, data: str, split: str) -> Split:
    """The photos of a split, with labels that index the bundle's classes.

    Raises:
        UsageError: ``split`` is no name, or no part of a split.
        DataError: The data cannot be opened, or hold a class that the bundle lacks.
    """
    part = Part.parse(split)
    dataset = open_dataset(data, splits=[part.name], classes=bundle.classes)
    return part.of(dataset.split(part.name))


@contextmanager
def scored_bundle(
    path: str | Path, data: str, split: str, *, device: str = "auto"
) -> Iterator[ScoredBundle]:
    """Score a split with a calibrated bundle; the logits are there until the block ends.

    Args:
        path: The bundle's folder.
        data: What ``--data`` takes.
        split: Name of the split, or a part of it such as ``test:0.3-1``.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        DataError: The data cannot be opened, or photos cannot be read.
        BundleError: The bundle is damaged or not calibrated.
    """
    bundle = open_bundle(path)
    record, photos = read_record(bundle), photos_for(bundle, data, split)
    scoring = score_split(Session(bundle, device=device), photos)
    with closing(scoring):
        yield ScoredBundle(bundle=bundle, record=record, photos=photos, scoring=scoring)
