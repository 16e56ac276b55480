"""Filters under full adaptivity: closed forms, the division of delta, and processes that break wrong rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from dpalgos.accounting.costs import PlanCost, Totals
from dpalgos.accounting.profiles import (
    delta_of_mu,
    epsilon_of_mu,
    mu_from_epsilon_delta,
    mu_of_pure,
    rho_of_pure,
    zcdp_epsilon,
)
from dpalgos.accounting.spending import FILTERS, delta_parts, least_epsilon, within_any
from dpalgos.guarantees import ApproximateDP, GaussianMu, Loss, NoGuarantee, PureEpsilon, ZeroConcentrated

E, D = 1.0, 1e-5
Floats = NDArray[np.float64]


def cost(*losses: Loss, delta: float = 1e-7) -> PlanCost:
    return PlanCost.of(losses, delta)


# ── closed forms ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_gdp_adds_squares() -> None:
    totals = Totals.of([cost(GaussianMu(0.03)), cost(GaussianMu(0.04)), cost(PureEpsilon(0.01))])
    mu = math.sqrt(0.03**2 + 0.04**2 + mu_of_pure(0.01) ** 2)
    assert FILTERS["gdp"].epsilon(totals, D) == pytest.approx(epsilon_of_mu(mu, D), rel=1e-9)


def test_zcdp_adds_rhos() -> None:
    totals = Totals.of([cost(GaussianMu(0.1)), cost(ZeroConcentrated(0.02)), cost(PureEpsilon(0.3))])
    rho = 0.005 + 0.02 + rho_of_pure(0.3)
    assert FILTERS["zcdp"].epsilon(totals, D) == pytest.approx(zcdp_epsilon(rho, D), rel=1e-9)
    assert FILTERS["gdp"].epsilon(totals, D) == math.inf


def test_basic_adds_epsilons_and_deltas() -> None:
    plans = [cost(PureEpsilon(0.2)), cost(GaussianMu(0.1), PureEpsilon(0.1), delta=1e-6)]
    totals = Totals.of(plans)
    assert totals.delta == 1e-6
    assert FILTERS["basic"].epsilon(totals, D) == pytest.approx(0.2 + plans[1].totals.epsilon)
    assert FILTERS["basic"].epsilon(totals, 0.9e-6) == math.inf
    assert FILTERS["basic"].epsilon(Totals.of([cost(PureEpsilon(0.1))] * 3), 0.0) == pytest.approx(0.3)


def test_slack_is_paid_from_delta() -> None:
    totals = Totals.of([cost(GaussianMu(0.1)), cost(ApproximateDP(0.05, 4e-6), delta=5e-6)])
    mu = math.hypot(0.1, mu_of_pure(0.05))
    assert FILTERS["gdp"].epsilon(totals, D) == pytest.approx(epsilon_of_mu(mu, 6e-6), rel=1e-9)
    rho = 0.005 + rho_of_pure(0.05)
    assert FILTERS["zcdp"].epsilon(totals, D) == pytest.approx(zcdp_epsilon(rho, 6e-6), rel=1e-9)
    for name in ("gdp", "zcdp"):
        assert FILTERS[name].epsilon(totals, 4e-6) == math.inf
        assert not FILTERS[name].holds(totals, 100.0, 3.9e-6)


def test_what_proves_nothing_is_outside_every_filter() -> None:
    totals = Totals.of([cost(NoGuarantee("x")), cost(PureEpsilon(0.1))])
    for entry in FILTERS.values():
        assert entry.epsilon(totals, 0.5) == math.inf
        assert not entry.holds(totals, 1e6, 0.5)


plan_losses = st.lists(
    st.one_of(
        st.floats(1e-3, 1.0).map(GaussianMu),
        st.floats(1e-3, 1.0).map(PureEpsilon),
        st.floats(1e-4, 0.2).map(ZeroConcentrated),
        st.floats(1e-3, 1.0).map(lambda epsilon: ApproximateDP(epsilon, 1e-7)),
    ),
    min_size=1,
    max_size=3,
)


@given(
    plans=st.lists(plan_losses, min_size=1, max_size=4),
    extra=plan_losses,
    epsilon=st.floats(0.0, 4.0),
    delta=st.sampled_from([0.0, 1e-7, 1e-5]),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_filters_are_monotone_and_both_their_questions_agree(
    plans: list[list[Loss]], extra: list[Loss], epsilon: float, delta: float
) -> None:
    fewer = Totals.of([PlanCost.of(losses, 1e-8) for losses in plans])
    more = fewer.plus(Totals.of([PlanCost.of(extra, 1e-8)]))
    for entry in FILTERS.values():
        found = entry.epsilon(fewer, delta)
        assert entry.epsilon(more, delta) >= found
        assert not entry.holds(more, epsilon, delta) or entry.holds(fewer, epsilon, delta)
        assert entry.epsilon(fewer, delta / 2) >= found
        if math.isfinite(found):
            assert entry.holds(fewer, found * (1 + 1e-9) + 1e-12, delta)
            assert found < 1e-9 or not entry.holds(fewer, found * (1 - 1e-6), delta)
        else:
            assert not entry.holds(fewer, 50.0, delta)


# ── the division of delta ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("losses", "favourite"),
    [
        ([GaussianMu(0.1)], "gdp"),
        ([PureEpsilon(0.1)], "zcdp"),
        ([ZeroConcentrated(0.1)], "zcdp"),
        ([GaussianMu(0.1), ZeroConcentrated(0.1)], "zcdp"),
        ([GaussianMu(0.1), PureEpsilon(0.1)], "gdp"),
        ([PureEpsilon(0.01)] * 10, "gdp"),
        ([ApproximateDP(0.1, 1e-6)], "basic"),
    ],
)
def test_the_parts_of_delta_add_up_to_one_and_suit_the_first_plan(losses: list[Loss], favourite: str) -> None:
    parts = delta_parts([PlanCost.of(losses, 1e-6)], D)
    assert sum(parts.values()) == 1.0
    assert set(parts) == set(FILTERS)
    assert max(parts, key=lambda name: parts[name]) == favourite


def test_the_favourite_loses_less_than_thirds_would_cost() -> None:
    part = delta_parts([cost(GaussianMu(0.1))], D)["gdp"]
    whole = mu_from_epsilon_delta(E, D) ** 2
    assert mu_from_epsilon_delta(E, part * D) ** 2 / whole > 0.98
    assert mu_from_epsilon_delta(E, D / 3) ** 2 / whole < 0.89


def test_the_best_filter_is_taken_and_named() -> None:
    parts = delta_parts([cost(GaussianMu(0.1))], D)
    gaussians = Totals.of([cost(GaussianMu(0.02))] * 50)
    assert least_epsilon(gaussians, D, parts)[1] == "gdp"
    few_pure = Totals.of([cost(PureEpsilon(0.2))] * 3)
    epsilon, name = least_epsilon(few_pure, D, parts)
    assert epsilon == pytest.approx(0.6)
    assert name == "basic"
    many_pure = Totals.of([cost(PureEpsilon(0.01))] * 400)
    assert least_epsilon(many_pure, D, parts)[1] == "zcdp"
    assert within_any(few_pure, 0.61, D, parts)
    assert not within_any(few_pure, 0.59, 1e-30, parts)


def hockey_stick(mu: float) -> Callable[[Floats], Floats]:
    """Return the Gaussian's delta as a function of real epsilons, also negative."""
    return lambda x: ndtr(mu / 2 - x / mu) - np.exp(x) * ndtr(-mu / 2 - x / mu)


