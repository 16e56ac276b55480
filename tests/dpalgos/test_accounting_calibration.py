"""Calibration both ways, the split of a budget over stages, and groups of rows."""

from __future__ import annotations

import json
import math
from typing import Any

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpalgos.accounting.composition import basic, components, compose
from dpalgos.accounting.costs import allocate, group_loss, scaled
from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.guarantees import ApproximateDP, GaussianMu, Loss, NoGuarantee, PureEpsilon, ZeroConcentrated
from dpalgos.parameters import ParameterError

DELTA = 1e-5
KINDS: list[type[Loss]] = [GaussianMu, PureEpsilon, ZeroConcentrated]


@pytest.mark.parametrize(
    ("kind", "epsilon", "delta", "message"),
    [
        (GaussianMu, 1.0, 0.0, "delta"),
        (GaussianMu, 0.0, DELTA, "epsilon"),
        (GaussianMu, math.inf, DELTA, "epsilon"),
        (PureEpsilon, 1.0, 1.0, "delta"),
        (NoGuarantee, 1.0, DELTA, "NoGuarantee"),
    ],
)
def test_an_impossible_target_is_refused(kind: type[Loss], epsilon: float, delta: float, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        allocate([kind], [1.0], epsilon, delta)


# ── allocation ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_gaussian_stages_divide_the_squares() -> None:
    split = allocate([GaussianMu, GaussianMu], [0.36, 0.64], 1.0, DELTA)
    total = mu_from_epsilon_delta(1.0, DELTA)
    first, second = split.losses
    assert isinstance(first, GaussianMu)
    assert isinstance(second, GaussianMu)
    assert first.mu == pytest.approx(0.6 * total, rel=1e-9)
    assert second.mu == pytest.approx(0.8 * total, rel=1e-9)
    assert split.rule == "mu^2 by shares"


def test_pure_stages_divide_epsilon_and_spend_no_delta() -> None:
    split = allocate([PureEpsilon] * 3, [1, 1, 2], 2.0, DELTA)
    assert [loss.epsilon for loss in split.losses if isinstance(loss, PureEpsilon)] == pytest.approx([0.5, 0.5, 1.0])
    assert split.delta_spent == 0.0
    assert split.composed == pytest.approx(2.0, rel=1e-9)
    assert allocate([PureEpsilon], [1], 2.0, 0.0).delta_spent == 0.0


@given(
    stages=st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0.05, 1.0)), min_size=1, max_size=4),
    epsilon=st.floats(0.05, 5.0),
    delta=st.sampled_from([1e-4, 1e-6]),
)
@settings(max_examples=8, deadline=None, derandomize=True)
def test_an_allocation_meets_its_target_from_below(
    stages: list[tuple[type[Loss], float]], epsilon: float, delta: float
) -> None:
    split = allocate([kind for kind, _ in stages], [share for _, share in stages], epsilon, delta)
    assert [type(loss) for loss in split.losses] == [kind for kind, _ in stages]
    assert split.composed <= epsilon
    assert split.composed == pytest.approx(epsilon, rel=1e-6)
    assert split.composed == compose(split.losses).epsilon(split.delta_spent)
    assert math.fsum(split.shares) == pytest.approx(1.0)
    json.dumps(split.to_json(), allow_nan=False)


def test_there_is_room_for_dividing_a_stage_further() -> None:
    for classes in range(2, 40):
        for kind in (GaussianMu, PureEpsilon):
            (loss,) = allocate([kind], [1.0], 0.7, DELTA).losses
            parts = [scaled(loss, 1 / classes if kind is PureEpsilon else 1 / math.sqrt(classes))] * classes
            at = 0.0 if kind is PureEpsilon else DELTA
            assert compose(parts).epsilon(at) <= 0.7


def test_a_mixed_split_gives_more_than_adding_epsilons() -> None:
    split = allocate([GaussianMu, PureEpsilon], [0.5, 0.5], 1.0, DELTA)
    gaussian, pure = split.losses
    assert isinstance(gaussian, GaussianMu)
    assert isinstance(pure, PureEpsilon)
    # Half of epsilon for each, were epsilons added; tightly, both get 5 % more.
    assert pure.epsilon == pytest.approx(0.5238, abs=1e-4)
    assert gaussian.mu == pytest.approx(0.5238 * mu_from_epsilon_delta(1.0, DELTA), rel=1e-4)
    assert basic(components(split.losses)).epsilon(DELTA) > 1.01


def test_the_proportions_of_a_mixed_split_do_not_depend_on_epsilon() -> None:
    kinds: list[type[Loss]] = [GaussianMu, PureEpsilon, GaussianMu]
    ratios = []
    for epsilon in (0.1, 1.0, 5.0):
        first, pure, second = allocate(kinds, [0.3, 0.5, 0.2], epsilon, DELTA).losses
        assert isinstance(first, GaussianMu)
        assert isinstance(pure, PureEpsilon)
        assert isinstance(second, GaussianMu)
        ratios.append((first.mu / pure.epsilon, second.mu / pure.epsilon))
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-9)
    assert ratios[0] == pytest.approx(ratios[2], rel=1e-9)


