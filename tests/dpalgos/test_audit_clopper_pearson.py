"""Clopper-Pearson bounds and the lower bound on epsilon that rests on them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import bdtr, bdtrc

from dpalgos.audit.bounds import epsilon_lower_bound, probability_lower_bound, probability_upper_bound
from dpalgos.parameters import ParameterError


@pytest.mark.parametrize("trials", [1, 7, 1000, 200_000])
@pytest.mark.parametrize("error", [0.05, 1e-9])
def test_bounds_solve_the_binomial_equations(trials: int, error: float) -> None:
    for hits in sorted({0, 1, trials // 3, trials - 1, trials}):
        low, high = probability_lower_bound(hits, trials, error), probability_upper_bound(hits, trials, error)
        assert 0 <= low <= hits / trials <= high <= 1
        if hits:
            assert bdtrc(hits - 1, trials, low) == pytest.approx(error, rel=1e-6)
        if hits < trials:
            assert bdtr(hits, trials, high) == pytest.approx(error, rel=1e-6)
    assert probability_lower_bound(0, trials, error) == 0.0
    assert probability_upper_bound(trials, trials, error) == 1.0


@pytest.mark.parametrize("probability", [0.0, 0.003, 0.4, 1.0])
def test_coverage_by_enumeration(probability: float) -> None:
    # Exact, not simulated: sum the probabilities of all outcomes whose bound misses the truth.
    trials, error = 60, 0.01
    outcomes = np.arange(trials + 1)
    masses = np.diff(np.concatenate([[0.0], [bdtr(k, trials, probability) for k in outcomes]]))
    missed = [k for k in outcomes if probability_lower_bound(int(k), trials, error) > probability]
    assert masses[missed].sum() <= error
    missed = [k for k in outcomes if probability_upper_bound(int(k), trials, error) < probability]
    assert masses[missed].sum() <= error


def test_the_bound_is_below_the_truth_and_close_to_it() -> None:
    # Randomised response with epsilon = 1: the truth is told with probability e / (1 + e).
    n, truth = 10**7, math.e / (1 + math.e)
    bound = epsilon_lower_bound(round(n * truth), n, round(n * (1 - truth)), n, 0.0, 1 - 1e-9)
    assert 0.98 < bound < 1.0
    # A delta is paid from the event's probability.
    assert epsilon_lower_bound(1000, 1000, 0, 1000, 0.0, 0.99) > 4
    assert epsilon_lower_bound(1, 1000, 0, 1000, 0.1, 0.99) == 0.0
    # The complement counts: an event that is nearly certain on A and a little rarer on B.
    complement = epsilon_lower_bound(n, n, round(0.9 * n), n, 0.0, 1 - 1e-9)
    assert complement > 10


def test_the_error_is_shared_by_both_bounds() -> None:
    low, high = probability_lower_bound(700, 1000, 0.005), probability_upper_bound(200, 1000, 0.005)
    expected = math.log((low - 0.01) / high), math.log((1 - high - 0.01) / (1 - low))
    assert epsilon_lower_bound(700, 1000, 200, 1000, 0.01, 0.99) == pytest.approx(max(expected))
    # The mutant that spends the whole error twice claims more.
    mutant = math.log((probability_lower_bound(700, 1000, 0.01) - 0.01) / probability_upper_bound(200, 1000, 0.01))
    assert mutant > max(expected)


def test_nothing_is_proved_by_equal_counts_or_few_runs() -> None:
    assert epsilon_lower_bound(500, 1000, 500, 1000, 0.0, 0.99) == 0.0
    assert epsilon_lower_bound(1, 1, 0, 1, 0.0, 0.99) == 0.0
    assert epsilon_lower_bound(0, 1000, 1000, 1000, 0.0, 0.99) == 0.0


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(ParameterError, match="hits"):
        epsilon_lower_bound(5, 4, 0, 4, 0.0, 0.99)
    with pytest.raises(ParameterError, match="trials"):
        epsilon_lower_bound(0, 0, 0, 4, 0.0, 0.99)
    with pytest.raises(ParameterError, match="delta"):
        epsilon_lower_bound(1, 4, 0, 4, 1.0, 0.99)
    with pytest.raises(ParameterError, match="error rate"):
        epsilon_lower_bound(1, 4, 0, 4, 0.0, 1.0)
