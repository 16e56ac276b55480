"""Expected excess of sums of positive parts: closed form, direct convolution, deep tails."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dpalgos.trainers.objective_perturbation import log_expected_excess


def of_one(shift: float, level: float) -> float:
    z = level - shift
    return float(norm.pdf(z) - z * norm.sf(z))


@pytest.mark.parametrize("shift", [0.0, 0.1, 1.5])
@pytest.mark.parametrize("level", [0.3, 2.013, 4.7, 9.0])
def test_one_summand_in_closed_form(shift: float, level: float) -> None:
    z = level - shift
    # phi(z) - z Phi(-z) cancels far out; its asymptotic series does not.
    exact = of_one(shift, level) if z < 5 else norm.pdf(z) / z**2 * (1 - 3 / z**2 + 15 / z**4 - 105 / z**6 + 945 / z**8)
    found = math.exp(log_expected_excess(1, shift, level))
    assert exact * (1 - (1e-9 if z < 5 else 1e-4)) <= found <= exact * 1.002


@pytest.mark.parametrize(("shift", "level"), [(0.0, 1.0), (0.2, 3.0), (0.1, 5.0)])
def test_two_summands_by_quadrature(shift: float, level: float) -> None:
    none = norm.cdf(-shift)
    inner = quad(lambda y: of_one(shift, level - y) * norm.pdf(y - shift), 0, level, epsabs=1e-14, epsrel=1e-10)[0]
    beyond = quad(lambda y: (y - level + mean(shift)) * norm.pdf(y - shift), level, 30, epsabs=1e-14)[0]
    exact = none * of_one(shift, level) + inner + beyond
    assert exact * (1 - 1e-9) <= math.exp(log_expected_excess(2, shift, level)) <= exact * 1.002


def mean(shift: float) -> float:
    return float(shift * norm.cdf(shift) + norm.pdf(shift))


@pytest.mark.parametrize(("count", "shift", "level"), [(5, 0.1, 6.0), (10, 0.04, 10.0), (30, 0.02, 22.0)])
def test_many_summands_by_direct_convolution(count: int, shift: float, level: float) -> None:
    """Cells rounded down give less than the truth, rounded up more."""
    step = 0.01
    edges = step * np.arange(1201)
    cells = np.diff(norm.cdf(edges - shift))
    for down in (True, False):
        law = np.zeros(1201)
        law[0] = norm.cdf(-shift)
        law[0 if down else 1 : 1200 if down else 1201] += cells
        total = np.ones(1)
        for _ in range(count):
            total = np.convolve(total, law)
        excess = float(np.sum(total * np.maximum(step * np.arange(total.size) - level, 0.0)))
        found = math.exp(log_expected_excess(count, shift, level))
        assert found >= excess if down else found <= excess


def test_deep_tails_keep_their_precision() -> None:
    found = [log_expected_excess(10, 0.05, level) for level in (20.0, 40.0, 80.0)]
    # ln of the excess falls about as (level / sqrt(10))^2 / 2 does.
    for level, value in zip((20.0, 40.0, 80.0), found, strict=True):
        assert -((level - 0.5) ** 2) / 20 - 15 <= value <= -((level - 0.5) ** 2) / 20 + 3
