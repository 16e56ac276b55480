"""Discrete Laplace noise in Pólya shares: the theorem in closed form, the sampler's law, and wrong laws caught.

Chi-square checks raise a false alarm with probability 10^-9; each is run on mutants that it must reject.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpalgos.mechanisms.distributions import DiscreteLaplace
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats, Ints
from dpalgos.secure import noise_shares as laplace_share
from dpalgos.secure.messages import Tolerance
from dpalgos.secure.noise_shares import LaplaceShare, _table, share_distribution
from dpalgos.secure.summation import allotments
from tests.support.statistics import fits, rejects_law
from tests.support.streams import ChosenWords, seeded


def polya_difference(scale: float, shape: float, reach: int) -> Floats:
    """The law of the difference of two negative binomials of real shape, on -reach … reach."""
    one = stats.nbinom(shape, -math.expm1(-1.0 / scale)).pmf(np.arange(reach + 1))
    return np.asarray(np.convolve(one, one[::-1]))


def discrete_laplace(scale: float, reach: int) -> Floats:
    q = math.exp(-1.0 / scale)
    return np.asarray((1 - q) / (1 + q) * np.exp(-np.abs(np.arange(-reach, reach + 1)) / scale))


def folded(law: Floats, count: int, reach: int) -> Floats:
    """The law of the sum of ``count`` independent draws, cut to -reach … reach."""
    total = law
    for _ in range(count - 1):
        total = np.convolve(total, law)
    centre = len(total) // 2
    return np.asarray(total[centre - reach : centre + reach + 1])


# --- the theorem ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "shares"), [(0.3, 2), (1.0, 1), (2.0, 3), (5.0, 7), (0.9, 20)])
def test_exactly_m_shares_make_the_discrete_laplace_law(scale: float, shares: int) -> None:
    """By convolution; shape 1/(m + 1), whole geometric variables and one share too few or too many are other laws."""
    reach = math.ceil(40 * scale) + 5
    target = discrete_laplace(scale, reach)
    right = folded(polya_difference(scale, 1 / shares, reach), shares, reach)
    np.testing.assert_allclose(right, target, rtol=0, atol=1e-12)
    wrong = [
        folded(polya_difference(scale, 1 / (shares + 1), reach), shares, reach),
        folded(polya_difference(scale, 1 / shares, reach), shares + 1, reach),
    ]
    if shares > 1:
        wrong.append(folded(polya_difference(scale, 1.0, reach), shares, reach))
        wrong.append(folded(polya_difference(scale, 1 / shares, reach), shares - 1, reach))
    assert all(np.abs(law - target).max() > 1e-3 for law in wrong)


@pytest.mark.parametrize("shifts", [(1,), (3,), (2, 1)])
def test_the_loss_is_the_exact_one_and_more_shares_cost_no_more(shifts: tuple[int, ...]) -> None:
    """The largest log-ratio over all outcomes, coordinate by coordinate: Delta / scale at most."""
    scale, shares, reach = 2.0, 3, 200
    sensitivity = sum(shifts)
    for present in (shares, shares + 2):
        law = folded(polya_difference(scale, 1 / shares, reach), present, reach)
        centre = slice(reach - 40, reach + 41)
        worst = sum(float(np.abs(np.log(law / np.roll(law, shift)))[centre].max()) for shift in shifts)
        assert worst <= DiscreteLaplace(scale).epsilon(sensitivity) + 1e-6
    law = folded(polya_difference(scale, 1 / (shares + 1), reach), shares, reach)
    assert math.log(law[reach] / law[reach + 1]) > DiscreteLaplace(scale).epsilon(1) + 0.1


def test_the_candidates_kept_are_the_jumps_of_the_law() -> None:
    """E t^(X - Y) from rates of candidates and the chances to keep them, against the closed form of the theorem."""
    scale, shares = 3.0, 4
    share = LaplaceShare(scale, shares)
    lengths = np.arange(1, 2**share._end)
    octaves: Floats = np.exp2(np.floor(np.log2(lengths)))
    kept: Floats = octaves / lengths * np.exp(-lengths / scale)
    rates: Floats = kept / (octaves * shares)
    q = math.exp(-1 / scale)
    for angle in (0.01, 0.3, 1.0, 3.0):
        moved: Floats = np.cos(angle * lengths) - 1
        jumps = math.exp(2 * float(rates @ moved))
        closed = abs((1 - q) / (1 - q * np.exp(1j * angle))) ** (2 / shares)
        assert jumps == pytest.approx(closed, rel=1e-12)


# --- the sampler ------------------------------------------------------------------------------------------------------


COUNT, SCALE, SHARES, REACH = 40_000, 2.5, 3, 110


def shares_of(parties: int, scale: float = SCALE, shares: int = SHARES, *, same_key: bool = False) -> Ints:
    """The sum of so many parties' shares."""
    keys = [0 if same_key else party for party in range(parties)]
    return np.asarray(
        np.sum([LaplaceShare(scale, shares).sample(COUNT, seeded(key)) for key in keys], axis=0), dtype=np.int64
    )


