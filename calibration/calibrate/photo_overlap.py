"""Whether photos to be measured on have met the network before: in training, or choosing it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from florilege.calibration.record.inspection import PROVENANCE
from florilege.calibration.record.origin import Origin
from florilege.data.dataset import split_name
from florilege.data.split_parts import Part
from florilege.errors import BundleError
from florilege.models.bundle import Bundle
from florilege.models.photo_hashes import PHOTOS, PhotoHashes

CHOSEN_ON = "checkpoint_chosen_on"
"""Entry of ``provenance.json``: the split that chose the checkpoint, null where none did."""


class PhotoOverlap(NamedTuple):
    """What photos did for a network before they came to measure it."""

    train_photos: int | None = None  # how many trained it; None where the bundle has no hashes
    selection_photos: int | None = None  # how many chose its checkpoint
    chose_checkpoint: bool | None = None  # whether some did either; None where that is not known


@dataclass(frozen=True)
class NetworkPhotos:
    """What a bundle says about the photos that made its network.

    A bundle without their hashes was imported, and the import may have named the split that
    chose the checkpoint; or it was exported by an older version, which says too little.
    """

    hashes: PhotoHashes | None
    declared: bool | None  # without hashes: whether the split to be measured chose the checkpoint

    def overlap(self, photos: Iterable[bytes]) -> PhotoOverlap:
        """What photos, given by their SHA-256, have done for the network."""
        if self.hashes is None:
            return PhotoOverlap(chose_checkpoint=self.declared)
        train, selection = self.hashes.overlap(photos)
        overlaps = train > 0 or selection > 0
        return PhotoOverlap(
            train, selection, overlaps if overlaps or self.hashes.complete else None
        )


def network_photos(bundle: Bundle, split: str) -> NetworkPhotos:
    """Read what the bundle says; ``split`` or a part of it is to be measured.

    Raises:
        BundleError: A file of the bundle is damaged.
    """
    declared = _declared(bundle, split)
    if not bundle.has(PHOTOS):
        return NetworkPhotos(None, declared)
    try:
        return NetworkPhotos(PhotoHashes.from_bytes(bundle.read(PHOTOS)), None)
    except ValueError as error:
        raise BundleError(
            f"{PHOTOS} of {bundle.path} is damaged ({error}): copy or export the bundle again"
        ) from error


def _declared(bundle: Bundle, split: str) -> bool | None:
    """Whether the split chose the checkpoint, as declared when the network was imported."""
    papers = bundle.read_object(PROVENANCE)
    if CHOSEN_ON not in papers or "data" in papers:  # a run of ours, exported without hashes
        return None
    return split_name(Part.parse(split).name) in ("train", papers[CHOSEN_ON])


def overlap_warnings(overlap: PhotoOverlap | Origin, rows: int) -> list[str]:
    """What people should know before they trust figures on these photos, one sentence each."""
    train, selection = overlap.train_photos, overlap.selection_photos
    if overlap.chose_checkpoint and train is None:  # declared at the import
        selection = rows
    uses = {
        "trained the network: figures on them are too good for new photos": train,
        "chose the checkpoint: hit rates on them are a little too high for new photos": selection,
    }
    return [
        f"{photos:,} of the {rows:,} photos also {what}" for what, photos in uses.items() if photos
    ]
