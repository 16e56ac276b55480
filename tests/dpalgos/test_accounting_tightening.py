"""Tightening: the dearest bill meets the target from below, whatever the stages are made of."""

from __future__ import annotations

import pytest

from dpalgos.accounting.composition import compose
from dpalgos.accounting.costs import scaled, tightened
from dpalgos.guarantees import ApproximateDP, GaussianMu, Loss, NoGuarantee, PureEpsilon

D = 1e-5
Bills = list[tuple[Loss, ...]]


def ten_classifiers(budgets: tuple[Loss, ...]) -> Bills:
    """Return what a covariance and ten classifiers cost, and the covariance alone."""
    return [(budgets[0], *[scaled(budgets[1], 0.1)] * 10), (budgets[0],)]


def with_a_graph(budgets: tuple[Loss, ...]) -> Bills:
    return [(*budgets, ApproximateDP(0.0, 5e-6))]


@pytest.mark.parametrize("budgets", [(GaussianMu(0.14), PureEpsilon(0.52)), (GaussianMu(0.5), PureEpsilon(2.0))])
@pytest.mark.parametrize("losses_of", [ten_classifiers, with_a_graph])
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_the_dearest_bill_meets_the_target_from_below(
    budgets: tuple[Loss, ...], losses_of: object, epsilon: float
) -> None:
    assert callable(losses_of)
    found = tightened(budgets, losses_of, epsilon, D)
    dearest = max(compose(losses_of_party).epsilon(D) for losses_of_party in losses_of(found))
    assert epsilon * (1 - 1e-4) <= dearest <= epsilon
    # Proportions stay.
    assert isinstance(found[0], GaussianMu)
    assert isinstance(found[1], PureEpsilon)
    assert isinstance(budgets[0], GaussianMu)
    assert isinstance(budgets[1], PureEpsilon)
    assert found[0].mu / budgets[0].mu == pytest.approx(found[1].epsilon / budgets[1].epsilon)


def test_what_meets_the_target_or_proves_nothing_stays() -> None:
    exact = (PureEpsilon(1.0),)
    assert tightened(exact, lambda budgets: [budgets], 1.0, 0.0) == exact
    assert tightened(exact, lambda budgets: [(*budgets, NoGuarantee("x"))], 1.0, D) == exact
    assert tightened(exact, lambda budgets: [(*budgets, PureEpsilon(2.0))], 1.0, D) == exact