def test_a_share_is_a_polya_difference() -> None:
    for shares in (1, 2, 10, 500):
        law = polya_difference(SCALE, 1 / shares, REACH)
        assert fits(LaplaceShare(SCALE, shares).sample(COUNT, seeded(shares)), law)
    assert not fits(LaplaceShare(SCALE, 10).sample(COUNT, seeded(1)), polya_difference(SCALE, 1 / 11, REACH))


def test_the_sum_of_the_shares_is_discrete_laplace() -> None:
    target = discrete_laplace(SCALE, REACH)
    assert fits(shares_of(SHARES), target)
    assert fits(DiscreteLaplace(SCALE).sample(COUNT, seeded(9)), target)
    more = np.convolve(target, polya_difference(SCALE, 1 / SHARES, REACH))[REACH:-REACH]
    assert fits(shares_of(SHARES + 1), np.asarray(more))


@pytest.mark.parametrize(
    "mutant",
    [
        lambda: shares_of(SHARES, shares=SHARES + 1),
        lambda: shares_of(SHARES, shares=1),
        lambda: shares_of(SHARES - 1),
        lambda: shares_of(SHARES + 1),
        lambda: shares_of(SHARES, same_key=True),
        lambda: shares_of(SHARES, scale=SCALE / math.sqrt(2)),
        lambda: np.abs(shares_of(SHARES)),
    ],
    ids=["shape 1/(m+1)", "geometric", "one missing", "one too many", "one key", "smaller scale", "one-sided"],
)
def test_wrong_sums_are_caught(mutant: Callable[[], Ints]) -> None:
    assert not fits(mutant(), discrete_laplace(SCALE, REACH))


