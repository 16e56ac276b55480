"""Raised caps: the series of deltas, which filter is in force, the worst pairs of every filter, readings."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import expit

from dpalgos.accounting.costs import PlanCost
from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.accounting.spending import (
    GAUSSIAN_PART,
    RESERVED,
    FilterCap,
    SummedHistory,
    apply_filter,
    filter_in_force,
    status,
)
from dpalgos.guarantees import GaussianMu, PureEpsilon
from dpalgos.parameters import ParameterError

D = 1e-5


def worst(raises: int, deltas: list[float]) -> float:
    """Return ∫ max(0, dP − e^E dQ) of filters that are each as bad as their (1, delta_j) allows, E their sum."""
    likely = float(expit(1.0))
    total = 0.0
    for heads in itertools.product((0, 1, None), repeat=raises + 1):
        p = math.prod(
            delta if side is None else (1 - delta) * (likely if side else 1 - likely)
            for side, delta in zip(heads, deltas, strict=True)
        )
        q = math.prod(
            0.0 if side is None else (1 - delta) * (1 - likely if side else likely)
            for side, delta in zip(heads, deltas, strict=True)
        )
        total += max(0.0, p - math.exp(raises + 1) * q)
    return total


@pytest.mark.parametrize("raises", [0, 1, 3])
def test_the_worst_filters_together_keep_to_delta_and_whole_deltas_each_would_not(raises: int) -> None:
    found = filter_in_force([float(cap) for cap in range(1, raises + 2)], 0.1)
    own = [*(closed.delta for closed in found.earlier), found.delta * (1 - found.reserved)]
    assert worst(raises, own) <= 0.1
    assert worst(raises, own) > 0.08
    if raises:
        assert worst(raises, [0.1] * (raises + 1)) > 0.15


def test_the_series_adds_up_whatever_the_number_of_raises() -> None:
    for raises in (1, 5, 40):
        found = filter_in_force([float(cap) for cap in range(1, raises + 2)], D)
        deltas = [closed.delta for closed in found.earlier] + [found.delta]
        assert deltas[0] == D * (1 - RESERVED)
        assert math.fsum(deltas) <= D
        assert found.promised == raises + 1
        assert found.earlier_epsilon == raises
        assert math.fsum(closed.epsilon for closed in found.earlier) <= raises


def test_lowered_caps_open_no_filter() -> None:
    lowered = filter_in_force([3.0, 2.0, 2.5, 3.0], D)
    assert (lowered.promised, lowered.earlier, lowered.changes) == (3.0, (), 0)
    raised = filter_in_force([3.0, 2.0, 4.0, 3.5], D)
    assert (raised.promised, raised.earlier_epsilon, raised.changes) == (4.0, 3.0, 2)
    assert raised.earlier[0].epsilon == 3.0
    assert raised.delta == D / 32
    with pytest.raises(ParameterError, match="without a cap"):
        filter_in_force([], D)


def plan(mu: float) -> tuple[str, dict[str, PlanCost]]:
    return "p", {"0": PlanCost.of([GaussianMu(mu)], D)}


def test_only_a_single_plan_may_use_the_reserved_delta() -> None:
    cap = FilterCap(1.0, D, reserved=RESERVED)
    whole = plan(mu_from_epsilon_delta(1.0, D))
    assert apply_filter([], whole, cap).admitted
    assert not status([whole], FilterCap(1.0, D * (1 - RESERVED))).admitted
    halves = plan(mu_from_epsilon_delta(1.0, D * 7 / 8 * (1 - RESERVED)) / math.sqrt(2) * (1 - 1e-9))
    assert apply_filter([halves], halves, cap).admitted
    more = plan(mu_from_epsilon_delta(1.0, D * 7 / 8) / math.sqrt(2) * (1 - 1e-9))
    assert not apply_filter([more], more, cap).admitted
    assert apply_filter([more], more, FilterCap(1.0, D)).admitted


def test_what_earlier_filters_hold_is_counted_whole() -> None:
    cap = FilterCap(3.0, D, earlier=2.0)
    pure = ("p", {"0": PlanCost.of([PureEpsilon(0.9)], D)})
    found = apply_filter([], pure, cap)
    assert found.admitted
    assert found.before.epsilon == pytest.approx(2.0)
    assert found.after.epsilon == pytest.approx(2.9, abs=0.01)
    refused = apply_filter([pure], pure, cap)
    assert not refused.admitted
    for epsilon, fits in ((0.099, True), (0.105, False)):
        assert apply_filter([pure], ("p", {"0": PlanCost.of([PureEpsilon(epsilon)], D)}), cap).admitted is fits
    assert "cap of epsilon 3" in refused.reason
    # Lowered below what earlier filters hold: nothing is admitted.
    assert not apply_filter(
        [], ("p", {"0": PlanCost.of([PureEpsilon(1e-9)], D)}), FilterCap(1.5, D, earlier=2.0)
    ).admitted
    assert np.isfinite(status([pure], cap).after.epsilon)


@pytest.mark.parametrize(("first", "whole", "raised", "ratio"), [(3.0, 2.414, 0.862, 2.6), (1.0, 3.818, 0.862, 3.9)])
def test_a_raised_cap_leaves_less_than_the_same_cap_from_the_start(
    first: float, whole: float, raised: float, ratio: float
) -> None:
    """The numbers of docs/budget.md: under a cap of 4, and of 3 raised to 4, after one Gaussian run; delta 1e-6."""
    delta = 1e-6
    history = SummedHistory().with_plan("p", _gaussian_run(first, delta))
    in_force = filter_in_force([3.0, 4.0], delta)
    caps = {
        whole: (history, FilterCap(4.0, delta, reserved=RESERVED)),
        raised: (SummedHistory(), FilterCap(4.0, in_force.delta, earlier=in_force.earlier_epsilon)),
    }
    for largest, (before, cap) in caps.items():
        assert apply_filter(before, ("p", _gaussian_run(largest, delta)), cap).admitted
        assert not apply_filter(before, ("p", _gaussian_run(1.001 * largest, delta)), cap).admitted
    noise = [mu_from_epsilon_delta(epsilon, GAUSSIAN_PART * delta) for epsilon in (whole, raised)]
    assert noise[0] / noise[1] == pytest.approx(ratio, rel=0.01)


def _gaussian_run(epsilon: float, delta: float) -> dict[str, PlanCost]:
    at = GAUSSIAN_PART * delta
    return {"0": PlanCost.of([GaussianMu(mu_from_epsilon_delta(epsilon, at))], at)}
