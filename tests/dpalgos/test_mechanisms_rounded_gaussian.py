"""Rounded Gaussian integers: the exact law, decided bit by bit, and independence between draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.parameters import ParameterError
from dpalgos.rows import NoiseSource, RandomStream, normals
from tests.support.statistics import rejects_independence, rejects_law, rejects_probability
from tests.support.streams import ChosenWords, CountedWords, seeded

SIGMAS = (2.0**-20, 0.3, 1.0, 7.5, 1e3, 1e6, 2.0**22, 2.0**22 + 1, 1e9, 2.0**36 - 3, 2.0**44)
SMALL = tuple(sigma for sigma in SIGMAS if sigma <= 2.0**22)
LARGE = tuple(sigma for sigma in SIGMAS if sigma > 2.0**22)
_ONE = mpmath.mpf(1)


def distribution(sigma: float) -> Callable[[Any], Any]:
    return lambda k: ndtr((k + 0.5) / sigma)


def deviation(tail: Any) -> Any:
    """Return x with 2 Phi(-x) = tail: the oracle solves for x, the sampler compares tails."""
    return mpmath.sqrt(2) * mpmath.erfinv(1 - tail)


def split(numerator: int, sign: int) -> list[int]:
    """Return the two words that hold a 127-bit numerator and a sign."""
    return [((numerator >> 64) << 1) | sign, numerator & (2**64 - 1)]


class TestLaw:
    @pytest.mark.parametrize("sigma", SIGMAS)
    def test_matches_and_mutants_do_not(self, sigma: float) -> None:
        draws = RoundedGaussian(sigma).sample(200_000, seeded(1))
        assert draws.dtype == np.int64
        assert not rejects_law(draws, distribution(sigma))
        if sigma >= 0.3:
            # Half the noise, a missing sqrt(2), five per cent too little, one side only, shifted by half a sigma.
            mutants = {
                "half": RoundedGaussian(sigma / 2).sample(200_000, seeded(1)),
                "root two": RoundedGaussian(sigma / math.sqrt(2)).sample(200_000, seeded(1)),
                "one-sided": np.abs(draws),
                "shifted": draws + math.ceil(sigma / 2),
            }
            for name, mutant in mutants.items():
                assert rejects_law(mutant, distribution(sigma)), name

    @pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
    def test_each_small_integer_has_its_probability(self, sigma: float) -> None:
        draws = RoundedGaussian(sigma).sample(300_000, seeded(2))
        values = range(-6, 7)
        for k in values:
            probability = float(ndtr((k + 0.5) / sigma) - ndtr((k - 0.5) / sigma))
            assert not rejects_probability(int((draws == k).sum()), len(draws), probability, 1e-9 / len(values))
        # The discrete Gaussian of the same sigma is another law, and noticed at small sigma.
        weights = np.exp(-(np.arange(-40, 41) ** 2) / (2 * sigma**2))
        discrete = float(weights[40] / weights.sum())
        assert (sigma > 1) or rejects_probability(int((draws == 0).sum()), len(draws), discrete)

    @pytest.mark.parametrize("sigma", [1e6, 1e9, 2.0**44])
    def test_low_bits_are_uniform_at_large_sigma(self, sigma: float) -> None:
        draws = RoundedGaussian(sigma).sample(200_000, seeded(3))
        for bit in range(12):
            ones = int(((draws >> bit) & 1).sum())
            assert not rejects_probability(ones, len(draws), 0.5, 1e-9 / 12)
        # The mutant: continuous noise of float32 precision has zeros at the end.
        rough = normals(seeded(3), 200_000).astype(np.float32)
        coarse = (np.float32(sigma) * rough).astype(np.int64)
        assert sigma < 1e9 or rejects_probability(int((coarse & 1).sum()), len(coarse), 0.5)

    def test_signs_and_magnitudes_are_independent_between_neighbours(self) -> None:
        draws = RoundedGaussian(1e4).sample(200_000, seeded(4))
        assert not rejects_independence(draws[:-1], draws[1:])
        assert rejects_independence(draws[:-1], draws[:-1] + draws[1:])


class TestDecisions:
    @pytest.mark.parametrize("sigma", SMALL)
    def test_boundaries_are_decided_as_in_high_precision(self, sigma: float) -> None:
        law = RoundedGaussian(sigma)
        farthest = int(12 * sigma)
        words: list[int] = []
        expected: list[int] = []
        with mpmath.workprec(600):
            for k in sorted({0, 1, 2, 3, farthest // 7, farthest // 3, farthest // 2, farthest}):
                tail = mpmath.erfc((k + _ONE / 2) / (mpmath.sqrt(2) * mpmath.mpf(sigma)))
                cell = int(mpmath.floor(tail * 2**127))
                # The cell that holds the boundary is the one allowed error; its neighbours must be right.
                for numerator, value in ((cell - 1, k + 1), (cell + 1, k)):
                    if 2**30 < numerator < 2**127:
                        exact = mpmath.floor(sigma * deviation((numerator + _ONE / 2) / 2**127) + _ONE / 2)
                        assert int(exact) == value
                        words += split(numerator, 0) + split(numerator, 1)
                        expected += [value, -value]
        stream = ChosenWords(words)
        assert law.sample(len(expected), stream).tolist() == expected
        assert stream.left == 0
        assert len(expected) > 0 or sigma < 0.01

    @pytest.mark.parametrize("sigma", SMALL)
    def test_the_second_word_decides_inside_a_cell_of_the_first(self, sigma: float) -> None:
        # Both extremes of the second word on the first word that holds a boundary give the two neighbours.
        with mpmath.workprec(600):
            k = max(1, int(sigma))
            tail = mpmath.erfc((k + _ONE / 2) / (mpmath.sqrt(2) * mpmath.mpf(sigma)))
            head = int(mpmath.floor(tail * 2**63))
        if head:
            words = [head << 1, 0, head << 1, 2**64 - 1]
            assert RoundedGaussian(sigma).sample(2, ChosenWords(words)).tolist() == [k + 1, k]

    @pytest.mark.parametrize("sigma", SMALL)
    def test_random_draws_agree_with_high_precision(self, sigma: float) -> None:
        generator = np.random.default_rng(5)
        # Tails of every order of magnitude, where float64's relative precision is put to the test.
        heads = [int(generator.integers(1, 2**62)) >> int(generator.integers(0, 62)) for _ in range(30)]
        numerators = [(head << 64) | int(generator.integers(0, 2**63)) for head in heads]
        words = [word for numerator in numerators for word in split(numerator, 0)]
        with mpmath.workprec(600):
            expected = [
                int(mpmath.floor(sigma * deviation((numerator + _ONE / 2) / 2**127) + _ONE / 2))
                for numerator in numerators
            ]
        assert RoundedGaussian(sigma).sample(len(expected), ChosenWords(words)).tolist() == expected

    @pytest.mark.parametrize("sigma", LARGE)
    def test_places_in_a_coarse_cell_agree_with_high_precision(self, sigma: float) -> None:
        generator = np.random.default_rng(6)
        size = 2 ** math.ceil(math.log2(sigma / 2**22))
        words: list[int] = []
        expected: list[int] = []
        with mpmath.workprec(600):
            for trial in range(40):
                head = int(generator.integers(1, 2**62)) >> (0 if trial < 20 else int(generator.integers(0, 50)))
                coarse = int(mpmath.floor(sigma / size * deviation((2 * head + 1) / mpmath.mpf(2) ** 64) + _ONE / 2))
                start, end = (coarse * size - size // 2, coarse * size + size // 2) if coarse else (0, size // 2)
                upper, lower = (mpmath.erfc(t / (mpmath.sqrt(2) * mpmath.mpf(sigma))) for t in (start, end))
                place = int(generator.integers(0, 2**63)) << 65 | int(generator.integers(0, 2**63))
                if trial % 2:
                    # Move to the two cells beside a boundary between integers.
                    k = start + int(generator.integers(0, end - start))
                    boundary = mpmath.erfc((k + _ONE / 2) / (mpmath.sqrt(2) * mpmath.mpf(sigma)))
                    share = (upper - boundary) / (upper - lower)
                    place = int(mpmath.floor(share * 2**128)) + (1 if trial % 4 == 1 else -1)
                tail = upper - (place + _ONE / 2) / 2**128 * (upper - lower)
                value = int(mpmath.floor(sigma * deviation(tail) + _ONE / 2))
                words += [head << 1 | trial % 2, 2**63, place >> 64, place & (2**64 - 1)]
                expected.append(-value if trial % 2 else value)
        assert RoundedGaussian(sigma).sample(len(expected), ChosenWords(words)).tolist() == expected

    def test_the_granted_error_of_the_quantile_is_generous(self) -> None:
        # The proof grants scipy's ndtri a relative error of 2^-42; it must be far better than that.
        generator = np.random.default_rng(7)
        tails = generator.random(75) * 2.0 ** -generator.integers(1, 129, 75)
        with mpmath.workprec(600):
            for tail in map(float, tails):
                exact = deviation(2 * mpmath.mpf(tail))
                assert abs(-float(ndtri(tail)) / exact - 1) < 2.0**-48 or abs(-float(ndtri(tail)) - exact) < 2.0**-51

    @pytest.mark.parametrize("sigma", SIGMAS)
    def test_the_number_of_words_never_depends_on_values(self, sigma: float) -> None:
        for seed in range(3):
            stream = CountedWords(seeded(seed))
            RoundedGaussian(sigma).sample(1000, stream)
            assert stream.read == (2000 if sigma <= 2.0**22 else 4000)

    def test_extreme_words_are_survived(self) -> None:
        for sigma in SIGMAS:
            words = [0, 0, 0, 0, 1, 0, 2**64 - 1, 2**64 - 1] + [2**64 - 1] * 8
            draws = RoundedGaussian(sigma).sample(4 if sigma <= 2.0**22 else 2, ChosenWords(words))
            assert np.abs(draws).max() <= 13.5 * sigma + 1

    def test_nothing_is_drawn_for_nothing(self) -> None:
        assert RoundedGaussian(3.0).sample(0, seeded(0)).shape == (0,)
        assert RoundedGaussian(1e10).sample(0, seeded(0)).shape == (0,)


class TestStatements:
    @pytest.mark.parametrize("sigma", [*SIGMAS, *(2.0**e for e in range(-19, 44, 6))])
    def test_total_variation_is_below_its_bound(self, sigma: float) -> None:
        law = RoundedGaussian(sigma)
        assert 2.0**-127 <= law.total_variation() < 2.0**-101

    @pytest.mark.parametrize("sensitivity", [1.0, math.sqrt(2), 2**20 * math.sqrt(2), 0.1])
    @pytest.mark.parametrize("sigma", [0.3, 1.0, 1e6])
    def test_mu_is_sensitivity_over_sigma(self, sensitivity: float, sigma: float) -> None:
        from fractions import Fraction

        mu = RoundedGaussian(sigma).mu(sensitivity)
        assert Fraction(mu) >= Fraction(sensitivity) / Fraction(sigma)
        assert mu == pytest.approx(sensitivity / sigma, rel=1e-15)
        assert RoundedGaussian(sigma).mu(0.0) == 0.0

    def test_rounding_commutes_with_integer_sums(self) -> None:
        # The heart of the proof; for a sum that is no integer vector it fails.
        generator = np.random.default_rng(8)
        sums = generator.integers(-(2**30), 2**30, 10_000).astype(np.float64)
        noise = generator.normal(0, 50, 10_000)
        assert np.array_equal(np.floor(sums + noise + 0.5), sums + np.floor(noise + 0.5))
        halves = sums + 0.5
        assert not np.array_equal(np.floor(halves + noise + 0.5), halves + np.floor(noise + 0.5))

    @pytest.mark.parametrize("sigma", [0.0, -1.0, 2.0**-21, 2.0**44 + 2.0**10, math.inf, math.nan])
    def test_sigma_out_of_range_is_refused(self, sigma: float) -> None:
        with pytest.raises(ParameterError, match=r"2\^-20.*2\^44"):
            RoundedGaussian(sigma)


class IgnoresValue:
    """A mutant source: the stream depends on the step alone, so a changed value meets the old noise."""

    def __init__(self, identity: str) -> None:
        self._source = KeyedNoise(public_secret(9), identity)

    def stream(self, step: str, value: Any) -> RandomStream:
        return self._source.stream(step, np.zeros(1))


class IgnoresIdentity:
    """A mutant source: two releases (two parameter sets, say) share their noise."""

    def __init__(self, identity: str) -> None:
        self._source = KeyedNoise(public_secret(9), "always the same")

    def stream(self, step: str, value: Any) -> RandomStream:
        return self._source.stream(step, value)


def noise_of(source: NoiseSource, value: Any, step: str = "sum") -> Any:
    return RoundedGaussian(1e3).sample(20_000, source.stream(step, value))


class TestIndependenceOfReleases:
    value = np.arange(20_000)

    def test_a_changed_parameter_value_or_step_meets_fresh_noise(self) -> None:
        first = noise_of(KeyedNoise(public_secret(9), "epsilon=1"), self.value)
        others = {
            "parameter": noise_of(KeyedNoise(public_secret(9), "epsilon=2"), self.value),
            "value": noise_of(KeyedNoise(public_secret(9), "epsilon=1"), self.value + 1),
            "step": noise_of(KeyedNoise(public_secret(9), "epsilon=1"), self.value, "another"),
        }
        for name, other in others.items():
            assert not rejects_independence(first, other), name
        again = noise_of(KeyedNoise(public_secret(9), "epsilon=1"), self.value)
        assert np.array_equal(first, again)

    def test_sources_that_reuse_a_stream_are_caught(self) -> None:
        kept_value = noise_of(IgnoresValue("a"), self.value), noise_of(IgnoresValue("a"), self.value + 1)
        assert rejects_independence(*kept_value)
        kept_identity = noise_of(IgnoresIdentity("a"), self.value), noise_of(IgnoresIdentity("b"), self.value)
        assert rejects_independence(*kept_identity)

    def test_rescaled_reuse_is_caught_too(self) -> None:
        stream = KeyedNoise(public_secret(9), "shared")
        small = RoundedGaussian(1e3).sample(20_000, stream.stream("s", self.value))
        large = RoundedGaussian(3e3).sample(20_000, stream.stream("s", self.value))
        assert rejects_independence(small, large)
