"""The warnings of an answer: what its threshold was not calibrated for."""

from florilege.calibration.record.operating_point import OperatingPoint
from florilege.server.answers.place import PlaceEffect
from florilege.server.answers.query import LocalizedQuery
from florilege.server.answers.restriction import Restriction
from florilege.server.schemas import Warned


def warnings_about(
    point: OperatingPoint,
    query: LocalizedQuery,
    effect: PlaceEffect,
    *,
    restriction: Restriction | None,
    photos: int,
    classes: int,
    none_of_these: bool | None,
) -> list[Warned]:
    """The warnings; ``restriction`` is one that the threshold is not calibrated for."""
    details = dict[str, str]()
    if point.table.images != photos:
        details["fusion_not_calibrated"] = (
            f"this model is not calibrated for the averaged scores of {photos} photos: "
            "expect other set sizes and hit rates than those measured on single photos"
        )
    elif point.table.made_from == "same_class":
        details["fusion_from_same_class"] = (
            f"for {photos} photos this model is calibrated on photos of one species, not of "
            "one plant: real requests may do worse"
        )
    if restriction is not None:
        details["list_not_calibrated"] = (
            f"the scores of the {len(restriction.infos)} requested classes are compared with the "
            f"threshold of all {classes}: the model is not calibrated for these classes with this "
            "rule, value and number of photos; expect other set sizes and hit rates"
        )
    if effect.why_unused is not None:
        details["place_not_used"] = f"the place of the photo was not used: {effect.why_unused}"
    if point.table.place != effect.kind:
        details["place_not_calibrated"] = (
            "the place changed the scores, but the model is not calibrated for this with this "
            "rule, value, number of photos and list: expect other set sizes and hit rates"
        )
    if query.none and none_of_these is None:
        details["none_not_calibrated"] = (
            "the model is not calibrated for `none` at this coverage: that needs features, "
            "training photos and, for a coverage of 0.9, 9 classes or more (0.95: 19)"
        )
    return [Warned(code=code, detail=detail) for code, detail in details.items()]
