"""Check that another runtime gives nearly the same sets for a network.

The gate of ``florilege evaluate`` checks whether a new model is worse; this one checks whether the
sets are the same, photo by photo.
"""

from typing import Final

from florilege.calibration.calibrate.gate import compare_outputs
from florilege.calibration.calibrate.photo_outputs import BundleOutputs
from florilege.calibration.calibrate.score_sources import served_scores
from florilege.calibration.comparison import Comparison

HIT_RATE_LOSS: Final = 0.002
"""Largest allowed loss, as a share of the photos; a gain of any size is allowed."""
SIZE_CHANGE: Final = 0.01
"""Largest allowed change in either direction, as a share of the original mean set size."""
LEAST_NESTED: Final = 0.99
"""Least share of the photos whose two sets are equal, or one within the other."""


def compare_runtimes(new: BundleOutputs, old: BundleOutputs) -> tuple[str, list[str]]:
    """How the sets of two runtimes compare on the same photos, in one sentence.

    With it come the differences that are too large for ``new`` to replace ``old``.
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
    """Shares of photos whose sets at the default K of ``old`` are equal; equal or nested."""
    equal = nested = 0
    ours, theirs = (each.record.point("average_k", k=old.record.default_k) for each in (new, old))
    blocks = (served_scores(each).blocks() for each in (new, old))
    for (our_scores, _), (their_scores, _) in zip(*blocks, strict=True):
        our_sets, their_sets = ours.sets(our_scores), theirs.sets(their_scores)
        added, removed = (our_sets & ~their_sets).any(axis=1), (their_sets & ~our_sets).any(axis=1)
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
