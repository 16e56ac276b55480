"""Plans under one Gaussian curve: the whole curve in both orders, the least mu, an analyst who adapts, a mutant."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, ndtr
from scipy.stats import binom

from dpalgos.accounting import costs
from dpalgos.accounting.composition import compose, least_mu
from dpalgos.accounting.costs import PlanCost, Totals, allocate, scaled
from dpalgos.accounting.profiles import mu_from_epsilon_delta, mu_of_pure, rho_of_pure
from dpalgos.accounting.spending import spent
from dpalgos.guarantees import ApproximateDP, GaussianMu, Loss, PureEpsilon, ZeroConcentrated

Floats = NDArray[np.float64]
D = 1e-5
TAIL = D * 2**-20
# (pure epsilons and how often, mu of the Gaussian beside them)
MIXTURES: list[tuple[dict[float, int], float]] = [
    ({0.52: 1}, 0.14),
    ({0.067: 10}, 0.18),
    ({0.1: 10}, 0.0),
    ({0.05: 4, 0.5: 1}, 0.0),
    ({2.0: 1}, 1.0),
    ({0.01: 1}, 3.0),
    ({0.001: 3}, 0.001),
]


def pair(pure: dict[float, int], mu: float) -> tuple[Floats, Floats]:
    """Return the probabilities of fine cells of outcomes under either neighbour, from the mechanisms themselves."""
    p, q = np.ones(1), np.ones(1)
    for epsilon, count in pure.items():
        likely, heads = float(expit(epsilon)), np.arange(count + 1)
        p = np.multiply.outer(p, binom.pmf(heads, count, likely)).ravel()
        q = np.multiply.outer(q, binom.pmf(heads, count, 1 - likely)).ravel()
    if mu > 0:
        edges = np.linspace(-9.0, 9.0 + mu, 5_001)
        p = np.multiply.outer(p, np.diff(ndtr(edges - mu))).ravel()
        q = np.multiply.outer(q, np.diff(ndtr(edges))).ravel()
    return p, q


def hockey_stick(p: Floats, q: Floats, t: float) -> float:
    return float(np.maximum(p - t * q, 0.0).sum())


def gaussian(mu: float, t: float) -> float:
    x = math.log(t)
    return float(ndtr(mu / 2 - x / mu) - t * ndtr(-mu / 2 - x / mu))


def least(pure: dict[float, int], mu: float) -> tuple[float, float]:
    slack = TAIL if mu > 0 else 0.0
    return least_mu(pure, mu, slack), slack


@pytest.mark.parametrize(("pure", "mu"), MIXTURES)
def test_the_whole_curve_lies_below_in_both_orders_and_no_lower_one_does(pure: dict[float, int], mu: float) -> None:
    found, slack = least(pure, mu)
    p, q = pair(pure, mu)
    reach = min(sum(epsilon * count for epsilon, count in pure.items()) + mu * (mu / 2 + 5), 7.0)
    tight = False
    for x in np.linspace(-reach, reach, 101):
        t = math.exp(x)
        for value in (hockey_stick(p, q, t), hockey_stick(q, p, t)):
            assert value <= slack + (1 - slack) * gaussian(found, t) + 1e-9, (x, value)
            tight = tight or value > slack + (1 - slack) * gaussian(found * 0.995, t) + 1e-12
    assert tight


def test_closed_forms() -> None:
    assert least_mu({0.7: 1}, 0.0, 0.0) == pytest.approx(mu_of_pure(0.7), rel=1e-12)
    assert least_mu({}, 0.3, 0.0) == pytest.approx(0.3, rel=1e-12)
    assert least_mu({}, 0.0, 0.0) == 0.0
    # Without a slack the tail of a mixture lies above every Gaussian that is nearly as narrow: the sum of squares.
    assert least_mu({0.5: 1}, 0.2, 0.0) == pytest.approx(math.hypot(0.2, mu_of_pure(0.5)), rel=1e-12)


@pytest.mark.parametrize("count", [3, 10, 100])
def test_many_small_pure_epsilons_come_near_their_central_limit(count: int) -> None:
    """By sums of squares of mu_of_pure each, half of mu^2 would be lost: pi/2 for small epsilons."""
    epsilon = 1.0 / count
    limit = math.sqrt(2 * count * rho_of_pure(epsilon))
    assert 1.0 <= least_mu({epsilon: count}, 0.0, 0.0) / limit <= 1.0 + 0.3 / count**0.5
    assert mu_of_pure(epsilon) * math.sqrt(count) / limit > 1.25


def test_the_rho_of_a_plan_is_the_least() -> None:
    """D_alpha / alpha of the pair tends to the sum of the rhos as alpha falls to 1, and never exceeds it."""
    pure, mu = {0.3: 2}, 0.4
    p, q = pair(pure, mu)
    p, q = p[(p > 0) & (q > 0)], q[(p > 0) & (q > 0)]
    rho = PlanCost.of([GaussianMu(mu), PureEpsilon(0.3), PureEpsilon(0.3)], D).totals.rho

    def per_alpha(alpha: float) -> float:
        return math.log(float(np.sum(p**alpha * q ** (1 - alpha)))) / (alpha - 1) / alpha

    assert all(per_alpha(alpha) <= rho * (1 + 1e-6) for alpha in (1.001, 1.5, 2.0, 4.0, 8.0))
    assert per_alpha(1.001) == pytest.approx(rho, rel=2e-3)


def test_a_price_uses_the_joint_curve() -> None:
    losses: list[Loss] = [GaussianMu(0.18), *[PureEpsilon(0.067)] * 10, ApproximateDP(0.1, 1e-7)]
    cost = PlanCost.of(losses, D)
    assert cost.totals.mu_squared == pytest.approx(least_mu({0.067: 10, 0.1: 1}, 0.18, TAIL) ** 2, rel=1e-12)
    assert cost.totals.slack == pytest.approx(1e-7 + TAIL)
    assert PlanCost.of([*losses, ZeroConcentrated(0.01)], D).totals.mu_squared == math.inf


# ── what the filter then promises ────────────────────────────────────────────────────────────────────────────────────

PURE, MU = {1.0099: 1}, 0.2707
FIRST: list[Loss] = [GaussianMu(MU), PureEpsilon(1.0099)]
E = 6.0


def one_point(pure: dict[float, int], mu: float, slack: float) -> float:
    """Return the mutant's mu: that of the Gaussian with the plan's tight epsilon at its delta, at that one point."""
    losses: list[Loss] = [GaussianMu(mu), *(PureEpsilon(epsilon) for epsilon in Counter(pure).elements())]
    return mu_from_epsilon_delta(compose(losses).epsilon(D), D)


def exhausted(mu: float) -> float:
    """Return the worst delta at E of a first plan that entered with mu, and of what the analyst does then.

    The analyst looks at the first plan's outputs; where its loss was above a threshold a Gaussian follows that spends
    what the gdp filter leaves, elsewhere nothing.
    """
    p, q = pair(PURE, MU)
    rest = math.sqrt(mu_from_epsilon_delta(E, D) ** 2 - mu**2)
    p, q = p[(p > 0) & (q > 0)], q[(p > 0) & (q > 0)]
    left = E - np.log(p / q)
    go_on = ndtr(rest / 2 - left / rest) - np.exp(left) * ndtr(-rest / 2 - left / rest)
    stop = np.maximum(-np.expm1(left), 0.0)
    return max(float(np.sum(p * np.where(left < bound, go_on, stop))) for bound in (5.0, 5.5, 6.0, 6.5, 20.0))


def test_an_analyst_who_adapts_after_a_mixture_stays_within_delta_and_the_mutant_does_not() -> None:
    assert exhausted(least_mu(PURE, MU, TAIL)) <= D
    assert exhausted(one_point(PURE, MU, TAIL)) > 2 * D


@pytest.mark.parametrize("repeats", [2, 3, 10])
def test_no_account_of_mixtures_books_less_than_they_cost(repeats: int) -> None:
    plan = PlanCost.of(FIRST, D)
    booked = spent([("p", {"0": plan})] * repeats, D).epsilon
    assert booked >= compose(FIRST * repeats).epsilon(D)


def test_a_plan_that_enters_by_one_point_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "least_mu", one_point)
    booked = spent([("p", {"0": PlanCost.of(FIRST, D)})] * 2, D).epsilon
    assert booked < 0.9 * compose(FIRST * 2).epsilon(D)


def tightened(losses: list[Loss], epsilon: float) -> list[Loss]:
    low, high = 0.5, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        fits = compose([scaled(loss, middle) for loss in losses]).epsilon(D) <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return [scaled(loss, low) for loss in losses]


# What the account holds after 1, 3, 10 and 30 plans of epsilon 1. Nothing can go below the tight composition of plans
# that nobody chose in view of outputs.
TEN_CLASSES = {1: 1.0, 3: 1.9333, 10: 3.8133, 30: 7.2521}


def test_an_account_after_one_three_ten_and_thirty_mixtures() -> None:
    gaussian_part, pure_part = allocate([GaussianMu, PureEpsilon], [0.5, 0.5], 1.0, D).losses
    plan = tightened([gaussian_part, *[scaled(pure_part, 0.1)] * 10], 1.0)
    cost = PlanCost.of(plan, D)
    for count, held in TEN_CLASSES.items():
        booked = spent([("p", {"0": cost})] * count, D).epsilon
        assert booked == pytest.approx(held, rel=1e-3)
        if count <= 10:
            assert booked >= compose(plan * count).epsilon(D) * (1 - 1e-9)


def test_sums_of_equal_plans_are_what_repeating_costs() -> None:
    cost = PlanCost.of(FIRST, D)
    assert Totals.of([cost] * 3).mu_squared == pytest.approx(3 * cost.totals.mu_squared)
