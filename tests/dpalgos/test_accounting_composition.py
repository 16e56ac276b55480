"""Composition within a plan: against integrals, closed forms, dp-accounting and the classical bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event, rdp
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.privacy_accountant import NeighboringRelation
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from dpalgos.accounting.composition import basic, components, compose, library_profile
from dpalgos.accounting.profiles import (
    Atoms,
    AtomsProfile,
    PrivacyProfile,
    ZeroConcentratedProfile,
    delta_of_mu,
    mu_of_pure,
    product,
    pure_atoms,
    rho_from_epsilon_delta,
    rho_of_pure,
    zcdp_atoms,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_grid,
)
from dpalgos.guarantees import ApproximateDP, GaussianMu, Loss, NoGuarantee, PureEpsilon, ZeroConcentrated
from dpalgos.parameters import ParameterError

DELTA = 1e-5


def library(losses: Sequence[Loss]) -> PrivacyProfile:
    """Return dp-accounting's numbers: distributions on a grid, rounded up."""
    parts = components(losses)
    return library_profile(parts.pure, parts.mu, parts.rho, parts.infinity)


def concentrated(losses: Sequence[Loss]) -> PrivacyProfile:
    """Return everything as zCDP, rhos added."""
    parts = components(losses)
    return ZeroConcentratedProfile(parts.total_rho, parts.slack)


METHODS: dict[str, Callable[[Sequence[Loss]], PrivacyProfile]] = {
    "tight": compose,
    "pld": library,
    "zcdp": concentrated,
    "basic": lambda losses: basic(components(losses)),
}


def exact_delta(mu: float, pure: Sequence[float], slacks: Sequence[float], epsilon: float) -> Any:
    """Return delta of a Gaussian, randomised responses and leaks together, from the definition, in high precision.

    Sums ``max(0, P - e^eps Q)`` over all outcomes of the responses; for each, the Gaussian part's set is a half-line.
    """
    with mpmath.workdps(60):
        leak = mpmath.mpf(1)
        for slack in slacks:
            leak *= 1 - mpmath.mpf(slack)
        t = mpmath.exp(epsilon)
        total = mpmath.mpf(0)
        for outcome in range(2 ** len(pure)):
            p = q = mpmath.mpf(1)
            for bit, value in enumerate(pure):
                likely = 1 / (1 + mpmath.exp(-mpmath.mpf(value)))
                p *= likely if outcome >> bit & 1 else 1 - likely
                q *= 1 - likely if outcome >> bit & 1 else likely
            if mu == 0:
                total += max(mpmath.mpf(0), p - t * q)
            else:
                m = mpmath.mpf(mu)
                cut = m / 2 + mpmath.log(t * q / p) / m
                total += p * mpmath.ncdf(m - cut) - t * q * mpmath.ncdf(-cut)
        return 1 - leak + leak * total


mus = st.one_of(st.just(0.0), st.floats(1e-3, 4.0))
epsilons = st.lists(st.floats(1e-3, 3.0), max_size=4)
slack_lists = st.lists(st.floats(1e-9, 1e-3), max_size=2)


@given(mu=mus, pure=epsilons, slacks=slack_lists, epsilon=st.floats(0.0, 6.0))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_mixtures_are_exact_and_never_low(mu: float, pure: list[float], slacks: list[float], epsilon: float) -> None:
    losses: list[Loss] = [GaussianMu(mu), *map(PureEpsilon, pure), *(ApproximateDP(0.0, slack) for slack in slacks)]
    truth = exact_delta(mu, pure, slacks, epsilon)
    ours = compose(losses).delta(epsilon)
    assert ours >= truth
    assert ours <= float(truth) * (1 + 1e-8) + 1e-14


@given(mu=mus, pure=epsilons, delta=st.floats(-9.0, -2.0).map(lambda power: 10**power))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_epsilon_is_the_inverse_of_delta_and_never_low(mu: float, pure: list[float], delta: float) -> None:
    profile = compose([GaussianMu(mu), *map(PureEpsilon, pure)])
    epsilon = profile.epsilon(delta)
    assert exact_delta(mu, pure, [], epsilon) <= delta
    if epsilon > 1e-6:
        assert exact_delta(mu, pure, [], epsilon * (1 - 1e-6)) > delta * (1 - 1e-4)
        assert exact_delta(mu, pure, [], epsilon - 1e-6 * (1 + epsilon)) > delta or epsilon < 2e-6


