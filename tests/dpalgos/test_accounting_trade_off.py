"""Trade-off curves: closed forms of each type of release, and never above a real test's errors."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from dpalgos.accounting.composition import TYPE_I_ERRORS, gaussian_mu, trade_off, whole_promise
from dpalgos.guarantees import (
    ApproximateDP,
    GaussianMu,
    Loss,
    NoGuarantee,
    PureEpsilon,
    ZeroConcentrated,
    rounded_down,
    rounded_up,
)
from dpalgos.parameters import ParameterError

ALPHAS = np.array(TYPE_I_ERRORS)


def test_mu_adds_in_squares_and_belongs_to_gaussian_releases_alone() -> None:
    assert gaussian_mu([GaussianMu(0.3), GaussianMu(0.4)]) == pytest.approx(0.5, rel=1e-14)
    assert gaussian_mu([]) == gaussian_mu([PureEpsilon(0.0)]) == 0.0
    for other in (PureEpsilon(0.1), ZeroConcentrated(0.1), ApproximateDP(0.1, 1e-6), NoGuarantee("no")):
        assert gaussian_mu([GaussianMu(0.3), other]) is None


def test_a_gaussian_release_has_the_normal_curve() -> None:
    curve = trade_off([[GaussianMu(0.6), GaussianMu(0.8)]])
    want = norm.cdf(norm.ppf(1 - ALPHAS) - 1.0)
    assert (curve <= want).all()
    np.testing.assert_allclose(curve, want, rtol=1e-5)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0), (1.0, 0.0), (4.0, 0.0), (1.0, 0.01)])
def test_pure_and_approximate_releases_have_two_straight_pieces(epsilon: float, delta: float) -> None:
    """Kairouz, Oh, Viswanath 2015: the curve of randomised response."""
    loss: Loss = ApproximateDP(epsilon, delta) if delta else PureEpsilon(epsilon)
    curve = trade_off([[loss]])
    pieces = [1 - delta - math.exp(epsilon) * ALPHAS, math.exp(-epsilon) * (1 - delta - ALPHAS)]
    want = np.maximum(np.max(pieces, axis=0), 0)
    assert (curve <= want).all()
    np.testing.assert_allclose(curve, want, atol=1e-5)


def test_a_mixture_lies_below_every_test_of_it() -> None:
    """Likelihood-ratio tests of the worst pair: a Gaussian and a randomised response, tossed independently."""
    mu, epsilon = 0.8, 0.7
    curve = trade_off([[GaussianMu(mu), PureEpsilon(epsilon)]])
    heads = 1 / (1 + math.exp(-epsilon))
    for alpha, bound in zip(ALPHAS, curve, strict=True):
        # Reject where mu x + (+-) epsilon is large; the threshold that gives this type I error.
        low, high = -20.0, 20.0
        for _ in range(100):
            middle = (low + high) / 2
            size = (1 - heads) * norm.sf((middle - epsilon) / mu) + heads * norm.sf((middle + epsilon) / mu)
            low, high = (middle, high) if size > alpha else (low, middle)
        missed = heads * norm.cdf((low - epsilon) / mu - mu) + (1 - heads) * norm.cdf((low + epsilon) / mu - mu)
        assert bound <= missed + 1e-12
        # Finitely many points of the profile lose little.
        assert bound >= missed - 0.02


def test_zcdp_lies_between_nothing_and_its_gaussian() -> None:
    """The Gaussian of rho is rho-zCDP, so what holds for all of zCDP holds for it."""
    rho = 0.1
    curve = trade_off([[ZeroConcentrated(rho)]])
    gaussian = trade_off([[GaussianMu(math.sqrt(2 * rho))]])
    assert (curve <= gaussian).all()
    assert (curve > 0.5 * gaussian).all()


def test_the_worst_party_bounds_every_row() -> None:
    one, other = [GaussianMu(0.2)], [PureEpsilon(1.0)]
    np.testing.assert_array_equal(trade_off([one, other, one]), np.minimum(trade_off([one]), trade_off([other])))
    np.testing.assert_array_equal(trade_off([[GaussianMu(0.2)], [GaussianMu(0.9)]]), trade_off([[GaussianMu(0.9)]]))


def test_nothing_proved_bounds_nothing_and_no_release_bounds_all() -> None:
    assert not trade_off([[NoGuarantee("no")]]).any()
    np.testing.assert_allclose(trade_off([]), 1 - ALPHAS, rtol=1e-5)
    with pytest.raises(ParameterError, match=r"\[1\.5\]"):
        trade_off([], [1.5])


def test_the_promise_of_a_manifest_is_json() -> None:
    promise = whole_promise([GaussianMu(0.5)])
    assert promise["mu"] == 0.5
    assert promise["trade_off"] == list(zip(TYPE_I_ERRORS, trade_off([[GaussianMu(0.5)]]), strict=True))
    assert json.loads(json.dumps(promise))["mu"] == 0.5
    assert whole_promise([PureEpsilon(1.0)])["mu"] is None
    assert whole_promise([NoGuarantee("no")]) == {"mu": None, "trade_off": None}


@pytest.mark.parametrize("value", [1e-5, 0.99999999, 1.00001, 123456.789, 0.0, math.inf])
def test_rounding_never_promises_more(value: float) -> None:
    assert rounded_down(value, 4) <= value <= rounded_up(value, 4)
    assert rounded_up(1e-5, 2) == rounded_down(1e-5, 2) == 1e-5
    assert rounded_up(1.00001, 4) == 1.001
