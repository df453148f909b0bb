"""Whether photos for measuring a network also trained it or chose its checkpoint."""

from collections.abc import Iterable
from typing import NamedTuple

from florilege.calibration.record.inspection import PROVENANCE
from florilege.calibration.record.origin import Origin
from florilege.data.dataset import split_name
from florilege.data.split_parts import Part
from florilege.errors import BundleError
from florilege.models.bundle import Bundle
from florilege.models.photo_hashes import PHOTOS, PhotoHashes

CHOSEN_ON = "checkpoint_chosen_on"  # in ``provenance.json``: that split, null if none did


class PhotoOverlap(NamedTuple):
    """How many photos for measuring a network also trained it or chose its checkpoint."""

    train_photos: int | None = None  # how many trained it; None where the bundle has no hashes
    selection_photos: int | None = None  # how many chose its checkpoint
    chose_checkpoint: bool | None = None  # whether any did either; None where unknown

    @classmethod
    def of(cls, bundle: Bundle, split: str, photos: Iterable[bytes]) -> "PhotoOverlap":
        """How many photos of a split or a part of it, given by their SHA-256, the network has met.

        A bundle without hashes was imported, possibly with the name of the split that chose the
        checkpoint, or exported by an older version. BundleError if a file is damaged.
        """
        if not bundle.has(PHOTOS):
            provenance, chose = bundle.read_object(PROVENANCE), None
            if CHOSEN_ON in provenance and "data" not in provenance:  # else a run without hashes
                chose = split_name(Part.parse(split).name) in ("train", provenance[CHOSEN_ON])
            return cls(chose_checkpoint=chose)
        try:
            hashes = PhotoHashes.from_bytes(bundle.read(PHOTOS))
        except ValueError as error:
            raise BundleError(
                f"{PHOTOS} of {bundle.path} is damaged ({error}): copy or export the bundle again"
            ) from error
        train, selection = hashes.overlap(photos)
        overlaps = train > 0 or selection > 0
        return cls(train, selection, overlaps if overlaps or hashes.complete else None)


def overlap_warnings(overlap: PhotoOverlap | Origin, rows: int) -> list[str]:
    """Warnings about figures on these photos, one sentence each."""
    train, selection = overlap.train_photos, overlap.selection_photos
    if overlap.chose_checkpoint and train is None:  # declared at the import
        selection = rows
    uses = {
        "trained the network: figures on them are too optimistic": train,
        "chose the checkpoint: hit rates on them are a little too optimistic": selection,
    }
    return [
        f"{photos:,} of the {rows:,} photos also {what}" for what, photos in uses.items() if photos
    ]