def response(epsilon: float, delta: float) -> Callable[[Floats], Floats]:
    """Return delta of the worst (epsilon, delta)-DP pair as a function of real epsilons."""
    p = float(expit(epsilon))

    def curve(x: Floats) -> Floats:
        heads, tails = np.maximum(0, -np.expm1(x - epsilon)), np.maximum(0, -np.expm1(x + epsilon))
        return np.asarray(delta + (1 - delta) * (p * heads + (1 - p) * tails))

    return curve


def opportunist(parts: Mapping[str, float], ratio: float) -> float:
    """Return delta at E of an analyst who looks at a Gaussian release and then picks the filter that serves best.

    The first plan has mu_1, and (epsilon_1, delta_1) for basic sums. For each of its outputs the analyst goes on with
    the Gaussian that exhausts the gdp filter, with the (epsilon, delta)-DP pair that exhausts the basic one, or not at
    all. All three histories are within a filter, so delta must stay below D.
    """
    mu_cap = mu_from_epsilon_delta(E, parts["gdp"] * D)
    mu_1, delta_1 = ratio * mu_cap, 0.05 * parts["basic"] * D
    epsilon_1 = epsilon_of_mu(mu_1, delta_1)
    assert epsilon_1 < E
    gaussian = hockey_stick(math.sqrt(mu_cap**2 - mu_1**2))
    basic = response(E - epsilon_1, parts["basic"] * D - delta_1)
    z = np.linspace(-9, 9, 200_001)
    left = E - (mu_1**2 / 2 + mu_1 * z)
    best = np.maximum(np.maximum(gaussian(left), basic(left)), -np.expm1(np.minimum(left, 0)))
    return float(np.sum(best * np.exp(-(z**2) / 2)) / math.sqrt(2 * math.pi) * (z[1] - z[0]))


