"""Laplace, radial Laplace and the exponential mechanism: laws, dimension factors, totality."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.special import betainc, gammainc

from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.mechanisms.distributions import Laplace, RadialLaplace
from dpalgos.parameters import ParameterError
from tests.support.statistics import rejects_independence, rejects_law, rejects_probability
from tests.support.streams import seeded


def laplace(scale: float) -> Any:
    return lambda x: np.where(x < 0, np.exp(-np.abs(x) / scale) / 2, 1 - np.exp(-np.abs(x) / scale) / 2)


class TestLaplace:
    @pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
    def test_law_and_mutants(self, scale: float) -> None:
        draws = Laplace(scale).sample(200_000, seeded(1))
        assert not rejects_law(draws, laplace(scale))
        for mutant in (draws / 2, draws / math.sqrt(2), np.abs(draws)):
            assert rejects_law(mutant, laplace(scale))
        assert not rejects_independence(draws, Laplace(scale).sample(200_000, seeded(1, "another")))

    def test_epsilon_and_scale(self) -> None:
        law = Laplace.calibrated(0.3, 7.0)
        assert law.scale == pytest.approx(7.0 / 0.3)
        assert Fraction(law.scale) * Fraction(0.3) >= 7
        assert law.epsilon(7.0) == pytest.approx(0.3)
        assert law.epsilon(0.0) == 0.0

    @pytest.mark.parametrize("law", [Laplace, RadialLaplace])
    def test_parameters_out_of_range_are_refused(self, law: Any) -> None:
        for scale in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ParameterError, match=r"^scale"):
                law(scale)
        for epsilon in (0.0, -1.0, math.nan):
            with pytest.raises(ParameterError, match=r"^epsilon"):
                law.calibrated(epsilon, 1.0)


def radial_draws(dimension: int, scale: float, count: int = 4000) -> Any:
    noise = KeyedNoise(public_secret(2), "radial")
    return np.array([RadialLaplace(scale).sample(dimension, noise.stream(f"{i}", np.zeros(0))) for i in range(count)])


class TestRadial:
    @pytest.mark.parametrize("dimension", [1, 2, 5, 40])
    def test_length_direction_and_mutants(self, dimension: int) -> None:
        scale = 3.0
        draws = radial_draws(dimension, scale)
        lengths = np.linalg.norm(draws, axis=1)

        def length(x: Any) -> Any:
            return gammainc(dimension, x / scale)

        assert not rejects_law(lengths, length)
        # Half the noise; a dimension too many or too few; the length of one coordinate.
        gammas = np.random.default_rng(3)
        assert rejects_law(lengths / 2, length)
        if dimension <= 5:
            assert rejects_law(gammas.gamma(dimension + 1, scale, 4000), length)
        if dimension > 1:
            assert rejects_law(gammas.gamma(1, scale, 4000), length)

        # The first coordinate of a uniform direction: (u + 1) / 2 is Beta((d - 1) / 2, (d - 1) / 2).
        if dimension == 1:
            assert not rejects_probability(int((draws[:, 0] > 0).sum()), len(draws), 0.5)
        else:
            half = (dimension - 1) / 2
            for column in (0, dimension - 1):
                cosine = draws[:, column] / lengths
                assert not rejects_law(cosine, lambda u: betainc(half, half, (u + 1) / 2))
                assert rejects_law(np.abs(cosine), lambda u: betainc(half, half, (u + 1) / 2))
        # Per-coordinate Laplace of the same scale, the flaw of a published mechanism, is another law.
        if dimension == 5:
            independent = Laplace(scale).sample(4000 * dimension, seeded(4)).reshape(-1, dimension)
            assert rejects_law(np.linalg.norm(independent, axis=1), length)

    def test_one_dimension_is_laplace(self) -> None:
        assert not rejects_law(radial_draws(1, 2.0)[:, 0], laplace(2.0))

    def test_no_dimension_is_survived(self) -> None:
        assert RadialLaplace(1.0).sample(0, seeded(5)).shape == (0,)

    def test_epsilon_and_scale(self) -> None:
        law = RadialLaplace.calibrated(0.1, math.sqrt(2))
        assert law.scale == pytest.approx(math.sqrt(2) / 0.1)
        assert Fraction(law.scale) * Fraction(0.1) >= Fraction(math.sqrt(2))
        assert law.epsilon(math.sqrt(2)) == pytest.approx(0.1)
        assert law.epsilon(0.0) == 0.0
