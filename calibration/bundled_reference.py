"""The training photos that a bundle compares with, read from its file."""

from calibration.reference import Reference
from models.bundle import REFERENCE, Bundle
from models.errors import BundleError


def open_reference(bundle: Bundle, sha256: str | None, dimensions: int | None) -> Reference | None:
    """The reference of a calibrated bundle, None where its rejection needs none.

    Args:
        bundle: An opened bundle.
        sha256: What the rejection names.
        dimensions: Length of a row of features of its graph, None where that gives none.

    Raises:
        BundleError: It is missing, damaged, or does not belong to calibration or graph.
    """
    if sha256 is None:
        return None
    if bundle.manifest.files.get(REFERENCE) != sha256:
        raise BundleError(
            f"{bundle.path} lacks the {REFERENCE} of its calibration: calibrate it again"
        )
    try:
        found = Reference.of_bytes(bundle.read(REFERENCE))
    except ValueError as error:
        raise BundleError(
            f"{REFERENCE} of {bundle.path} is damaged ({error}): calibrate the bundle again"
        ) from error
    if found.mean.size != dimensions:
        raise BundleError(
            f"{REFERENCE} of {bundle.path} holds features of {found.mean.size} numbers, the graph "
            f"gives {dimensions}: calibrate the bundle again"
        )
    return found