def test_gaussians_merge_and_agree_with_the_peer() -> None:
    mus = [0.3, 0.2, 0.5]
    ours = compose([GaussianMu(mu) for mu in mus]).epsilon(DELTA)
    assert ours == pytest.approx(compose([GaussianMu(math.sqrt(0.38))]).epsilon(DELTA), rel=1e-12)
    peer = privacy_loss_distribution.identity(1e-4)
    for mu in mus:
        peer = peer.compose(privacy_loss_distribution.from_gaussian_mechanism(1 / mu))
    assert ours == pytest.approx(peer.get_epsilon_for_delta(DELTA), rel=1e-3)
    assert delta_of_mu(math.sqrt(0.38), ours) <= DELTA


def test_equal_pure_releases_meet_the_optimal_composition_theorem() -> None:
    # Kairouz, Oh, Viswanath 2015, Theorem 3.3, evaluated in exact fractions of a rational e^epsilon.
    k, base = 9, Fraction(3, 2)
    profile = compose([PureEpsilon(math.log(base))] * k)
    for i in range(k // 2 + 1):
        weight = sum(math.comb(k, j) * (base ** (k - j) - base ** (k - 2 * i + j)) for j in range(i))
        delta = weight / (1 + base) ** k
        assert profile.delta((k - 2 * i) * math.log(base)) == pytest.approx(float(delta), rel=1e-9, abs=1e-13)


def test_pure_releases_at_delta_zero_add_up_exactly() -> None:
    assert compose([PureEpsilon(0.1)] * 10).epsilon(0.0) == pytest.approx(1.0, abs=1e-15)
    assert compose([PureEpsilon(1.5)]).epsilon(0.0) == 1.5
    assert compose([PureEpsilon(0.1)] * 200).epsilon(DELTA) < 9.0


def test_an_approximate_release_gives_back_its_own_numbers() -> None:
    profile = compose([ApproximateDP(1.0, DELTA)])
    assert profile.epsilon(DELTA) == 1.0
    assert profile.delta(1.0) == DELTA
    assert profile.epsilon(DELTA * 0.999) == math.inf
    twice = compose([ApproximateDP(0.5, DELTA)] * 2)
    assert twice.epsilon(2 * DELTA - 0.999 * DELTA**2) == pytest.approx(1.0, abs=1e-6)
    assert twice.epsilon(2 * DELTA - 1.01 * DELTA**2) == math.inf


def test_nothing_costs_nothing() -> None:
    for method, composed in METHODS.items():
        assert composed([]).epsilon(0.0 if method != "pld" else 1e-6) == 0.0
    free: list[Loss] = [GaussianMu(0.0), PureEpsilon(0.0), ZeroConcentrated(0.0), ApproximateDP(0.0, 0.0)]
    assert compose(free).epsilon(0.0) == 0.0
    assert compose(free).delta(0.0) == 0.0


def test_what_is_not_proved_is_never_free() -> None:
    profile = compose([PureEpsilon(0.1), NoGuarantee("indices are records")])
    assert profile.epsilon(0.5) == math.inf
    assert profile.delta(100.0) == 1.0


@pytest.mark.parametrize("stranger", [0.3, None, {"kind": "pure-epsilon", "epsilon": 1.0}, object()])
def test_an_unknown_loss_type_raises(stranger: Any) -> None:
    with pytest.raises(ParameterError, match="loss"):
        compose([PureEpsilon(0.1), stranger])


def test_gaussians_have_no_pure_guarantee() -> None:
    assert compose([GaussianMu(0.1)]).epsilon(0.0) == math.inf
    assert compose([GaussianMu(0.1), PureEpsilon(0.1)]).epsilon(0.0) == math.inf
    assert compose([ZeroConcentrated(0.1)]).epsilon(0.0) == math.inf
    assert compose([GaussianMu(2e6)]).epsilon(0.1) == math.inf


loss_lists = st.lists(
    st.one_of(
        st.floats(1e-2, 1.0).map(GaussianMu),
        st.sampled_from([0.05, 0.2, 0.7]).map(PureEpsilon),
        st.floats(1e-3, 0.3).map(ZeroConcentrated),
        st.floats(1e-2, 0.5).map(lambda epsilon: ApproximateDP(epsilon, 1e-7)),
    ),
    min_size=1,
    max_size=5,
)


@given(losses=loss_lists)
@settings(max_examples=8, deadline=None, derandomize=True)
def test_tight_is_the_least_of_the_methods(losses: list[Loss]) -> None:
    tight = compose(losses).epsilon(DELTA)
    for method, composed in METHODS.items():
        # Where a rho is among them, both put it on a grid, not the same one.
        assert tight <= composed(losses).epsilon(DELTA) * (1 + 1e-5), method
    if not any(isinstance(loss, ZeroConcentrated) for loss in losses):
        assert METHODS["pld"](losses).epsilon(DELTA) <= tight * 1.001 + 1e-4


@given(losses=loss_lists)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_order_does_not_matter_and_more_costs_more(losses: list[Loss]) -> None:
    one = compose(losses).epsilon(DELTA)
    assert compose(losses[::-1]).epsilon(DELTA) == pytest.approx(one, rel=1e-9)
    assert compose([*losses, PureEpsilon(0.01)]).epsilon(DELTA) >= one * (1 - 1e-9)


def test_many_distinct_losses_go_through_the_peer_and_are_not_low() -> None:
    distinct = [PureEpsilon(0.01 + 0.001 * k) for k in range(20)]
    ours = compose([GaussianMu(0.2), *distinct])
    # Equal epsilons a little larger, or smaller, have a closed form.
    above = compose([GaussianMu(0.2), *[PureEpsilon(0.02)] * 10, *[PureEpsilon(0.03)] * 10]).epsilon(DELTA)
    below = compose([GaussianMu(0.2), *[PureEpsilon(0.01)] * 10, *[PureEpsilon(0.02)] * 10]).epsilon(DELTA)
    assert below < ours.epsilon(DELTA) < above
    assert ours.delta(ours.epsilon(DELTA)) <= DELTA


# ── zero-concentrated ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("rho", "delta"), [(1e-4, 1e-6), (0.1, 1e-6), (0.5, 1e-5), (2.56, 1e-10), (20.0, 1e-8)])
def test_zcdp_conversion_agrees_with_the_peer(rho: float, delta: float) -> None:
    accountant = rdp.RdpAccountant(1 + np.geomspace(1e-2, 1e5, 20_000))
    accountant.compose(dp_event.ZCDpEvent(rho))
    peer = accountant.get_epsilon(delta)
    assert zcdp_epsilon(rho, delta) == pytest.approx(peer, rel=1e-5)
    assert zcdp_epsilon(rho, delta) < rho + 2 * math.sqrt(rho * math.log(1 / delta))


def test_zcdp_delta_is_the_published_infimum() -> None:
    rho, epsilon = 0.1, 2.0
    with mpmath.workdps(40):

        def bound(alpha: Any) -> Any:
            power = mpmath.exp((alpha - 1) * (alpha * rho - epsilon))
            return power / (alpha - 1) * (1 - 1 / alpha) ** alpha

        least = min(bound(mpmath.mpf(1) + mpmath.mpf(k) / 1000) for k in range(8_000, 13_000))
    assert zcdp_delta(rho, epsilon) == pytest.approx(float(least), rel=1e-6)
    assert zcdp_delta(rho, epsilon) >= float(least) * (1 - 1e-6)


@given(rho=st.floats(1e-4, 5.0), epsilon=st.floats(0.0, 20.0))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_zcdp_is_not_below_any_mechanism_that_has_it(rho: float, epsilon: float) -> None:
    ours = zcdp_delta(rho, epsilon)
    assert ours >= delta_of_mu(math.sqrt(2 * rho), epsilon) * (1 - 1e-12)
    assert ours >= float(exact_delta(0.0, [pure_with(rho)], [], epsilon)) * (1 - 1e-9)


def pure_with(rho: float) -> float:
    """Return the epsilon of the randomised response whose rho is the given one, from below."""
    low, high = 0.0, 2 * rho + 10
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.tanh(middle / 2) <= rho else (low, middle)
    return low


@given(rho=st.floats(1e-3, 2.0), mu=st.floats(0.0, 1.0), delta=st.sampled_from([1e-3, 1e-5, 1e-8]))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_zcdp_in_mixtures_is_not_below_any_mechanism_that_has_it(rho: float, mu: float, delta: float) -> None:
    ours = compose([ZeroConcentrated(rho), GaussianMu(mu), PureEpsilon(0.2)]).epsilon(delta)
    for stand_in in (GaussianMu(math.sqrt(2 * rho)), PureEpsilon(pure_with(rho))):
        assert ours >= compose([stand_in, GaussianMu(mu), PureEpsilon(0.2)]).epsilon(delta) * (1 - 1e-9)


@pytest.mark.parametrize("rho", [1e-5, 0.03, 1.0, 30.0])
def test_the_dominating_pair_is_one_and_follows_the_curve(rho: float) -> None:
    atoms = zcdp_atoms(rho)
    grid = zcdp_grid(rho, atoms.losses)
    mass = float(atoms.probabilities.sum())
    assert mass == pytest.approx(1.0, abs=1e-9)
    with np.errstate(over="ignore"):
        # Beyond rho = 1 the other measure's mass sits where e^-loss magnifies rounding.
        assert rho > 1 or float((atoms.probabilities * np.exp(-atoms.losses)).sum()) <= 1 + 1e-6
    profile = AtomsProfile(atoms)
    for index in np.flatnonzero(atoms.losses >= 0)[::300]:
        epsilon = float(atoms.losses[index])
        assert profile.delta(epsilon) == pytest.approx(grid[index], rel=1e-6, abs=1e-13)
        assert grid[index] <= zcdp_delta(rho, epsilon) * (1 + 1e-12)
    # Between the nodes the chord is above the convex profile of every mechanism that has this rho.
    for epsilon in np.linspace(0.013, atoms.losses[-1] * 0.6, 17):
        assert profile.delta(float(epsilon)) >= delta_of_mu(math.sqrt(2 * rho), float(epsilon))


@pytest.mark.parametrize("rho", [0.03, 1.0])
def test_the_dominating_pair_keeps_its_mass_at_infinity(rho: float) -> None:
    """Beyond the grid the pair is no less than the Gaussian of that rho, alone and in mixtures."""
    atoms = zcdp_atoms(rho)
    assert float(atoms.probabilities.sum()) + atoms.infinity == pytest.approx(1.0, abs=1e-9)
    beyond = float(atoms.losses[-1]) * 1.01
    gaussian = delta_of_mu(math.sqrt(2 * rho), beyond)
    assert 0 < gaussian <= AtomsProfile(atoms).delta(beyond)
    # Of a second pair its mass at infinity alone: all atoms of both are nine million.
    certain = Atoms(np.zeros(1), np.ones(1), atoms.infinity)
    mixed = AtomsProfile(product([pure_atoms(1e-9, 2), atoms, certain]), infinity=1e-30)
    assert mixed.delta(4 * beyond) >= 2 * atoms.infinity
    assert AtomsProfile(atoms).epsilon(0.5 * atoms.infinity) == math.inf


def test_a_pair_from_randomised_responses_alone_would_be_caught() -> None:
    # A mutant: taking the best known mechanism of a given rho for the worst one.
    rho = 0.1
    mutant = compose([PureEpsilon(pure_with(rho))])
    assert mutant.delta(2.0) < delta_of_mu(math.sqrt(2 * rho), 2.0) <= zcdp_delta(rho, 2.0)


def test_calibrated_rho_inverts_the_curve() -> None:
    for epsilon, delta in [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-9)]:
        rho = rho_from_epsilon_delta(epsilon, delta)
        assert zcdp_delta(rho, epsilon) <= delta
        assert zcdp_delta(rho * (1 + 1e-9), epsilon) > delta
    with pytest.raises(ParameterError, match="zCDP"):
        rho_from_epsilon_delta(1.0, 0.0)


