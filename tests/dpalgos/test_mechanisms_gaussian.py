"""The Gaussian mechanism's privacy curve and its calibration, against mpmath, known values and dp-accounting."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from dpalgos.accounting.profiles import (
    delta_of_mu,
    epsilon_of_mu,
    mu_from_epsilon_delta,
    sigma_analytic,
    sigma_classical,
)
from dpalgos.mechanisms import _precise
from dpalgos.mechanisms.distributions import GaussianNoise
from dpalgos.parameters import ParameterError
from tests.support.statistics import rejects_independence, rejects_law
from tests.support.streams import seeded


def oracle(mu: float, epsilon: float) -> Any:
    """Return Balle and Wang's delta with a thousand digits to spare."""
    with mpmath.workprec(4000):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)

        def upper(t: Any) -> Any:
            return mpmath.erfc(t / mpmath.sqrt(2)) / 2

        return upper(e / m - m / 2) - mpmath.exp(e) * upper(e / m + m / 2)


CURVE = [
    (1.0, 0.0), (1.0, 1.0), (1.0, 10.0), (0.01, 0.1), (1e-8, 1e-8), (1e-8, 0.0), (30.0, 400.0), (30.0, 900.0),
    (1e3, 5e5), (3.0, 1e-12), (1e-100, 1e-100), (5.0, 0.5), (1e-3, 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("mu", "epsilon"), CURVE)
def test_delta_agrees_with_mpmath_and_is_rounded_up(mu: float, epsilon: float) -> None:
    exact, ours = oracle(mu, epsilon), delta_of_mu(mu, epsilon)
    with mpmath.workprec(400):
        assert mpmath.mpf(ours) >= exact
        assert ours <= max(float(exact) * (1 + 1e-15), 5e-324)


def test_the_curve_is_as_precise_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against three times the bits; the oracle above says that the formula is the right one."""
    random = np.random.default_rng(11)
    points = [
        (float(mu), min(max(float(mu * mu / 2 + mu * tail), 0.0), 1e6))
        for mu, tail in zip(10.0 ** random.uniform(-6, 4, 100), random.uniform(-5, 20, 100), strict=True)
    ]

    def curve(bits: int) -> list[Any]:
        monkeypatch.setattr(_precise, "_CURVE_PRECISION", bits)
        return [_precise.gaussian_delta(*point) for point in points]

    def worst(ours: list[Any]) -> float:
        with mpmath.workprec(1000):
            pairs = [(mpmath.mpf(one), mpmath.mpf(other)) for one, other in zip(ours, exact, strict=True)]
            return float(max(abs(one - other) / other for one, other in pairs))

    written = _precise._CURVE_PRECISION
    exact = curve(3 * written)
    assert worst(curve(written)) <= 2.0**-100
    assert worst(curve(written // 2)) > 2.0**-100


def test_delta_at_the_ends() -> None:
    assert delta_of_mu(0.0, 0.0) == 0.0
    assert delta_of_mu(1.0, 0.0) == pytest.approx(2 * float(ndtr(0.5)) - 1)
    assert delta_of_mu(1e6, 0.0) == 1.0
    # Beyond float64 the answer is still an upper bound, not zero.
    assert 0 < delta_of_mu(1e-3, 1.0) <= 1e-300


TARGETS = [
    (0.1, 1e-5), (1.0, 1e-5), (8.0, 1e-5), (0.0, 1e-5), (0.1, 1e-4), (1e-8, 1e-12), (100.0, 1e-300), (1e5, 1e-5),
    (1e-300, 0.5), (0.5, 0.999), (20.0, 0.9), (0.01, 1e-30),
]  # fmt: skip


@pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
def test_calibration_is_tight_and_never_optimistic(epsilon: float, delta: float) -> None:
    mu = mu_from_epsilon_delta(epsilon, delta)
    with mpmath.workprec(400):
        assert oracle(mu, epsilon) <= mpmath.mpf(delta)
        assert oracle(mu * (1 + 1e-13), epsilon) > mpmath.mpf(delta)
    for sensitivity in (1.0, math.sqrt(2), 1e-9, 2.0**40):
        sigma = sigma_analytic(epsilon, delta, sensitivity)
        assert Fraction(sensitivity) / Fraction(sigma) <= Fraction(mu)
        assert sensitivity / sigma == pytest.approx(mu, rel=1e-15)


@pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
def test_epsilon_is_the_inverse(epsilon: float, delta: float) -> None:
    mu = mu_from_epsilon_delta(epsilon, delta)
    back = epsilon_of_mu(mu, delta)
    assert back == pytest.approx(epsilon, rel=1e-12, abs=1e-13)
    with mpmath.workprec(400):
        assert oracle(mu, back) <= mpmath.mpf(delta)
        assert back < 1e-9 or oracle(mu, back * (1 - 1e-11)) > mpmath.mpf(delta)


def test_epsilon_where_delta_is_generous_or_noise_infinite() -> None:
    assert epsilon_of_mu(0.0, 1e-5) == 0.0
    assert epsilon_of_mu(1e-6, 1e-5) == 0.0
    assert math.isfinite(epsilon_of_mu(1e6, 1e-300))


def test_known_values_of_the_analytic_mechanism() -> None:
    # delta = 1e-5: the classical sigma is 30 per cent too large at epsilon = 1, and too small from 8.5 on.
    assert sigma_analytic(1.0, 1e-5, 1.0) == pytest.approx(3.730631634816464, rel=1e-9)
    assert sigma_classical(1.0, 1e-5, 1.0) / sigma_analytic(1.0, 1e-5, 1.0) == pytest.approx(1.2987, abs=1e-4)
    for epsilon, enough in ((0.5, True), (8.0, True), (8.5, False), (12.0, False)):
        given = delta_of_mu(1.0 / sigma_classical(epsilon, 1e-5, 1.0), epsilon)
        assert (given <= 1e-5) is enough
    # Replace-one moves a covariance by sqrt(2): at epsilon = 4, delta = 1e-4 the published sensitivity of 1 is short.
    published = sigma_classical(4.0, 1e-4, 1.0)
    assert published < sigma_analytic(4.0, 1e-4, math.sqrt(2)) * 0.85
    assert epsilon_of_mu(math.sqrt(2) / published, 1e-4) == pytest.approx(5.2, abs=0.1)


def test_dp_accounting_agrees() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    for mu, epsilon in ((0.5, 1.0), (1.0, 2.0), (2.0, 1.0)):
        theirs = pld.from_gaussian_mechanism(1.0 / mu, value_discretization_interval=1e-4).get_delta_for_epsilon(
            epsilon
        )
        assert theirs == pytest.approx(delta_of_mu(mu, epsilon), rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sigma_analytic(-0.1, 1e-5, 1.0), "epsilon"),
        (lambda: sigma_analytic(1.0, 0.0, 1.0), "delta"),
        (lambda: sigma_analytic(1.0, 1.0, 1.0), "delta"),
        (lambda: sigma_analytic(1.0, math.nan, 1.0), "delta"),
        (lambda: sigma_analytic(1.0, 1e-5, 0.0), "sensitivity"),
        (lambda: sigma_analytic(math.inf, 1e-5, 1.0), "epsilon"),
        (lambda: delta_of_mu(-1.0, 1.0), "mu"),
        (lambda: epsilon_of_mu(math.nan, 1e-5), "mu"),
        (lambda: sigma_classical(0.0, 1e-5, 1.0), "epsilon"),
        (lambda: GaussianNoise(0.0), "sigma"),
    ],
)
def test_parameters_out_of_range_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=f"^{message}"):
        call()


@pytest.mark.parametrize("sigma", [1e-3, 1.0, 2.0**30])
def test_continuous_noise_and_its_mutants(sigma: float) -> None:
    law = GaussianNoise(sigma)
    draws = law.sample(200_000, seeded(1))
    assert not rejects_law(draws, lambda x: ndtr(x / sigma))
    for mutant in (draws / 2, draws / math.sqrt(2), np.abs(draws)):
        assert rejects_law(mutant, lambda x: ndtr(x / sigma))
    assert not rejects_independence(draws, law.sample(200_000, seeded(1, "another")))
    assert rejects_independence(draws, law.sample(200_000, seeded(1)))
    assert law.mu(3.0) == pytest.approx(3.0 / sigma)
    assert Fraction(law.mu(3.0)) >= 3 / Fraction(sigma)
    assert law.mu(0.0) == 0.0
