"""The benchmarks measure what they say: draws, groups, agreement with others, memory."""

import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.sets import fusion
from benchmarks.speed import conformal_libraries as peers
from benchmarks.strangers import shift

Labels = NDArray[np.int64]
LABELS = np.repeat(np.arange(4), 50)


def first_class_only(counts: Labels, random: np.random.Generator) -> NDArray[np.float64]:
    del random
    return np.where(np.arange(counts.size) == 0, 1.0, 1e-6)


def test_a_draw_takes_no_photo_twice_and_mixes_its_order() -> None:
    rows = shift.drawn(LABELS, first_class_only, np.random.default_rng(0))
    assert len(rows) == len(set(rows.tolist())) == 120
    labels = LABELS[rows]
    assert (labels == 0).sum() == 50  # all there are of the only class that is wanted
    assert 15 < (labels[:60] == 0).sum() < 35
    everything = shift.drawn(LABELS, None, np.random.default_rng(0))
    assert sorted(everything.tolist()) == list(range(200))


def test_strangers_take_the_place_of_later_photos_only() -> None:
    rows, labels = fusion.shown_groups(LABELS, 2, None, 0.0, seed=1)
    assert (LABELS[rows] == labels[:, np.newaxis]).all()
    rows, labels = fusion.shown_groups(LABELS, 2, None, 1.0, seed=1)
    assert (LABELS[rows[:, 0]] == labels).all()
    assert 0.1 < (LABELS[rows[:, 1]] == labels).mean() < 0.45


def test_another_library_that_keeps_one_rank_more_or_less_is_noticed() -> None:
    assert peers.disagreements(peers.ours, 40, ties=True) == (33, 0, 0, 0)

    def generous(scores: peers.Scores, labels: Labels, coverage: float) -> peers.Sets:
        lower = coverage + 1 / (len(labels) + 1)
        if lower >= 1:
            return lambda new: np.ones(new.shape, dtype=np.bool_)
        return peers.ours(scores, labels, lower)

    photos, differing, larger, smaller = peers.disagreements(generous, 40, ties=False)
    assert (photos, smaller) == (33, 0)
    assert differing == larger > 20


MEASURED = """
import numpy as np
from benchmarks.speed.calibration import Method, peak_mib
held = np.ones(1 << 22)
print(peak_mib(Method(name="64 MiB", run=lambda: np.ones(1 << 23).sum())))
print(peak_mib(Method(name="nothing", run=lambda: held.sum())))
"""


def test_memory_is_that_of_the_run_alone() -> None:
    # in a process of its own: one that has run other tests has peaks behind it
    process = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True)
    large, small = map(float, process.stdout.split())
    assert large == pytest.approx(64, abs=8)
    assert small < 8