def test_candidates_kept_by_another_rule_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the exponential, without the part 2^j / k, and with half of the octaves left out."""

    def chance(of: Callable[[LaplaceShare, Ints, Ints], Floats]) -> Callable[..., NDArray[np.bool_]]:
        return lambda share, octaves, lengths, coins: of(share, octaves, lengths) > coins[:, 0] * 2.0**-64

    with monkeypatch.context() as patch:
        patch.setattr(LaplaceShare, "_kept", chance(lambda s, j, k: np.exp(-k / s.scale) * 2.0**j / k))
        assert fits(shares_of(SHARES), discrete_laplace(SCALE, REACH)), "the rule itself"
    for rule in (lambda s, j, k: 2.0**j / k, lambda s, j, k: np.exp(-k / s.scale)):
        with monkeypatch.context() as patch:
            patch.setattr(LaplaceShare, "_kept", chance(rule))
            assert not fits(shares_of(SHARES), discrete_laplace(SCALE, REACH))
    monkeypatch.setattr(LaplaceShare, "_end", property(lambda self: 3))
    assert not fits(shares_of(SHARES), discrete_laplace(SCALE, REACH))


def test_the_scale_of_real_sums() -> None:
    """At 2^30 grid units the law is continuous to the eye: Dvoretzky-Kiefer-Wolfowitz at 10^-9 sees 1.6 per cent."""
    scale = 2.0**30

    def cdf(points: Floats) -> Floats:
        return np.asarray(stats.laplace(scale=scale).cdf(points + 0.5))

    for shares in (1, 10):
        total = np.sum([LaplaceShare(scale, shares).sample(40_000, seeded(party)) for party in range(shares)], axis=0)
        assert not rejects_law(total, cdf)
        assert rejects_law(np.rint(0.9 * total), cdf)


def test_doubtful_coins_are_decided_in_high_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    share = LaplaceShare(7.0, 3)
    quick = share.sample(300, seeded(5))
    monkeypatch.setattr(laplace_share, "_DOUBT", 2.0)
    assert np.array_equal(share.sample(300, seeded(5)), quick)


def test_the_coin_is_compared_bit_by_bit() -> None:
    """The 128 bits of exp(-1/7), from a Taylor series of fractions: the coin just below is kept, the next is not."""
    exact = sum(Fraction((-1) ** k, 7**k * math.factorial(k)) for k in range(60))
    coin = math.floor(exact * 2**128)
    share = LaplaceShare(7.0, 3)
    coins = np.array([[c >> 64, c & (2**64 - 1)] for c in (coin, coin + 1)], dtype=np.uint64)
    one = np.ones(2, dtype=np.int64)
    assert share._kept(0 * one, one, coins).tolist() == [True, False]


def test_the_number_of_candidates_is_poisson() -> None:
    for shares in (1, 3, 1000):
        heads, tails = _table(shares)
        exceeds = [(int(head) << 64 | int(tail)) * 2.0**-127 for head, tail in zip(heads, tails, strict=True)][::-1]
        expected = stats.poisson(128 / shares).sf(np.arange(len(exceeds)))
        np.testing.assert_allclose(exceeds[: len(exceeds) // 2], expected[: len(exceeds) // 2], rtol=1e-9)
        assert stats.poisson(128 / shares).sf(len(exceeds)) < 2.0**-126


class Ends:
    """As many candidates as the table has, all of them positive, as long as can be, and kept."""

    def __init__(self, end: int) -> None:
        self._calls = iter([0, ((end - 1) << 58) | (2**57 - 1), 0])

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.full(count, next(self._calls), dtype=np.uint64)

    def generator(self) -> np.random.Generator:
        raise NotImplementedError


def test_no_draw_exceeds_the_stated_bound_and_the_longest_reaches_it() -> None:
    for scale, shares in ((0.05, 1), (3.0, 4), (2.0**31, 2), (2.0**31, 40_000)):
        share = LaplaceShare(scale, shares)
        assert share.sample(1, Ends(share._end))[0] == share.largest
        assert np.abs(share.sample(2_000, seeded(1))).max() <= share.largest
        assert 2.0**share._end >= 90 * scale


def test_sums_of_the_finest_grid_cannot_overflow() -> None:
    for parties, dropouts, colluders in ((5, 1, 2), (1000, 998, 0), (50_000, 5_000, 10_000)):
        tolerance = Tolerance(parties=parties, dropouts=dropouts, colluders=colluders)
        allotments((10,) * parties, share_distribution(DiscreteLaplace(2.0**31), tolerance.unknown_shares, 10))
    with pytest.raises(ParameterError, match=r"2\^62"):
        allotments((1,) * 2_000_000, LaplaceShare(2.0**32, 1))


def test_small_scales_and_no_coordinates() -> None:
    assert not LaplaceShare(2.0**-10, 1).sample(1000, seeded(2)).any()
    assert LaplaceShare(1.0, 2).sample(0, ChosenWords([])).shape == (0,)


def test_what_a_share_says_about_itself() -> None:
    share = share_distribution(DiscreteLaplace(1e6), 3, 50)
    assert share == LaplaceShare(1e6, 3)
    assert DiscreteLaplace(1e6).epsilon(1e6) == pytest.approx(1.0)
    assert all(LaplaceShare(2.0**31, shares).total_variation() < 2.0**-116 for shares in (1, 2, 50, 50_000))
    with pytest.raises(ParameterError, match="scale"):
        LaplaceShare(0.0, 3)
    with pytest.raises(ParameterError, match="shares"):
        LaplaceShare(1.0, 0)


def test_blocks_are_joined() -> None:
    size = laplace_share._BLOCK
    draws = LaplaceShare(2.0**31, 2).sample(2 * size + 5, seeded(3))
    assert draws.shape == (2 * size + 5,)
    assert not np.isin(draws[:size], draws[size:]).mean() > 0.01
