"""Statistical decisions with a stated false-alarm rate, each but the chi-square test a bound at any sample size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpalgos.audit.bounds import probability_lower_bound, probability_upper_bound

ERROR = 1e-9
"""False-alarm rate of every statistical assertion in the tests."""

Samples = NDArray[np.float64] | NDArray[np.int64]


def rejects_law(samples: Samples, distribution: Callable[[Any], Any], error: float = ERROR) -> bool:
    """Whether independent samples cannot come from the law with distribution function P(X <= x).

    Dvoretzky-Kiefer-Wolfowitz with Massart's constant: sup |F_n - F| > sqrt(ln(2/error) / (2n)) has probability at
    most ``error``, for discrete laws too. Laws that are further than twice that apart are told apart as surely.
    """
    points, counts = np.unique(samples, return_counts=True)
    empirical = np.cumsum(counts) / len(samples)
    claimed = np.asarray(distribution(points))
    return bool(np.abs(empirical - claimed).max() > math.sqrt(math.log(2.0 / error) / (2.0 * len(samples))))


def differs(first: Samples, second: Samples, error: float = ERROR) -> bool:
    """Whether two independent sets of samples cannot come from one law (the same inequality for each)."""
    points = np.unique(np.concatenate([first, second]))
    gap = np.searchsorted(np.sort(first), points, side="right") / len(first)
    gap = gap - np.searchsorted(np.sort(second), points, side="right") / len(second)
    slack = sum(math.sqrt(math.log(4.0 / error) / (2.0 * len(samples))) for samples in (first, second))
    return bool(np.abs(gap).max() > slack)


def rejects_probability(hits: int, trials: int, probability: float, error: float = ERROR) -> bool:
    """Whether so many hits cannot come from that probability (Clopper-Pearson, two-sided)."""
    low = probability_lower_bound(hits, trials, error / 2.0)
    high = probability_upper_bound(hits, trials, error / 2.0)
    return not low <= probability <= high


def rejects_independence(first: Samples, second: Samples, error: float = ERROR) -> bool:
    """Whether two sequences of symmetric draws cannot be independent of each other, position by position.

    Under independence the signs of the pairs without a zero agree with probability exactly 1/2. At 200,000 pairs a
    correlation of 0.05 between Gaussians is noticed.
    """
    product = np.sign(first) * np.sign(second)
    return rejects_probability(int((product > 0).sum()), int((product != 0).sum()), 0.5, error)


def fits(draws: NDArray[np.int64], law: NDArray[np.float64], error: float = ERROR) -> bool:
    """Whether integers may come from a law on -reach … reach: chi-square, with cells below 20 joined at each end."""
    reach = len(law) // 2
    counts = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=len(law)).astype(float)
    expected = law * len(draws)
    low = int(np.searchsorted(np.cumsum(expected), 20.0))
    high = len(law) - int(np.searchsorted(np.cumsum(expected[::-1]), 20.0))
    edges = np.concatenate([[0], np.arange(low + 1, high)])
    counts, expected = np.add.reduceat(counts, edges), np.add.reduceat(expected, edges)
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return bool(statistic < stats.chi2.isf(error, len(expected) - 1))
