"""Discrete Gaussian and discrete Laplace: exact laws, OpenDP and mpmath as oracles."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from dpalgos.mechanisms import _precise
from dpalgos.mechanisms.distributions import DiscreteGaussian, DiscreteLaplace, RoundedGaussian, _table
from dpalgos.parameters import ParameterError
from tests.support.statistics import differs, rejects_independence, rejects_law, rejects_probability
from tests.support.streams import ChosenWords, CountedWords, seeded


def gaussian_distribution(sigma: float) -> Callable[[Any], Any]:
    reach = int(40 * sigma) + 40
    values = np.arange(-reach, reach + 1)
    cumulated = np.cumsum(np.exp(-(values**2) / (2.0 * sigma**2)))
    return lambda k: cumulated[np.asarray(k, dtype=np.int64) + reach] / cumulated[-1]


def laplace_distribution(scale: float) -> Callable[[Any], Any]:
    p = math.exp(-1.0 / scale)

    def below(k: Any) -> Any:
        k = np.asarray(k, dtype=np.float64)
        return np.where(k < 0, p ** np.maximum(-k, 0) / (1 + p), 1 - p ** np.maximum(k + 1, 0) / (1 + p))

    return below


class TestDiscreteGaussian:
    @pytest.mark.parametrize("sigma", [0.5, 1.0, 3.7, 100.0, 1024.0, 1025.0, 5e4])
    def test_law_and_mutants(self, sigma: float) -> None:
        draws = DiscreteGaussian(sigma).sample(200_000, seeded(1))
        law = gaussian_distribution(sigma)
        assert draws.dtype == np.int64
        assert not rejects_law(draws, law)
        for mutant in (
            DiscreteGaussian(sigma / 2).sample(200_000, seeded(1)),
            DiscreteGaussian(sigma / math.sqrt(2)).sample(200_000, seeded(1)),
            np.abs(draws),
        ):
            assert rejects_law(mutant, law)

    @pytest.mark.parametrize("sigma", [0.3, 0.8, 2.5])
    def test_each_small_integer_has_its_probability(self, sigma: float) -> None:
        draws = DiscreteGaussian(sigma).sample(300_000, seeded(2))
        values = np.arange(-8, 9)
        weights = np.exp(-(np.arange(-60, 61) ** 2) / (2 * sigma**2))
        for k, probability in zip(values, np.exp(-(values**2) / (2 * sigma**2)) / weights.sum(), strict=True):
            assert not rejects_probability(int((draws == k).sum()), len(draws), float(probability), 1e-9 / 17)

    def test_the_rounded_gaussian_is_another_law_at_small_sigma(self) -> None:
        assert rejects_law(RoundedGaussian(0.5).sample(200_000, seeded(3)), gaussian_distribution(0.5))

    @pytest.mark.parametrize("sigma", [2.0**-20, 0.3, 1.0, 12.5, 1024.0])
    def test_table_agrees_with_mpmath_to_the_last_bit(self, sigma: float) -> None:
        heads, tails = _table(sigma)
        thresholds = [(int(head) << 64) | int(tail) for head, tail in zip(heads, tails, strict=True)][::-1]
        assert thresholds == sorted(thresholds, reverse=True)
        with mpmath.workprec(400):
            s = mpmath.mpf(sigma)
            reach = int(22 * sigma) + 3
            weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * s**2)) for k in range(reach)]
            total = 2 * mpmath.fsum(weights) - 1
            for i in {0, 1, int(sigma), int(5 * sigma), int(12 * sigma), len(thresholds) - 1}:
                if i < len(thresholds):
                    exact = 2 * mpmath.fsum(weights[i + 1 :]) / total * 2**127
                    assert 0 <= exact - thresholds[i] < 1 + 1e-9
            assert 2 * mpmath.fsum(weights[len(thresholds) + 1 :]) / total * 2**127 < 1 + 1e-9

    @pytest.mark.parametrize("sigma", [0.3, 1.0, 12.5, 1024.0])
    def test_words_beside_a_threshold_are_decided_exactly(self, sigma: float) -> None:
        heads, tails = _table(sigma)
        thresholds = [(int(head) << 64) | int(tail) for head, tail in zip(heads, tails, strict=True)][::-1]
        words: list[int] = []
        expected: list[int] = []
        for i in sorted({0, 1, len(thresholds) // 3, len(thresholds) // 2, len(thresholds) - 2}):
            # u < T_i means more than i.
            for u in (thresholds[i] - 1, thresholds[i]):
                words += [((u >> 64) << 1) | 1, u & (2**64 - 1)]
                expected.append(-sum(u < threshold for threshold in thresholds))
        assert DiscreteGaussian(sigma).sample(len(expected), ChosenWords(words)).tolist() == expected

    @pytest.mark.parametrize("sigma", [1025.0, 2.0**14, 1e6, 2.0**30])
    def test_rejection_probability_agrees_with_mpmath_and_stays_below_its_bound(self, sigma: float) -> None:
        with mpmath.workprec(1500):
            s = mpmath.mpf(sigma)

            def mean(k: int) -> Any:
                root = mpmath.sqrt(2) * s
                cell = mpmath.erf((k + mpmath.mpf(0.5)) / root) - mpmath.erf((k - mpmath.mpf(0.5)) / root)
                return mpmath.exp(mpmath.mpf(k) ** 2 / (2 * s**2)) * cell

            tail = _precise.GaussianTail(sigma)
            for k in (0, 1, int(sigma), int(6 * sigma), int(13.2 * sigma)):
                exact = 1 - mean(0) / mean(k)
                assert float(exact) == pytest.approx(float(tail.excess(k)), rel=1e-12, abs=1e-60)
                assert 0 <= exact <= mpmath.mpf(k) ** 2 / (23 * s**4)

    def test_a_low_coin_rejects_and_a_proposal_is_drawn_again(self) -> None:
        sigma = 2000.0
        # A first word in the far tail proposes about 8 sigma; the coin zero rejects it; the next coin is high.
        far, near = 2**13 << 1, 2**62
        words = [far, 0, 0, 0, near, 0, 2**63, 0]
        proposal = RoundedGaussian(sigma).sample(1, ChosenWords([far, 0]))[0]
        kept = RoundedGaussian(sigma).sample(1, ChosenWords([near, 0]))[0]
        assert proposal > 7 * sigma > kept
        stream = ChosenWords(words)
        assert DiscreteGaussian(sigma).sample(1, stream).tolist() == [kept]
        assert stream.left == 0
        # The same proposal with a coin just above the rejection probability is kept.
        excess = _precise.GaussianTail(sigma).excess(int(proposal))
        coin = int(float(excess) * 2.0**64) + 2**20
        assert DiscreteGaussian(sigma).sample(1, ChosenWords([far, 0, coin, 0])).tolist() == [proposal]
        assert coin / 2**64 < float(proposal) ** 2 / (23 * sigma**4), "this coin must have been decided precisely"
        # With a coin just below, it is not.
        below = coin - 2**21
        assert DiscreteGaussian(sigma).sample(1, ChosenWords([far, 0, below, 0, near, 0, 2**63, 0])).tolist() == [kept]

    def test_opendp_draws_the_same_law(self) -> None:
        import opendp.prelude as dp

        dp.enable_features("contrib")
        space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
        for sigma in (1.0, 20.0, 3000.0):
            theirs = np.array(dp.m.make_gaussian(*space, scale=sigma)([0] * 4000))
            ours = DiscreteGaussian(sigma).sample(200_000, seeded(4))
            assert not differs(theirs, ours)
            assert differs(theirs, DiscreteGaussian(sigma / 2).sample(200_000, seeded(4)))
            assert differs(theirs, DiscreteGaussian(sigma * math.sqrt(2)).sample(200_000, seeded(4)))
            # Their privacy map for an l2 sensitivity of 3 is our rho.
            assert dp.m.make_gaussian(*space, scale=sigma).map(3.0) == pytest.approx(DiscreteGaussian(sigma).rho(3.0))

    @pytest.mark.parametrize("sigma", [2.0**-20, 0.3, 1.0, 1024.0, 1024.5, 2.0**22, 2.0**22 + 1, 2.0**43 + 1, 2.0**44])
    def test_total_variation_is_below_its_bound(self, sigma: float) -> None:
        law = DiscreteGaussian(sigma)
        assert law.total_variation() < 2.0**-100

    @pytest.mark.parametrize("sensitivity", [1.0, math.sqrt(2), 1e6])
    def test_rho_in_closed_form(self, sensitivity: float) -> None:
        for sigma in (0.5, 10.0, 1e7):
            rho = DiscreteGaussian(sigma).rho(sensitivity)
            assert Fraction(rho) >= Fraction(sensitivity) ** 2 / Fraction(sigma) ** 2 / 2
            assert rho == pytest.approx(sensitivity**2 / (2 * sigma**2), rel=1e-14)

    @pytest.mark.parametrize("sigma", [0.0, -1.0, 2.0**-21, 2.0**45, math.inf, math.nan])
    def test_sigma_out_of_range_is_refused(self, sigma: float) -> None:
        with pytest.raises(ParameterError, match=r"sigma.*2\^-20"):
            DiscreteGaussian(sigma)

    def test_draws_are_independent(self) -> None:
        draws = DiscreteGaussian(50.0).sample(100_000, seeded(5))
        assert not rejects_independence(draws[1:], draws[:-1])
        assert not rejects_independence(draws, DiscreteGaussian(50.0).sample(100_000, seeded(5, "another")))
        assert rejects_independence(draws, DiscreteGaussian(80.0).sample(100_000, seeded(5)))


class TestDiscreteLaplace:
    @pytest.mark.parametrize("scale", [0.4, 1.0, 7.3, 1e4])
    def test_law_and_mutants(self, scale: float) -> None:
        draws = DiscreteLaplace(scale).sample(200_000, seeded(6))
        law = laplace_distribution(scale)
        assert not rejects_law(draws, law)
        assert rejects_law(np.abs(draws), law)
        assert rejects_law(DiscreteLaplace(scale / 2).sample(200_000, seeded(6)), law)
        assert rejects_law(DiscreteLaplace(scale * math.sqrt(2)).sample(200_000, seeded(6)), law)

    @pytest.mark.parametrize("scale", [2.0**-10, 0.2, 1.0, 12.5, 1e6, 2.0**32])
    def test_draws_agree_with_high_precision(self, scale: float) -> None:
        generator = np.random.default_rng(7)
        words: list[int] = []
        expected: list[int] = []
        with mpmath.workprec(700):
            t = mpmath.mpf(scale)
            p = mpmath.exp(-1 / t)
            for trial in range(120):
                head = int(generator.integers(1, 2**62)) >> int(generator.integers(0, 62))
                numerator = (head << 64) | int(generator.integers(0, 2**63))
                if trial % 2:
                    # One cell beside the boundary P(|k| > i).
                    boundary = 2 * p ** (int(scale * generator.random() * 20) + 1) / (1 + p)
                    numerator = int(mpmath.floor(boundary * 2**127)) + (1 if trial % 4 == 1 else -1)
                if not 2**20 < numerator < 2**127:
                    continue
                exponent = -mpmath.log((2 * numerator + 1) / mpmath.mpf(2) ** 128) - mpmath.log((1 + p) / 2)
                words += [(numerator >> 64) << 1, numerator & (2**64 - 1)]
                expected.append(int(mpmath.floor(t * exponent)))
        assert len(expected) > 30
        assert DiscreteLaplace(scale).sample(len(expected), ChosenWords(words)).tolist() == expected

    def test_an_open_draw_reads_on_until_it_is_decided(self) -> None:
        with mpmath.workprec(700):
            p = mpmath.exp(-mpmath.mpf(1) / 3)
            boundary = int(mpmath.floor(2 * p / (1 + p) * 2**191))
        head, middle, last = boundary >> 128, (boundary >> 64) & (2**64 - 1), boundary & (2**64 - 1)
        for word, value in ((last - 1, 1), (last + 1, 0)):
            stream = ChosenWords([head << 1, middle, word])
            assert DiscreteLaplace(3.0).sample(1, stream).tolist() == [value]
            assert stream.left == 0
        zeros = DiscreteLaplace(3.0).sample(1, ChosenWords([0, 0, 0, 2**40]))[0]
        assert zeros == pytest.approx(3 * math.log(2) * 215, rel=0.02)

    def test_two_words_a_draw(self) -> None:
        stream = CountedWords(seeded(8))
        DiscreteLaplace(5.0).sample(10_000, stream)
        assert stream.read == 20_000

    def test_opendp_draws_the_same_law(self) -> None:
        import opendp.prelude as dp

        dp.enable_features("contrib")
        space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
        for scale in (1.0, 30.0):
            theirs = np.array(dp.m.make_laplace(*space, scale=scale)([0] * 4000))
            assert not differs(theirs, DiscreteLaplace(scale).sample(200_000, seeded(9)))
            assert differs(theirs, DiscreteLaplace(scale / 2).sample(200_000, seeded(9)))
            assert dp.m.make_laplace(*space, scale=scale).map(2) == pytest.approx(DiscreteLaplace(scale).epsilon(2.0))

    def test_epsilon_in_closed_form_and_back(self) -> None:
        law = DiscreteLaplace.calibrated(0.1, 2.0)
        assert law.scale == pytest.approx(20.0)
        assert Fraction(law.scale) * Fraction(0.1) >= 2
        assert law.epsilon(2.0) == pytest.approx(0.1)
        assert Fraction(law.epsilon(3.0)) >= 3 / Fraction(law.scale)
        # The ratio of probabilities at neighbours is exactly exp(epsilon).
        cdf = laplace_distribution(4.0)
        masses = [float(cdf(k) - cdf(k - 1)) for k in range(-20, 21)]
        assert max(math.log(a / b) for a, b in zip(masses[1:], masses, strict=False)) == pytest.approx(0.25)

    @pytest.mark.parametrize("scale", [0.0, -1.0, 2.0**33, math.nan, math.inf])
    def test_scale_out_of_range_is_refused(self, scale: float) -> None:
        with pytest.raises(ParameterError, match=r"scale.*2\^-10"):
            DiscreteLaplace(scale)
        with pytest.raises(ParameterError):
            DiscreteLaplace.calibrated(0.0, 1.0)
