"""The cost of deadline misses: a searched worst case stays below the bound, the probability alone would not."""

from __future__ import annotations

import math
from itertools import product

import pytest

from dpalgos.accounting.composition import compose
from dpalgos.accounting.costs import loss_of_deadline_misses
from dpalgos.guarantees import GaussianMu, NoGuarantee, PureEpsilon, SlackGaussian


def worst(epsilon: float, probability: float, t: float) -> float:
    """Return the hockey-stick divergence of randomised response where misses fall on the rare output."""
    high = math.exp(epsilon) / (1 + math.exp(epsilon))
    mine, theirs = (high, 1 - high), (1 - high - probability, high)
    # On the first data misses happen on the output that speaks for the other data, and are seen.
    first = (mine[0], mine[1] - probability, probability)
    second = (theirs[0], theirs[1], 0.0)
    return sum(max(0.0, p - t * q) for p, q in zip(first, second, strict=True))


@pytest.mark.parametrize(("epsilon", "probability"), product((0.1, 1.0, 3.0), (1e-3, 1e-6)))
def test_the_worst_misses_cost_no_more_than_is_charged(epsilon: float, probability: float) -> None:
    loss = loss_of_deadline_misses((PureEpsilon(epsilon),), probability)
    assert isinstance(loss, SlackGaussian)
    high = math.exp(epsilon) / (1 + math.exp(epsilon))
    beaten = False
    for t in [math.exp(step / 20) for step in range(-100, 161)]:
        stick = max(0.0, high - t * (1 - high)) + max(0.0, (1 - high) - t * high)
        exact = worst(epsilon, probability, t)
        assert exact <= loss.slack + (1 - loss.slack) * stick + 1e-15
        beaten |= exact > probability + (1 - probability) * stick + 1e-12
    assert beaten, "the probability alone would have covered this"


def test_the_charge_is_small_beside_usual_deltas() -> None:
    loss = loss_of_deadline_misses((GaussianMu(0.27),), 1e-9)
    assert isinstance(loss, SlackGaussian)
    assert 2e-9 < loss.slack < 2e-8
    before = compose([GaussianMu(0.27)]).epsilon(1e-5)
    assert before < compose([GaussianMu(0.27), loss]).epsilon(1e-5) < before * 1.001


def test_no_guarantee_where_the_bound_says_nothing() -> None:
    assert isinstance(loss_of_deadline_misses((PureEpsilon(60.0),), 1e-3), NoGuarantee)
    assert isinstance(loss_of_deadline_misses((GaussianMu(1.0),), 2.0), NoGuarantee)


def test_nothing_is_said_of_several_rows() -> None:
    """Two neighbours in a row may cost more than twice: the mutant that doubles the slack is refuted by a Gaussian."""
    from scipy.stats import norm

    from dpalgos.accounting.costs import group_loss

    mu, slack, missed = 3.0, 1e-3, 1e-6
    # Of the second step's slack, the first step's Gaussian makes more than slack.
    once = norm.cdf(norm.ppf(missed) + mu)
    reached = slack + (1 - slack) * norm.cdf(norm.ppf(slack + (1 - slack) * once) + mu)
    assert reached > 2 * slack + norm.cdf(norm.ppf(missed) + 2 * mu)
    assert isinstance(group_loss(loss_of_deadline_misses((GaussianMu(1.0),), 1e-9), 2), NoGuarantee)