# ── pure to Gaussian and to zCDP ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 0.5, 0.999, 1.0, 3.0, 30.0, 400.0])
def test_mu_of_a_pure_epsilon_touches_its_corner(epsilon: float) -> None:
    with mpmath.workdps(60 + int(epsilon)):
        tail = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
        guess = mpmath.mpf(mu_of_pure(epsilon)) / 2
        exact = 2 * mpmath.findroot(lambda z: mpmath.log(mpmath.ncdf(-z)) - mpmath.log(tail), guess)
        assert mu_of_pure(epsilon) >= exact
        assert mu_of_pure(epsilon) == pytest.approx(float(exact), rel=1e-9)


@given(epsilon=st.floats(1e-2, 8.0), at=st.floats(0.0, 10.0))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_the_gaussian_stand_in_dominates_randomised_response(epsilon: float, at: float) -> None:
    assert delta_of_mu(mu_of_pure(epsilon), at) >= float(exact_delta(0.0, [epsilon], [], at)) * (1 - 1e-12)


def test_a_smaller_mu_would_not_dominate() -> None:
    smaller = mu_of_pure(1.0) * 0.99
    assert any(
        delta_of_mu(smaller, float(at)) < float(exact_delta(0.0, [1.0], [], float(at))) for at in np.linspace(0, 1, 50)
    )


