"""Put photos that are copies of each other into one group, so that no split divides them."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from florilege.cores import in_order
from florilege.data.near_duplicates import (
    LEAST_AGREEMENT,
    Picture,
    agreement,
    close_pairs,
    hashes_of,
    look_at,
    visual_hash,
)
from florilege.models.images import ImageError
from florilege.progress import progress


def joined_groups(groups: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """The group of each photo, with groups joined that share a photo, in the same or other bytes.

    A joined group has the name of its first one. Photos that cannot be read join none; ``data
    check`` reports them.
    """
    first_of = {group: group for group in groups}

    def first(group: str) -> str:
        while first_of[group] != group:
            group = first_of[group]
        return group

    for row, other in _alike(paths):
        ours, theirs = first(groups[row]), first(groups[other])
        if ours != theirs and _agree(paths[row], paths[other]):
            first_of[theirs] = ours
    return [first(group) for group in groups]


def _alike(paths: Sequence[Path]) -> Iterator[tuple[int, int]]:
    """Pairs of rows, the smaller one first, whose photos may be the same."""
    hashes = list[int | None]()
    with progress(len(paths), "looking for copies") as advance:
        for visual in in_order(_hash, paths):
            hashes.append(visual)
            advance()
    rows = [row for row, visual in enumerate(hashes) if visual is not None]
    values = hashes_of([visual for visual in hashes if visual is not None])
    for one, other in close_pairs(values, values):
        if one < other:
            yield rows[one], rows[other]


def _agree(one: Path, other: Path) -> bool:
    return agreement(_picture(one), _picture(other)) >= LEAST_AGREEMENT


def _hash(path: Path) -> int | None:
    try:
        return visual_hash(look_at(path.read_bytes()))
    except (OSError, ImageError):
        return None


@lru_cache(maxsize=1000)  # 28 KB each
def _picture(path: Path) -> Picture:
    return look_at(path.read_bytes())
