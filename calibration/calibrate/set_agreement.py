"""Check that another runtime gives nearly the same sets for a network.

The gate of ``florilege evaluate`` checks whether a new model is worse; this one checks whether the
sets are the same, photo by photo.
"""

from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How the sets of one runtime compare with those of another."""

    sentence: str
    reasons: tuple[str, ...]  # why they differ too much, one sentence each; empty if they agree


def compare_runtimes(new: BundleOutputs, old: BundleOutputs) -> Verdict:
    """Whether the runtime of ``new`` may replace that of ``old``; both are of the same photos."""
    change, sets = compare_outputs(new, old)[0], agreement(new, old)
    ours, theirs = new.record, old.record
    reasons = differences(change, sets)
    if reasons and (ours.head, ours.score_kind) != (theirs.head, theirs.score_kind):
        reasons.append(
            f"{ours.head} {ours.score_kind} serves in place of {theirs.head} {theirs.score_kind}"
        )
    hits, size = change.hit_rate, change.size
    return Verdict(
        sentence=(
            f"on the {sets.rows:,} photos of {new.outputs.split}, {change.rule}, "
            f"{' '.join(ours.measured.served_by)} gives the sets of "
            f"{' '.join(theirs.measured.served_by)} for {100 * sets.equal / sets.rows:.1f} %, "
            f"equal or one within the other for {100 * sets.nested / sets.rows:.1f} %; hit rate "
            f"{hits.old:.4f} -> {hits.new:.4f}, mean size {size.old:.3f} -> {size.new:.3f}"
        ),
        reasons=tuple(reasons),
    )


@dataclass(frozen=True, kw_only=True)
class SetAgreement:
    """How the sets of two bundles for the same photos compare, as numbers of photos."""

    rows: int
    equal: int  # both sets are equal
    nested: int  # one set contains the other, or both are equal


def agreement(new: BundleOutputs, old: BundleOutputs) -> SetAgreement:
    """Compare the sets of ``average_k`` at the default K of ``old``, for the same photos."""
    rows = equal = nested = 0
    points = [each.record.point("average_k", k=old.record.default_k) for each in (new, old)]
    blocks = (each.outputs.blocks(each.record.head) for each in (new, old))
    for both in zip(*blocks, strict=True):
        ours, theirs = (
            point.sets(each.record.scores(logits))
            for point, each, ((logits,), _) in zip(points, (new, old), both, strict=True)
        )
        added, removed = (ours & ~theirs).any(axis=1), (theirs & ~ours).any(axis=1)
        rows += len(ours)
        equal += int((~added & ~removed).sum())
        nested += int((~added | ~removed).sum())
    return SetAgreement(rows=rows, equal=equal, nested=nested)


def differences(change: Comparison, sets: SetAgreement) -> list[str]:
    """Differences that are too large, one sentence each; empty if one may replace the other.

    Args:
        change: The comparison of the new sets with the old ones.
        sets: Their agreement, by the same rule on the same photos.
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
    if sets.nested / sets.rows < LEAST_NESTED:
        sentences.append(
            f"{sets.nested / sets.rows * 100:.1f} % of the sets are equal or one within the other, "
            f"{LEAST_NESTED * 100:g} % must be"
        )
    return sentences