def test_choosing_the_filter_by_outputs_stays_within_delta() -> None:
    for first in (GaussianMu(0.1), PureEpsilon(0.1), ApproximateDP(0.1, 1e-6)):
        for ratio in (0.3, 0.5, 0.7):
            assert opportunist(delta_parts([cost(first)], D), ratio) <= D


def test_without_the_division_it_would_not() -> None:
    # The mutant: every filter may use all of delta.
    assert opportunist(dict.fromkeys(FILTERS, 1.0), 0.7) > 1.8 * D


def test_gdp_holds_for_a_budget_that_depends_on_outputs() -> None:
    # After a first release the analyst spends all that is left where the loss was large, and nothing elsewhere.
    mu_cap = mu_from_epsilon_delta(E, D)
    mu_1 = 0.6 * mu_cap
    rest = hockey_stick(math.sqrt(mu_cap**2 - mu_1**2))
    z = np.linspace(-9, 9, 200_001)
    weight = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    left = E - (mu_1**2 / 2 + mu_1 * z)
    stop = -np.expm1(np.minimum(left, 0))
    for threshold in np.linspace(0.0, E, 11):
        adaptive = float(np.sum(weight * np.where(left < threshold, rest(left), stop)))
        assert adaptive <= D * (1 + 1e-6)
    assert float(np.sum(weight * rest(left))) == pytest.approx(D, rel=1e-6)


def test_stopping_where_the_tight_composition_stops_is_no_filter() -> None:
    # A mutant: compose what was chosen tightly and compare with the cap, although it was chosen in view of outputs.
    # One randomised response first; where it told much, a Gaussian follows, where it told little, a second response.
    epsilon_1 = 0.5
    p = float(expit(epsilon_1))

    def excess(epsilon_cap: float, delta_cap: float) -> float:
        curves: list[Callable[[Floats], Floats]] = []
        first = ((p, epsilon_1), (1 - p, -epsilon_1))

        def composed(curve: Callable[[Floats], Floats]) -> float:
            return sum(weight * float(curve(np.array([epsilon_cap - loss]))[0]) for weight, loss in first)

        low, high = 1e-3, 3.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if composed(hockey_stick(middle)) <= delta_cap else (low, middle)
        curves.append(hockey_stick(low))
        low_e, high_e = 0.0, 5.0
        for _ in range(80):
            middle = (low_e + high_e) / 2
            low_e, high_e = (middle, high_e) if composed(response(middle, 0.0)) <= delta_cap else (low_e, middle)
        curves.append(response(low_e, 0.0))
        assert all(composed(curve) <= delta_cap for curve in curves)
        reached = sum(
            weight * max(float(curve(np.array([epsilon_cap - loss]))[0]) for curve in curves) for weight, loss in first
        )
        return reached / delta_cap

    assert max(excess(epsilon, delta) for epsilon in (0.6, 1.0, 1.5) for delta in (0.01, 0.05, 0.1)) > 1.02


def test_the_curves_of_this_file_are_right() -> None:
    for mu, epsilon in [(0.3, 0.5), (1.0, 0.1)]:
        assert float(hockey_stick(mu)(np.array([epsilon]))[0]) == pytest.approx(delta_of_mu(mu, epsilon), rel=1e-9)
    assert float(response(1.0, 1e-5)(np.array([1.0]))[0]) == pytest.approx(1e-5)
