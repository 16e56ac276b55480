"""Sampled Gaussians: closed form of one step, an accountant as oracle, mutants, what enters an account."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpalgos.accounting.composition import compose, gaussian_part, lies_above, noise_multiplier, sampled_curve
from dpalgos.accounting.costs import PlanCost, losses_under, price
from dpalgos.guarantees import (
    GaussianMu,
    Guarantee,
    Neighbours,
    NoGuarantee,
    SlackGaussian,
    loss_from_json,
    loss_to_json,
)
from dpalgos.parameters import ParameterError

EPSILON, DELTA = 1.0, 1e-5
SLACK = DELTA / 10
MU = gaussian_part(EPSILON, DELTA, SLACK)


def one_step(rate: float, multiplier: float, epsilon: float) -> float:
    """The larger hockey-stick divergence of a sampled step: both likelihood ratios are monotone in the output."""
    t, m = math.exp(epsilon), 1.0 / multiplier

    def log_ratio(x: float) -> float:
        return math.log(1.0 - rate + rate * math.exp(m * x - m * m / 2.0))

    # Where dP/dQ > t: x above a point; where dQ/dP > t: x below one, if there is one.
    edge = brentq(lambda x: log_ratio(x) - epsilon, -60.0, 200.0)
    mixed = (1.0 - rate) * norm.sf(edge) + rate * norm.sf(edge - m) - t * norm.sf(edge)
    if math.log(1.0 - rate) >= -epsilon:
        return float(mixed)
    edge = brentq(lambda x: log_ratio(x) + epsilon, -200.0, 60.0)
    return float(max(mixed, norm.cdf(edge) - t * ((1.0 - rate) * norm.cdf(edge) + rate * norm.cdf(edge - m))))


@pytest.mark.parametrize(("rate", "multiplier"), [(0.05, 0.6), (0.9, 2.0)])
def test_one_step_is_the_closed_form(rate: float, multiplier: float) -> None:
    epsilons, found = sampled_curve(rate, multiplier, 1, 4.0)
    exact = np.array([one_step(rate, multiplier, epsilon) for epsilon in epsilons])
    assert (found >= exact - 1e-15).all(), "never low"
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=2e-9)


def test_slack_and_gaussian_part_are_the_budget() -> None:
    loss = SlackGaussian(mu=MU, slack=SLACK)
    assert loss_from_json(loss_to_json(loss)) == loss
    assert compose([loss]).delta(EPSILON) == pytest.approx(DELTA, rel=1e-9)
    assert compose([loss]).delta(EPSILON) <= DELTA * (1 + 1e-9)


@pytest.mark.nightly
def test_nearly_as_little_noise_as_an_accountant_of_one_plan_asks_for() -> None:
    """dp-accounting prices the same steps, under replace-special, at no more than the budget and at hardly less."""
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.pld import PLDAccountant

    rate, steps = 0.5, 10
    multiplier = noise_multiplier(rate, steps, SLACK, MU)

    def priced(factor: float) -> float:
        step = dp_event.MixtureOfGaussiansDpEvent(multiplier * factor, [0.0, 1.0], [1.0 - rate, rate])
        accountant = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=1e-3)
        accountant.compose(dp_event.SelfComposedDpEvent(step, steps))
        return float(accountant.get_epsilon(DELTA))

    assert priced(1.0) <= EPSILON * (1 + 1e-6)
    assert priced(0.98) > EPSILON
    assert multiplier < 0.75 * math.sqrt(steps) / MU, "sampling saves noise"


@pytest.mark.nightly
def test_less_noise_is_not_proved() -> None:
    multiplier = noise_multiplier(0.1, 50, SLACK, MU)
    reach = 1.3 * MU * (MU / 2 + math.sqrt(-2 * math.log(SLACK)))
    for factor, proved in ((1.0, True), (0.97, False), (0.5, False)):
        nodes, values = sampled_curve(0.1, factor * multiplier, 50, reach)
        assert lies_above(MU, nodes, values, SLACK) is proved, factor


def test_without_slack_nothing_is_saved() -> None:
    """Why a sum of mu^2 alone sees no amplification: far out, the curve is above every Gaussian's of smaller mu."""
    far = 5.0
    unsampled = norm.sf(far - 0.5) - math.exp(far) * norm.sf(far + 0.5)
    smaller = norm.sf(far / 0.5 - 0.25) - math.exp(far) * norm.sf(far / 0.5 + 0.25)
    assert one_step(0.1, 1.0, far) > 10 * smaller
    assert one_step(0.1, 1.0, far) < unsampled


def test_all_rows_at_each_step_cost_what_they_do_without_sampling() -> None:
    assert noise_multiplier(1.0, 25, SLACK, MU) == pytest.approx(5.0 / MU)


def test_where_float64_proves_nothing_the_noise_is_that_without_sampling() -> None:
    assert noise_multiplier(0.5, 4, 1e-15, 0.1) == pytest.approx(20.0)


def test_the_slack_lies_below_delta() -> None:
    with pytest.raises(ParameterError, match=r"0.*delta.*1e-05"):
        gaussian_part(1.0, 1e-5, 1e-5)


def test_what_enters_an_account() -> None:
    loss = SlackGaussian(mu=MU, slack=SLACK)
    cost = PlanCost.of([loss], DELTA)
    assert cost.totals.slack == SLACK
    assert cost.totals.mu_squared == pytest.approx(MU**2)
    assert PlanCost.from_json(cost.to_json()) == cost
    both = PlanCost.of([loss, GaussianMu(0.5)], DELTA)
    assert both.totals.mu_squared == pytest.approx(MU**2 + 0.25)
    # What is merged for storing costs what it did before.
    again = PlanCost.of(both.losses, DELTA)
    assert again.totals.mu_squared == pytest.approx(both.totals.mu_squared)
    assert again.totals.slack == both.totals.slack


def test_groups_and_replaced_rows_are_not_covered() -> None:
    """Chaining two (s, mu) neighbours gives no (2 s, 2 mu): at the far left of the curve it is worse."""
    first, last = 1.0 - SLACK, norm.cdf(norm.ppf(1.0 - SLACK / (1 - SLACK)) - MU) * (1 - SLACK)
    assert last < 1.0 - 2 * SLACK < first, "the trade-off of a chain of two at type I error 0"
    guarantee = Guarantee(losses=(SlackGaussian(mu=MU, slack=SLACK),), neighbours=Neighbours.REPLACE_SPECIAL)
    assert losses_under(guarantee, Neighbours.REPLACE_SPECIAL) == guarantee.losses
    (found,) = losses_under(guarantee, Neighbours.REPLACE_ONE)
    assert isinstance(found, NoGuarantee)
    cost = price([(["0"], guarantee.losses)], DELTA, rows_per_person=3)["0"]
    assert math.isinf(cost.totals.mu_squared)
    assert math.isinf(cost.totals.epsilon)
