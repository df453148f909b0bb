"""The sentence that goes with a set: what was measured, and on how many photos."""

from typing import TYPE_CHECKING

from calibration.record.origin import TRAFFIC
from calibration.rules import RULES

if TYPE_CHECKING:
    from calibration.record.point import OperatingPoint


def statement(point: "OperatingPoint") -> str:
    """Say in plain words what sets of this rule hold on photos like those of the split.

    Everything in it was measured; a promise is called a guarantee only where the split was not
    used to choose the network.
    """
    row = point.row
    if point.top_k is not None:
        held = f"each set holds {row.size:.0f} {_candidates(row.size)}"
    else:
        held = (
            f"a set holds {row.size:.2f} {_candidates(row.size)} on average "
            f"({row.size_low:.2f} to {row.size_high:.2f} at 95 % confidence)"
        )
    return f"{_measured_on(point)}, {held}; {_truth(point)}.{_promise(point)}"


def _truth(point: "OperatingPoint") -> str:
    hits = point.hit_rate
    if hits is None:
        return "how many sets hold the right one is not known"
    low, high = map(_percent, hits.ci95)
    return f"{_percent(hits.value)} of the sets hold the right one ({low} to {high})"


def _measured_on(point: "OperatingPoint") -> str:
    images, split = point.table.images, point.measured.split
    if split == TRAFFIC:
        photos = "photos" if images == 1 else f"requests with {images} photos"
        return f"On {photos} like the {point.rows:,} of recent traffic"
    if images == 1:
        listed = "" if point.list_name is None else f"of classes of the list {point.list_name!r} "
        return f"On photos {listed}like the {point.rows:,} of the split {split!r}"
    groups = f"the {point.rows:,} groups of {images} photos from the split"
    if point.made_from == "observations":
        return f"On requests like {groups} {split!r}, each of one plant"
    return (
        f"On requests like {groups} {split!r}, each of one species but not of one plant "
        "(real requests may do worse)"
    )


def _promise(point: "OperatingPoint") -> str:
    if point.guarantee is None:
        return ""
    if not point.guaranteed:
        return f" This was asked for, but is no guarantee, since {_why(point)}: {_wanted(point)}."
    which = "on average over calibrations"
    if point.delta is not None:
        which = f"for all but {_percent(point.delta)} of calibrations on independent photos"
    return f" This is guaranteed on such photos, {which}: {_wanted(point)}."


def _wanted(point: "OperatingPoint") -> str:
    if point.coverage is None:
        most = f"at most {point.k:g} {_candidates(point.k or 0)} on average"
        return f"{most}, and never more than {point.max_size}"
    held = f"at least {_percent(point.coverage)} of the sets hold the right one"
    if not RULES[point.rule].by_class:
        return held
    left_out = f" but the {point.unpromised_classes:,} with too few photos"
    return f"{held}, for each class{left_out if point.unpromised_classes else ''}"


def _why(point: "OperatingPoint") -> str:
    if point.made_from == "same_class":
        return "there were no such requests to calibrate on"
    if point.measured.split == TRAFFIC:
        return "the scores were corrected for the same traffic"
    return "the split may also have been used to choose the network"


def _candidates(size: float) -> str:
    return "candidate" if size == 1 else "candidates"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
