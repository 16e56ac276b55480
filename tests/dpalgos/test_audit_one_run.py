"""Audits from one run: right where the truth is known; what is broken is seen, and what is sound is not refuted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from dpalgos.accounting.profiles import epsilon_of_mu
from dpalgos.audit.bounds import (
    curve_of,
    epsilon_lower_bound_of_guesses,
    gaussian_curve,
    guess,
    mu_lower_bound_of_guesses,
    tail_under_approximate_dp,
    tail_under_curve,
)
from dpalgos.guarantees import GaussianMu, NoGuarantee, PureEpsilon, ZeroConcentrated
from dpalgos.parameters import ParameterError


def right_guesses(mu: float, canaries: int, guesses: int, random: np.random.Generator) -> int:
    """Return how many coins are guessed right from sums of one coin each with noise: mu-Gaussian DP in each coin."""
    coins = random.choice([-1, 1], canaries)
    made = guess(coins + random.standard_normal(canaries) * 2 / mu, guesses)
    return int((made == coins).sum())


def test_guesses_are_as_many_as_asked_half_of_either_kind() -> None:
    assert guess(np.array([0.3, -2.0, 5.0, 0.1, -0.2]), 4).tolist() == [1, -1, 1, 0, -1]
    assert guess(np.array([1.0, 1.0, 1.0]), 3).tolist() == [1, 1, -1]
    for guesses in (0, 4):
        with pytest.raises(ParameterError, match="3 coins"):
            guess(np.zeros(3), guesses)


def test_randomised_response_has_the_tail_that_is_bounded() -> None:
    """Under pure epsilon the bound is the law of the worst mechanism, so nothing is given away."""
    share = math.e / (1 + math.e)
    assert tail_under_approximate_dp(80, 100, 100, 1.0, 0.0) == pytest.approx(binom.sf(79, 100, share))
    # delta may be spent on every coin, and cannot lower the bound.
    assert tail_under_approximate_dp(95, 100, 100, 1.0, 1e-6) > tail_under_approximate_dp(95, 100, 100, 1.0, 0.0)
    assert tail_under_approximate_dp(0, 100, 100, 1.0, 1e-6) == 1.0


def test_a_curve_bounds_every_law_of_right_guesses() -> None:
    """Exact laws: independent coins, each seen through mu-Gaussian noise, all guessed; and all right or all wrong."""
    from scipy.special import ndtr

    for mu in (0.5, 1.0, 3.0):
        for right in (50, 60, 80, 99):
            exact = float(binom.sf(right - 1, 100, ndtr(mu / 2)))
            assert exact <= tail_under_curve(right, 100, 100, gaussian_curve(mu)) * (1 + 1e-9) + 1e-25
    # One common coin flip on everything: with probability delta all is shown, else nothing.
    delta = 0.01
    losses = [PureEpsilon(1e-9)]
    assert tail_under_curve(100, 100, 100, lambda y: max(0.0, y - delta)) >= delta
    assert tail_under_curve(60, 100, 100, curve_of(losses)) >= float(binom.sf(59, 100, 0.5))


def test_without_privacy_or_with_all_of_it() -> None:
    assert tail_under_curve(100, 100, 100, lambda power: 0.0) == 1.0
    assert mu_lower_bound_of_guesses(50, 100, 100, confidence=0.99) == 0.0
    assert epsilon_lower_bound_of_guesses(50, 100, 100, delta=0.0, confidence=0.99) == 0.0


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_bounds_lie_below_the_truth(mu: float, random: np.random.Generator) -> None:
    """At 1 − 10⁻⁹, never by chance; at 99 % of one run of 1,000 canaries, a fifth of mu is seen at the least."""
    right = right_guesses(mu, 1000, 200, random)
    certain = {"confidence": 1 - 1e-9}
    assert mu_lower_bound_of_guesses(right, 200, 1000, **certain) <= mu
    assert epsilon_lower_bound_of_guesses(right, 200, 1000, delta=1e-5, **certain) <= epsilon_of_mu(mu, 1e-5)
    assert mu_lower_bound_of_guesses(right, 200, 1000, confidence=0.99) > 0.2 * mu
    for curve in (gaussian_curve(mu), curve_of([GaussianMu(mu)]), curve_of([ZeroConcentrated(mu**2 / 2)])):
        assert tail_under_curve(right, 200, 1000, curve) > 1e-9


def test_alarms_are_not_more_frequent_than_the_confidence_says(random: np.random.Generator) -> None:
    """At 80 %, 200 runs: at most 40 expected, and 5 standard errors."""
    alarms = sum(
        tail_under_curve(right_guesses(1.0, 60, 30, random), 30, 60, gaussian_curve(1.0)) <= 0.2 for _ in range(200)
    )
    assert alarms <= 40 + 5 * math.sqrt(200 * 0.2 * 0.8)


@pytest.mark.parametrize("stated", [[GaussianMu(0.5)], [PureEpsilon(1.0)], [ZeroConcentrated(0.1)]])
def test_a_tenth_of_the_noise_is_caught(stated: list[GaussianMu], random: np.random.Generator) -> None:
    """Coins seen through the noise of mu = 5 refute what is stated, at 1 − 10⁻⁹."""
    right = right_guesses(5.0, 400, 200, random)
    assert tail_under_curve(right, 200, 400, curve_of(stated)) < 1e-9


def test_what_is_not_proved_has_no_curve() -> None:
    with pytest.raises(ParameterError, match="curve"):
        curve_of([NoGuarantee("made up")])
    with pytest.raises(ParameterError, match=r"5.*4.*10 canaries"):
        tail_under_curve(5, 4, 10, gaussian_curve(1.0))
    with pytest.raises(ParameterError, match="confidence"):
        mu_lower_bound_of_guesses(5, 10, 10, confidence=1.0)