@given(epsilon=st.floats(1e-3, 20.0), alpha=st.floats(1.0001, 500.0))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_rho_of_a_pure_epsilon_bounds_every_order(epsilon: float, alpha: float) -> None:
    x = epsilon / 2
    order = (2 * alpha - 1) * x
    log_cosh = order + math.log1p(math.exp(-2 * order)) - (x + math.log1p(math.exp(-2 * x)))
    assert log_cosh / (alpha - 1) <= alpha * rho_of_pure(epsilon) * (1 + 1e-9) + 1e-12 / (alpha - 1)
    assert rho_of_pure(epsilon) <= epsilon**2 / 2 * (1 + 1e-9)


def test_rho_of_a_pure_epsilon_is_the_divergence_it_starts_from() -> None:
    epsilon = 1.3
    p = float(expit(epsilon))
    assert rho_of_pure(epsilon) == pytest.approx(epsilon * (2 * p - 1), rel=1e-11)


# ── dp-accounting's traps, which is why its distributions are composed directly ──────────────────────────────────────


def test_the_peers_events_ignore_how_often_randomised_response_is_repeated() -> None:
    def by_events(count: int) -> float:
        accountant = dp_accounting.pld.PLDAccountant(NeighboringRelation.REPLACE_ONE)
        accountant.compose(dp_event.RandomizedResponseDpEvent(0.5, 2), count)
        return float(accountant.get_epsilon(DELTA))

    assert by_events(10) == by_events(1)
    assert METHODS["pld"]([PureEpsilon(math.log(3))] * 10).epsilon(DELTA) > 5 * by_events(1)


