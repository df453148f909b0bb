"""Check that another runtime gives nearly the same sets for a network.

The gate of ``florilege evaluate`` checks whether a new model is worse; this one checks whether the
sets are the same, photo by photo.
"""

from typing import Final

from florilege.calibration.calibrate.gate import compare_outputs
from florilege.calibration.calibrate.photo_outputs import BundleOutputs
from florilege.calibration.comparison import Comparison

HIT_RATE_LOSS: Final = 0.002
"""Largest allowed loss, as a share of the photos; a gain of any size is allowed."""
SIZE_CHANGE: Final = 0.01
"""Largest allowed change in either direction, as a share of the original mean set size."""
LEAST_NESTED: Final = 0.99
"""Least share of the photos whose two sets are equal, or one within the other."""


def compare_runtimes(new: BundleOutputs, old: BundleOutputs) -> tuple[str, list[str]]:
    """Whether the runtime of ``new`` may replace that of ``old``; both are of the same photos.

    Returns:
        How the sets compare, in one sentence; and the :func:`differences` that are too large.
    """
    change, (equal, nested) = compare_outputs(new, old)[0], _agreement(new, old)
    ours, theirs = new.record, old.record
    reasons = differences(change, nested)
    if reasons and (ours.head, ours.score_kind) != (theirs.head, theirs.score_kind):
        reasons.append(
            f"{ours.head} {ours.score_kind} serves in place of {theirs.head} {theirs.score_kind}"
        )
    hits, size = change.hit_rate, change.size
    sentence = (
        f"on the {change.rows:,} photos of {new.outputs.split}, {change.rule}, "
        f"{' '.join(ours.measured.served_by)} gives the sets of "
        f"{' '.join(theirs.measured.served_by)} for {100 * equal:.1f} %, "
        f"equal or one within the other for {100 * nested:.1f} %; hit rate "
        f"{hits.old:.4f} -> {hits.new:.4f}, mean size {size.old:.3f} -> {size.new:.3f}"
    )
    return sentence, reasons


def _agreement(new: BundleOutputs, old: BundleOutputs) -> tuple[float, float]:
    """Shares of photos whose sets of ``average_k`` at the default K of ``old`` are equal or nested.

    Sets are nested if one contains the other, or both are equal.
    """
    equal = nested = 0
    points = [each.record.point("average_k", k=old.record.default_k) for each in (new, old)]
    blocks = (each.outputs.blocks(each.record.head) for each in (new, old))
    for both in zip(*blocks, strict=True):
        ours, theirs = (
            point.sets(each.record.scores(logits))
            for point, each, ((logits,), _) in zip(points, (new, old), both, strict=True)
        )
        added, removed = (ours & ~theirs).any(axis=1), (theirs & ~ours).any(axis=1)
        equal += int((~added & ~removed).sum())
        nested += int((~added | ~removed).sum())
    rows = len(new.outputs.labels)
    return equal / rows, nested / rows


def differences(change: Comparison, nested: float) -> list[str]:
    """Differences that are too large, one sentence each; empty if one may replace the other.

    ``nested`` is the share of the photos whose two sets are equal, or one within the other.
    """
    hits, size, sentences = change.hit_rate, change.size, list[str]()
    if (change.lost - change.gained) / change.rows > HIT_RATE_LOSS:
        sentences.append(
            f"hit rate {hits.old:.4f} -> {hits.new:.4f}, which may lose {HIT_RATE_LOSS:g} at most"
        )
    if abs(size.difference) > SIZE_CHANGE * size.old:
        sentences.append(
            f"mean set size {size.old:.3f} -> {size.new:.3f}, which may change by "
            f"{SIZE_CHANGE * 100:g} % at most"
        )
    if nested < LEAST_NESTED:
        sentences.append(
            f"{nested * 100:.1f} % of the sets are equal or one within the other, "
            f"{LEAST_NESTED * 100:g} % must be"
        )
    return sentences
