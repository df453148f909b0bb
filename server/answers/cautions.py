"""The warnings of an answer: what its threshold was not calibrated for."""

from florilege.calibration.record.operating_point import OperatingPoint
from florilege.server.answers.place import PlaceEffect
from florilege.server.answers.restriction import Restriction
from florilege.server.schemas import Warned


def list_warnings(restriction: Restriction | None, classes: int) -> list[Warned]:
    """Warn about a threshold that is not calibrated for the classes that were scored."""
    if restriction is None:
        return []
    detail = (
        f"the scores of the {len(restriction.infos)} requested classes are compared with the "
        f"threshold of all {classes}: the model is not calibrated for these classes with this "
        "rule, value and number of photos; expect other set sizes and hit rates"
    )
    return [Warned(code="list_not_calibrated", detail=detail)]


def fusion_warnings(point: OperatingPoint, photos: int) -> list[Warned]:
    """Warn about several photos that are not calibrated, or only on photos of one species."""
    if point.table.images != photos:
        detail = (
            f"this model is not calibrated for the averaged scores of {photos} photos: "
            "expect other set sizes and hit rates than those measured on single photos"
        )
        return [Warned(code="fusion_not_calibrated", detail=detail)]
    if point.table.made_from == "same_class":
        detail = (
            f"for {photos} photos this model is calibrated on photos of one species, not of "
            "one plant: real requests may do worse"
        )
        return [Warned(code="fusion_from_same_class", detail=detail)]
    return []


def none_warnings(requested: bool, none_of_these: bool | None) -> list[Warned]:
    """Warn that ``none=true`` has no answer."""
    if not requested or none_of_these is not None:
        return []
    detail = (
        "the model is not calibrated for `none` at this coverage: that needs features, training "
        "photos and, for a coverage of 0.9, 9 classes or more (0.95: 19)"
    )
    return [Warned(code="none_not_calibrated", detail=detail)]


def place_warnings(point: OperatingPoint, effect: PlaceEffect) -> list[Warned]:
    """Warn about a place that is not used, or that the threshold is not calibrated for."""
    if point.table.place == effect.kind:
        return list(effect.warnings)
    detail = (
        "the place changed the scores, but the model is not calibrated for this with this rule, "
        "value, number of photos and list: expect other set sizes and hit rates"
    )
    return [Warned(code="place_not_calibrated", detail=detail)]