def test_the_peers_gaussian_event_doubles_under_replace_one() -> None:
    def by_events(relation: NeighboringRelation) -> float:
        accountant = dp_accounting.pld.PLDAccountant(relation)
        accountant.compose(dp_event.GaussianDpEvent(5.0))
        return float(accountant.get_epsilon(DELTA))

    assert by_events(NeighboringRelation.ADD_OR_REMOVE_ONE) == pytest.approx(
        METHODS["pld"]([GaussianMu(0.2)]).epsilon(DELTA), rel=1e-3
    )
    assert by_events(NeighboringRelation.REPLACE_ONE) == pytest.approx(
        compose([GaussianMu(0.4)]).epsilon(DELTA), rel=1e-3
    )


def test_basic_composition_is_the_textbook_sum() -> None:
    losses: list[Loss] = [PureEpsilon(0.25), ApproximateDP(0.5, 1e-6), GaussianMu(0.2)]
    profile = METHODS["basic"](losses)
    expected = 0.75 + compose([GaussianMu(0.2)]).epsilon(DELTA - 1e-6)
    assert profile.epsilon(DELTA) == pytest.approx(expected, rel=1e-12)
    assert profile.epsilon(1e-7) == math.inf
    assert profile.delta(expected * (1 + 1e-9)) == pytest.approx(DELTA, rel=1e-5)
    assert profile.delta(0.1) == 1.0


@pytest.mark.parametrize("bad", [-0.1, 1.0, math.nan])
def test_a_delta_outside_its_range_is_refused(bad: float) -> None:
    for composed in METHODS.values():
        with pytest.raises(ParameterError, match="delta"):
            composed([GaussianMu(0.3), PureEpsilon(0.2)]).epsilon(bad)
