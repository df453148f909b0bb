"""What a calibrated bundle holds beyond its network, read from its files."""

from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.rejection.reference import Reference
from florilege.errors import BundleError
from florilege.models.bundle.bundle import CALIBRATION, MODEL, REFERENCE, Bundle


def parse_record(bundle: Bundle) -> CalibrationRecord:
    """The calibration of a bundle that has one, whatever network it belongs to.

    Raises:
        BundleError: It is damaged, or of another schema.
    """
    try:
        return CalibrationRecord.from_json(bundle.read(CALIBRATION))
    except BundleError as error:
        raise BundleError(f"{bundle.path}: {error}") from error


def read_record(bundle: Bundle) -> CalibrationRecord:
    """The calibration of a bundle.

    Raises:
        BundleError: There is none, it is damaged, or it belongs to another network.
    """
    if not bundle.has(CALIBRATION):
        raise BundleError(
            f"{bundle.path} is not calibrated: run `florilege calibrate {bundle.path} --data DATA`"
        )
    record = parse_record(bundle)
    ours = (len(bundle.classes), bundle.manifest.files[MODEL])
    if (record.classes, record.measured.model_sha256) != ours or record.head not in bundle.heads:
        raise BundleError(
            f"{CALIBRATION} of {bundle.path} belongs to another network and not to its {MODEL}: "
            f"run `florilege calibrate {bundle.path} --data DATA`"
        )
    return record


def open_reference(bundle: Bundle, sha256: str | None, dimensions: int | None) -> Reference | None:
    """The training photos that new ones are compared with; None where the rejection needs none.

    ``sha256`` is the one that the rejection names. ``dimensions`` is the number of features that
    the graph gives for a photo, None where it gives none.

    Raises:
        BundleError: It is missing or damaged, or belongs to another calibration or graph.
    """
    if sha256 is None:
        return None
    if bundle.manifest.files.get(REFERENCE) != sha256:
        raise BundleError(
            f"{bundle.path} lacks the {REFERENCE} of its calibration: calibrate it again"
        )
    try:
        reference = Reference.of_bytes(bundle.read(REFERENCE))
    except ValueError as error:
        raise BundleError(
            f"{REFERENCE} of {bundle.path} is damaged ({error}): calibrate the bundle again"
        ) from error
    if reference.dimensions != dimensions:
        raise BundleError(
            f"{REFERENCE} of {bundle.path} holds features of {reference.dimensions} numbers, the "
            f"graph gives {dimensions or 'none'}: calibrate the bundle again"
        )
    return reference