def test_published_stages_get_what_papers_give_them() -> None:
    split = allocate([ApproximateDP, PureEpsilon], [0.4, 0.6], 1.0, DELTA)
    assert split.losses == (ApproximateDP(0.4, DELTA), PureEpsilon(0.6))
    assert split.composed == pytest.approx(1.0)
    twice = allocate([ApproximateDP, ApproximateDP], [0.5, 0.5], 1.0, DELTA)
    assert twice.losses == (ApproximateDP(0.5, DELTA),) * 2
    assert twice.composed == math.inf
    assert twice.to_json()["composed"] is None
    mixed = allocate([ApproximateDP, GaussianMu], [0.5, 0.5], 1.0, DELTA)
    assert mixed.losses[1] == GaussianMu(mu_from_epsilon_delta(0.5, DELTA))


@pytest.mark.parametrize("kind", [ApproximateDP, GaussianMu, PureEpsilon, ZeroConcentrated])
def test_proved_stages_share_delta_too(kind: type[Loss]) -> None:
    """The mutant that gives every stage all of delta composes to infinity."""
    split = allocate([ApproximateDP, kind], [0.3, 0.7], 1.0, DELTA, share_delta=True)
    first = split.losses[0]
    assert isinstance(first, ApproximateDP)
    assert first.delta == pytest.approx(0.3 * DELTA)
    assert split.composed <= 1.0
    assert allocate([ApproximateDP, GaussianMu], [0.3, 0.7], 1.0, DELTA).composed == math.inf


@pytest.mark.parametrize(
    ("kinds", "shares", "message"),
    [
        ([], [], "^there are 0 stages"),
        ([GaussianMu], [0.5, 0.5], "1 stages.*2 shares"),
        ([GaussianMu, GaussianMu], [1.0, 0.0], "^shares.*above 0"),
        ([GaussianMu, GaussianMu], [1.0, math.nan], "^shares.*above 0"),
        ([NoGuarantee], [1.0], "NoGuarantee"),
        ([NoGuarantee, GaussianMu], [0.5, 0.5], "NoGuarantee"),
    ],
)
def test_a_malformed_split_is_refused(kinds: list[type[Loss]], shares: list[float], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        allocate(kinds, shares, 1.0, DELTA)


def test_without_delta_there_is_no_gaussian_stage() -> None:
    with pytest.raises(ParameterError, match="pure-epsilon"):
        allocate([GaussianMu, PureEpsilon], [0.5, 0.5], 1.0, 0.0)


# ── groups and neighbouring relations ────────────────────────────────────────────────────────────────────────────────


def test_groups_by_closed_forms() -> None:
    assert group_loss(PureEpsilon(0.3), 4) == PureEpsilon(1.2)
    assert group_loss(GaussianMu(0.3), 4) == GaussianMu(1.2)
    assert group_loss(ZeroConcentrated(0.3), 4) == ZeroConcentrated(16 * 0.3)
    assert group_loss(NoGuarantee("x"), 4) == NoGuarantee("x")
    for loss in (PureEpsilon(0.3), ApproximateDP(0.3, 1e-6)):
        assert group_loss(loss, 1) is loss


@given(epsilon=st.floats(0.0, 2.0), delta=st.floats(1e-12, 1e-4), rows=st.integers(2, 12))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_groups_delta_is_the_sum_along_the_chain_and_never_low(epsilon: float, delta: float, rows: int) -> None:
    grouped = group_loss(ApproximateDP(epsilon, delta), rows)
    with mpmath.workdps(40):
        exact: Any = mpmath.fsum(mpmath.mpf(delta) * mpmath.exp(j * mpmath.mpf(epsilon)) for j in range(rows))
    if exact >= 1:
        assert isinstance(grouped, NoGuarantee)
    else:
        assert isinstance(grouped, ApproximateDP)
        assert grouped.epsilon == rows * epsilon
        assert exact <= grouped.delta <= float(exact) * (1 + 1e-9)


def test_a_group_that_is_too_large_has_no_guarantee() -> None:
    assert isinstance(group_loss(ApproximateDP(1.0, 1e-3), 20), NoGuarantee)
    assert isinstance(group_loss(ApproximateDP(100.0, 1e-3), 20), NoGuarantee)
    assert group_loss(ApproximateDP(100.0, 0.0), 20) == ApproximateDP(2000.0, 0.0)


@pytest.mark.parametrize("rows", [0, -1, 1.5, "2"])
def test_a_group_has_a_whole_number_of_rows(rows: Any) -> None:
    with pytest.raises(ParameterError, match=r"^rows"):
        group_loss(PureEpsilon(0.1), rows)


def test_a_groups_gaussian_is_the_shifted_gaussian_itself() -> None:
    # k rows move a sum by k sensitivities: the pair is N(0, 1) against N(k mu, 1), so nothing is lost or gained.
    profile = compose([group_loss(GaussianMu(0.1), 3)])
    assert profile.epsilon(DELTA) == compose([GaussianMu(3 * 0.1)]).epsilon(DELTA)


@pytest.mark.parametrize("act", [lambda: group_loss(0.5, 2), lambda: scaled(0.5, 2.0)])  # type: ignore[arg-type]  # no loss
def test_unknown_losses_are_refused(act: Any) -> None:
    with pytest.raises(ParameterError, match="loss type"):
        act()
