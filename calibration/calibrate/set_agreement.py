"""Whether another runtime gives nearly the same sets for a network.

Unlike the gate of ``florilege evaluate``, which asks whether a new model is worse, this one asks
whether it is the same, photo by photo.
"""

from dataclasses import dataclass
from typing import Final

from florilege.calibration.calibrate.gate import compare_outputs
from florilege.calibration.calibrate.photo_outputs import BundleOutputs
from florilege.calibration.comparison import Comparison

HIT_RATE_LOSS: Final = 0.002
"""Allowed, as a share of the photos; a gain is welcome."""
SIZE_CHANGE: Final = 0.01
"""Allowed, as a share of the original's mean set size, either way."""
LEAST_NESTED: Final = 0.99
"""Share of the photos whose two sets must be equal, or one within the other."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How the sets of one runtime compare with those of another."""

    sentence: str
    reasons: tuple[str, ...]  # why they are not the same, one sentence each; empty where they are


def compare_runtimes(new: BundleOutputs, old: BundleOutputs) -> Verdict:
    """Whether the runtime of ``new`` may serve in place of that of ``old``, by its sets.

    Both have been shown the same photos.
    """
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
    equal: int  # both sets are the same
    nested: int  # one set holds the other; equal ones are counted too


def agreement(new: BundleOutputs, old: BundleOutputs) -> SetAgreement:
    """Compare the sets of ``average_k`` at the original's default K.

    Both have been shown the same photos and have the same classes.
    """
    rows = equal = nested = 0
    points = [each.record.point("average_k", k=old.record.default_k) for each in (new, old)]
    blocks = (each.outputs.blocks(each.record.head) for each in (new, old))
    for both in zip(*blocks, strict=True):
        ours, theirs = (
            point.sets(each.record.scores(logits))
            for point, each, ((logits,), _) in zip(points, (new, old), both, strict=True)
        )
        more, fewer = (ours & ~theirs).any(axis=1), (theirs & ~ours).any(axis=1)
        rows += len(ours)
        equal += int((~more & ~fewer).sum())
        nested += int((~more | ~fewer).sum())
    return SetAgreement(rows=rows, equal=equal, nested=nested)


def differences(change: Comparison, sets: SetAgreement) -> list[str]:
    """What is not the same, one sentence each; empty where one may be used for the other.

    Args:
        change: Of the new sets against the old ones.
        sets: By the same rule on the same photos.
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
