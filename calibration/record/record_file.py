"""Read the calibration files of a bundle."""

from collections.abc import Mapping

from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.rejection.reference import Reference
from florilege.errors import BundleError
from florilege.models.bundle.bundle import (
    CALIBRATION,
    MODEL,
    OCCURRENCES,
    OPENVINO_CALIBRATION,
    OPENVINO_REFERENCE,
    REFERENCE,
    Bundle,
)
from florilege.models.occurrences import Occurrences
from florilege.models.runtime import RuntimeName

RuntimeFiles = Mapping[RuntimeName, str]
CALIBRATIONS: RuntimeFiles = {"onnxruntime": CALIBRATION, "openvino": OPENVINO_CALIBRATION}
REFERENCES: RuntimeFiles = {"onnxruntime": REFERENCE, "openvino": OPENVINO_REFERENCE}


def calibrated_runtimes(bundle: Bundle) -> list[RuntimeName]:
    """The runtimes that a bundle is calibrated for; the server uses the last one."""
    return [runtime for runtime, file in CALIBRATIONS.items() if bundle.has(file)]


def parse_record(bundle: Bundle, runtime: RuntimeName | None = None) -> CalibrationRecord:
    """Read a calibration like :func:`read_record`, without checking that it is of the network."""
    name = CALIBRATIONS[runtime or calibrated_runtimes(bundle)[-1]]
    try:
        return CalibrationRecord.from_json(bundle.read(name))
    except BundleError as error:
        raise BundleError(f"{bundle.path}: {error}") from error


def read_record(bundle: Bundle, runtime: RuntimeName | None = None) -> CalibrationRecord:
    """Read the calibration of a bundle: for a runtime, by default the one that serves.

    Raises:
        BundleError: There is none, it is damaged, or it belongs to another network.
    """
    runtimes = calibrated_runtimes(bundle)
    if not runtimes or runtime not in (None, *runtimes):
        flag, target = (f" --runtime {runtime}", f" for {runtime}") if runtime else ("", "")
        raise BundleError(
            f"{bundle.path} is not calibrated{target}: "
            f"run `florilege calibrate {bundle.path} --data DATA{flag}`"
        )
    record = parse_record(bundle, runtime)
    model = (len(bundle.classes), bundle.manifest.files[MODEL])
    if (record.classes, record.measured.model_sha256) != model or record.head not in bundle.heads:
        raise BundleError(
            f"{CALIBRATIONS[record.measured.runtime]} of {bundle.path} belongs to another network "
            f"than its {MODEL}: run `florilege calibrate {bundle.path} --data DATA`"
        )
    return record


def open_occurrences(bundle: Bundle, record: CalibrationRecord | None = None) -> Occurrences | None:
    """Read the table of occurrences of a bundle; None if it has none.

    Raises:
        BundleError: It is damaged, or not the one of the calibration ``record``.
    """
    if not bundle.has(OCCURRENCES) or (record is not None and record.place_prior is None):
        return None
    try:
        occurrences = Occurrences.of_bytes(bundle.read(OCCURRENCES))
    except ValueError as error:
        raise BundleError(
            f"{OCCURRENCES} of {bundle.path} is damaged ({error}): run `florilege calibrate "
            f"{bundle.path} --data DATA --occurrences FILE`"
        ) from error
    prior = None if record is None else record.place_prior
    if prior is not None and prior.occurrences_sha256 != bundle.manifest.files[OCCURRENCES]:
        raise BundleError(f"{bundle.path} is calibrated for another {OCCURRENCES}: calibrate again")
    return occurrences


def open_reference(
    bundle: Bundle, record: CalibrationRecord, dimensions: int | None
) -> Reference | None:
    """Read the reference that the rejection rule needs; None if it needs none.

    ``dimensions`` is the number of features that the graph outputs, None for no features.

    Raises:
        BundleError: The reference is missing or damaged, or of another calibration or graph.
    """
    if record.rejection is None or record.rejection.reference_sha256 is None:
        return None
    name = REFERENCES[record.measured.runtime]
    if bundle.manifest.files.get(name) != record.rejection.reference_sha256:
        raise BundleError(f"{bundle.path} lacks the {name} of its calibration: calibrate it again")
    try:
        reference = Reference.of_bytes(bundle.read(name))
    except ValueError as error:
        raise BundleError(
            f"{name} of {bundle.path} is damaged ({error}): calibrate the bundle again"
        ) from error
    if reference.dimensions != dimensions:
        raise BundleError(
            f"{name} of {bundle.path} holds features of {reference.dimensions} numbers, the "
            f"graph outputs {dimensions or 'none'}: calibrate the bundle again"
        )
    return reference
