"""What stands out of many classes: margins hold for whatever the noise has chosen."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from dpalgos import confusions
from dpalgos.confusions import extremes, largest_confusions, recalls_at_once
from dpalgos.margins import LEVELS, Noise
from dpalgos.measured import Metrics
from dpalgos.rows import Floats

_CLASSES, _SIGMA = 12, 6.0


def gaussian(sigma: float) -> Noise:
    return lambda random, shape: random.normal(0, sigma, shape)


def exact() -> Floats:
    """Twelve classes of 60 rows: most cells without a row, a few confusions, one class that is never found."""
    counts = np.diag(np.full(_CLASSES, 60.0))
    for true, predicted, rows in ((0, 1, 30.0), (1, 0, 25.0), (2, 3, 18.0), (4, 5, 60.0)):
        counts[true, true] -= rows
        counts[true, predicted] += rows
    return counts


def least(runs: int) -> int:
    """Return in how many of so many runs what holds with 95 % holds at least: a false alarm of 1e-9."""
    return int(binom.ppf(1e-9, runs, 0.95))


def held(runs: int, reach_of: float = 1.0) -> int:
    """Return in how many runs all margins that are shown held, and no other cell had more rows than is said."""
    counts, random, right = exact(), np.random.default_rng(7), 0
    beside = ~np.eye(_CLASSES, dtype=np.bool_)
    for _ in range(runs):
        found, others = largest_confusions(counts + random.normal(0, _SIGMA, counts.shape), gaussian(reach_of * _SIGMA))
        rest = beside.copy()
        fine = len(found) <= 10
        for confusion in found:
            assert confusion.low is not None
            assert confusion.high is not None
            fine &= confusion.low <= counts[confusion.true, confusion.predicted] <= confusion.high
            rest[confusion.true, confusion.predicted] = False
        right += bool(fine and counts[rest].max() <= others)
    return right


def test_the_largest_confusions_have_margins_that_hold_though_noise_has_chosen_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """200 runs. Mutants, in 60: half the noise, and a margin for one cell by itself."""
    monkeypatch.setattr(confusions, "_NUMBERS", 100_000)
    assert held(200) >= least(200)
    assert held(60, 0.5) < least(60)
    monkeypatch.setattr(confusions, "_of_all", lambda noise, cells: 1.96 * _SIGMA)
    assert held(60) < least(60)


def test_recalls_hold_for_all_classes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 runs, rows drawn anew; of half the noise, each by itself, fewer hold."""
    monkeypatch.setattr(confusions, "_DRAWS", 1_000)
    counts = exact()
    true = np.diagonal(counts) / counts.sum(axis=1)

    def right(stated: float, level: float = 1.0) -> int:
        random, found = np.random.default_rng(9), 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(confusions, "LEVELS", tuple(level * one for one in LEVELS))
            for _ in range(60):
                drawn = np.stack([random.multinomial(int(row.sum()), row / row.sum()) for row in counts])
                noisy = drawn + random.normal(0, _SIGMA, counts.shape)
                recalls = recalls_at_once(noisy, gaussian(stated), stated)
                ends = np.array([recalls.limits(f"recall_{place}") for place in range(_CLASSES)])
                found += bool(((ends[:, 0] - 1e-9 <= true) & (true <= ends[:, 1] + 1e-9)).all())
        return found

    assert right(_SIGMA) >= least(60)
    assert right(_SIGMA / 2, _CLASSES) < least(60)


def test_exact_counts_have_no_margins() -> None:
    found, others = largest_confusions(exact(), None)
    assert [(one.true, one.predicted, one.count, one.low) for one in found] == [
        (4, 5, 60.0, None), (0, 1, 30.0, None), (1, 0, 25.0, None), (2, 3, 18.0, None)
    ]  # fmt: skip
    assert others == 0.0
    recalls = recalls_at_once(exact(), None, 0.0)
    lowest, highest = extremes(recalls)
    assert lowest == [4, 0, 1]
    assert len(highest) == 3
    assert not set(lowest) & set(highest)


def test_nothing_is_shown_of_noise_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row in no cell: at a false alarm of 2.5 % in each of 40 runs a confusion is shown in at most 9 (1e-7)."""
    monkeypatch.setattr(confusions, "_NUMBERS", 400_000)
    random = np.random.default_rng(3)
    empty = np.zeros((_CLASSES, _CLASSES))
    shown = sum(
        bool(largest_confusions(empty + random.normal(0, 5.0, empty.shape), gaussian(5.0))[0]) for _ in range(40)
    )
    assert shown <= 9


def test_no_class_is_lowest_and_highest() -> None:
    known = Metrics({f"recall_{place}": place / 10 for place in range(4)})
    known.refuse("recall_9", "why", (0.0, 1.0))
    assert extremes(known) == ([0, 1], [3, 2])
    assert extremes(Metrics()) == ([], [])
