"""The sentence that goes with a set: what was measured, and on how many photos."""

from typing import Protocol

from calibration.record.origin import TRAFFIC


class Figures(Protocol):
    """What the sentence is built from; an operating point of a calibration record has it."""

    @property
    def rule(self) -> str: ...

    @property
    def k(self) -> float | None: ...

    @property
    def coverage(self) -> float | None: ...

    @property
    def split(self) -> str: ...

    @property
    def rows(self) -> int: ...

    @property
    def images(self) -> int: ...

    @property
    def made_from(self) -> str | None: ...

    @property
    def guarantee(self) -> str | None: ...

    @property
    def delta(self) -> float | None: ...

    @property
    def guaranteed(self) -> bool: ...

    @property
    def max_size(self) -> int | None: ...

    @property
    def unpromised_classes(self) -> int: ...

    @property
    def size_and_interval(self) -> tuple[float, float, float]: ...

    @property
    def hits_and_interval(self) -> tuple[float, float, float] | None: ...


def statement(figures: Figures) -> str:
    """Say in plain words what sets of this rule hold on photos like those of the split.

    Everything in it was measured; what was promised is called a guarantee only where the split did
    not choose the network.
    """
    size, size_low, size_high = figures.size_and_interval
    if figures.rule == "top_k":
        held = f"each set holds {size:.0f} {_candidates(size)}"
    else:
        held = (
            f"a set holds {size:.2f} {_candidates(size)} on average "
            f"({size_low:.2f} to {size_high:.2f} at 95 % confidence)"
        )
    return f"{_measured_on(figures)}, {held}; {_truth(figures)}.{_promise(figures)}"


def _truth(figures: Figures) -> str:
    if figures.hits_and_interval is None:
        return "how many sets hold the right one is not known"
    hits, low, high = figures.hits_and_interval
    return f"{_percent(hits)} of the sets hold the right one ({_percent(low)} to {_percent(high)})"


def _measured_on(figures: Figures) -> str:
    if figures.split == TRAFFIC:
        photos = "photos" if figures.images == 1 else f"requests with {figures.images} photos"
        return f"On {photos} like the {figures.rows:,} of recent traffic"
    if figures.images == 1:
        return f"On photos like the {figures.rows:,} of the split {figures.split!r}"
    groups = f"the {figures.rows:,} groups of {figures.images} photos from the split"
    if figures.made_from == "observations":
        return f"On requests like {groups} {figures.split!r}, each of one plant"
    return (
        f"On requests like {groups} {figures.split!r}, each of one species but not of one plant "
        "(real requests may do worse)"
    )


def _promise(figures: Figures) -> str:
    if figures.guarantee is None:
        return ""
    if not figures.guaranteed:
        return (
            f" This was asked for, but is no guarantee, since {_why(figures)}: {_wanted(figures)}."
        )
    which = "on average over calibrations"
    if figures.delta is not None:
        which = f"for all but {_percent(figures.delta)} of calibrations on independent photos"
    return f" This is guaranteed on such photos, {which}: {_wanted(figures)}."


def _wanted(figures: Figures) -> str:
    if figures.coverage is None:
        most = f"at most {figures.k:g} {_candidates(figures.k or 0)} on average"
        return f"{most}, and never more than {figures.max_size}"
    held = f"at least {_percent(figures.coverage)} of the sets hold the right one"
    if figures.rule != "class_coverage":
        return held
    left_out = f" but the {figures.unpromised_classes:,} with too few photos"
    return f"{held}, for each class{left_out if figures.unpromised_classes else ''}"


def _why(figures: Figures) -> str:
    if figures.made_from == "same_class":
        return "requests like these were not there to calibrate on"
    if figures.split == TRAFFIC:
        return "the same traffic corrected the scores"
    return "the split may have chosen the network too"


def _candidates(size: float) -> str:
    return "candidate" if size == 1 else "candidates"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
