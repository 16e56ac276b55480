"""Factors of the running sum over a fixed horizon of nights: many sums of arriving rows for the noise of three.

*The task.* Rows arrive night by night; x_s is the exact integer sum of the rows of night s (s = 1 … T), and after
each night t the running sum S_t = x_1 + … + x_t is wanted. With A the lower triangular matrix of ones, S = A x.

*The mechanism.* A = B Ĉ with a lower triangular Toeplitz matrix Ĉ of integers. Night t releases

    y_t = Σ_{s ≤ t} ĉ_{t−s} x_s + z_t,

z_t fresh independent noise, rounded Gaussian integers of standard deviation σ. Any reader of y can form B y = A x + B
z: the running sum of night t with noise of standard deviation σ ‖(b_0 … b_{t−1})‖₂ (:meth:`ToeplitzFactor.error_of`),
where Σ_j ĉ_j b_{k−j} = 1 for every k. What is summed is exact, since x and Ĉ are integers; what is decoded is
post-processing.

*The factor.* c_k = C(2k, k)/4^k, the coefficients of (1 − x)^(−1/2), for which B = C; on the grid of 1/64, ĉ_k = ⌊64
c_k + ½⌋, so that a year's last running sum has 2.951 σ instead of 2.944 σ (σ: what one release of one sum on the same
budget has). Cut to ``bands`` coefficients a party keeps its sums of so many nights, at a larger error: 3.31 σ with 128
of a year's, 3.85 σ with 64. It cannot be below √⌈T/b⌉ with any factor of b bands: with w the decoder's last row, wᵀĈ =
1ᵀ, so that of the b entries of w that column s meets the norm is at least 1/‖Ĉe_s‖, and ⌈T/b⌉ columns meet entries of
their own. (Factors whose coefficients are sums of a few geometric series, Dvijotham et al. 2024, keep a few buffers
instead, which shrink by a factor every night: these are not integers, and a sum that is rounded every night is not
exact.)

*Guarantee.* Neighbours differ in one row of one night s, by which x_s moves by at most Δ in l2; arrival nights and
nightly numbers of rows are public, and later rows may be chosen in view of earlier releases. So may sums: x_r may be
formed at what was released before night r, as gradients are at a model. Given what was released before, x_r is then
the same for both neighbours for r ≠ s and moves by at most Δ for r = s, so night t ≥ s is a Gaussian mechanism
(integers plus rounded Gaussian noise, a post-processing of it) of sensitivity ĉ_{t−s} Δ, and nights before s do not
depend on the row. The mechanisms' parameters μ_t = ĉ_{t−s} Δ/σ are fixed beforehand, so by the composition of
Gaussian differential privacy, which holds adaptively, all nights together are μ-Gaussian-DP with

    μ² = Σ_t μ_t² = (Δ/σ)² Σ_{j ≤ T−s} ĉ_j² ≤ (Δ/σ)² ‖ĉ‖₂²,

attained by a row of the first night. A night that is not released, or that misses a party, leaves terms of that sum
out. The same holds where the noise of a night is shared by parties (:func:`dpalgos.secure.noise_shares.share_sigma`:
as private as the rounded Gaussian for every integer sum of any sensitivity), so that each night's own
tolerance of dropouts suffices.

*A night that is drawn again*, with fresh noise, is one more such mechanism, of sensitivity ĉ_{t−s} Δ ≤ ĉ_0 Δ: it adds
(ĉ_0 Δ/σ)² to μ² (of rows that come back (Σ_i ĉ_{ip} Δ/σ)², :attr:`ToeplitzFactor.largest_entry`), not the horizon's
again.

*Rows that come back.* Of a row that takes part in up to k nights, any two of them at least ``separation`` = p apart,
the release moves by Σ_i Ĉ e_{s_i} δ_i, ‖δ_i‖ ≤ Δ. Entries of Ĉ are not negative, so ‖·‖² ≤ Δ² Σ_{i,j} ⟨Ĉe_{s_i},
Ĉe_{s_j}⟩. For r ≤ s, ⟨Ĉe_r, Ĉe_s⟩ = Σ_{m ≤ T−s} ĉ_m ĉ_{m+s−r}, which does not grow with s nor, as ĉ does not
increase, with s − r. The i-th participation is at night 1 + (i−1)p or later, and the i-th and j-th at least |i −
j| p apart, so every term is at most that of the nights 1, 1 + p, …, 1 + (k−1)p: these are the worst, and
:meth:`ToeplitzFactor.norm` is theirs, exactly. (Adaptively: given the past, night t has sensitivity Δ Σ_i ĉ_{t−s_i}
over the participations so far, the same sum.) The same holds of a person, whose rows of one night are one record of
that night, where the nights s_i are public and so the same for both neighbours; not where they depend on when rows
come, which neighbours differ in.

*Fewer bands for rows that come back.* A row of k nights moves Ĉx by ‖Σ_i Ĉe_{1+(i−1)p}‖, whose cross terms ⟨Ĉe_r,
Ĉe_s⟩ vanish where b ≤ p: then the square is at most k‖ĉ‖² and not up to k²‖ĉ‖². :func:`best_bands` takes the b with
the least mean over t of error_t², which is

    ‖Σ_i Ĉe_{1+(i−1)p}‖² · (1/T) Σ_{j<T} (T − j) b_j²,

for b_j² is in the error of the T − j nights after the j-th. It searches all b. The first b entries of the decoder are
those of all bands, and the norm does not fall with b, so ‖·‖² Σ_{j<b} (T − j) b_j²/T does not fall with b and is no
more than the mean: where it exceeds the least mean found, no larger b is better. Numbers of nights decide, and no row.
For T = 365, k = 4 and p = 90 that is b = 90, whose root mean square is 5.84 for 6.91 with all bands. Rows of one night
(k = 1) gain less than 1 % in a year (b = 266: 2.758 for 2.783) and lose more on the last night (3.04 for 2.95).

References
----------
Denisov, McMahan, Rush, Smith, Thakurta, "Improved differential privacy for SGD via optimal private linear operators
on adaptive streams", NeurIPS 2022 (adaptive streams); Fichtenberger, Henzinger, Upadhyay, "Constant matters: fine-
grained error bound on differentially private continual observation", ICML 2023 (the factor); Kalinin, Lampert,
"Banded square root matrix factorization for differentially private model training", NeurIPS 2024, Theorem 2
(participations); Dvijotham, McMahan, Pillutla, Steinke, Thakurta, "Efficient and near-optimal noise generation for
streaming differential privacy", FOCS 2024 (buffers); Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84
(2022), Corollary 2 (composition).
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

import numpy as np

from dpalgos.elementary import l2_norm
from dpalgos.parameters import COUNT, Bounded, ParameterError
from dpalgos.rows import Floats

GRID = 64
"""The first coefficient: the factor's entries are multiples of 1/64."""

LONGEST = 3653
"""Nights of the longest horizon, ten years; from night 5,215 on the grid would round coefficients to zero."""


@cache
def _square_root(nights: int) -> tuple[int, ...]:
    """Return ⌊64 C(2k, k)/4^k + ½⌋ for k below ``nights``, exactly."""
    coefficients, binomial = [], 1
    for k in range(nights):
        coefficients.append((2 * GRID * binomial + 4**k) // (2 * 4**k))
        binomial = binomial * 2 * (2 * k + 1) // (k + 1)
    return tuple(coefficients)


@cache
def _decoder(coefficients: tuple[int, ...]) -> Floats:
    """Return b with Σ_j ĉ_j b_{k−j} = 1 for every k, (T,); one entry after another, so that all processors agree."""
    factor = np.array(coefficients, dtype=np.float64)
    solved, remaining = np.zeros(len(factor)), np.ones(len(factor))
    for k in range(len(factor)):
        solved[k] = remaining[k] / factor[0]
        remaining[k + 1 :] -= factor[1 : len(factor) - k] * solved[k]
    solved.flags.writeable = False
    return solved


_AT_ONCE = 64
"""Numbers of bands whose decoders are solved together."""


def _mean_squares(nights: int, bands: range) -> list[float]:
    """Return (1/T) Σ_j (T − j) b_j² for each number of bands; each b_j as :func:`_decoder` has it, to the bit."""
    whole = np.array(_square_root(nights)[: bands[-1]], dtype=np.float64)
    factors = np.where(np.arange(len(whole)) < np.array(bands)[:, None], whole, 0.0)
    solved, remaining = np.zeros((len(bands), nights)), np.ones((len(bands), nights))
    for k in range(nights):
        solved[:, k] = remaining[:, k] / whole[0]
        reached = remaining[:, k + 1 : k + len(whole)]
        reached -= factors[:, 1 : 1 + reached.shape[1]] * solved[:, k, None]
    weighted = solved * solved * np.arange(nights, 0, -1)
    return [math.fsum(line) / nights for line in weighted.tolist()]


@cache
def best_bands(nights: int, participations: int, separation: int, most: int) -> int:
    """Return the number of bands, up to ``most``, with the least root mean square error of the running sums.

    The smallest of several. Numbers of nights alone decide, alike on all processors; see the module's docstring.

    Raises
    ------
    ParameterError
        For numbers out of range.
    """
    of = {"nights": nights, "participations": participations, "separation": separation}
    whole = _decoder(ToeplitzFactor(**of).coefficients)
    prefixes = np.cumsum(whole * whole * np.arange(nights, 0, -1)) / nights
    best, least = 1, math.inf
    for start in range(1, most + 1, _AT_ONCE):
        tried = range(start, min(start + _AT_ONCE, most + 1))
        norms = [ToeplitzFactor(**of, bands=bands).norm_squared for bands in tried]
        # A margin for rounding: what is not sure to be worse is tried.
        if norms[0] * float(prefixes[start - 1]) > least * (1 + 1e-9):
            break
        for bands, norm, mean in zip(tried, norms, _mean_squares(nights, tried), strict=True):
            if norm * mean < least:
                best, least = bands, norm * mean
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class ToeplitzFactor(Bounded):
    """The integer factor Ĉ of the running sum over a horizon, how far a row moves Ĉx, and how noisy running sums are.

    Parameters
    ----------
    nights : int
        T, the horizon: from 1 to :data:`LONGEST`. Nights are numbered from 1.
    bands : int, optional
        Coefficients that are kept, from 1 to T: a party then needs its sums of the last ``bands`` nights only. All by
        default.
    participations : int
        k, the most nights in which one row takes part.
    separation : int
        The least number of nights between two of them.

    Raises
    ------
    ParameterError
        For numbers out of range.
    """

    nights: int = field(metadata=COUNT)
    bands: int | None = None
    participations: int = field(default=1, metadata=COUNT)
    separation: int = field(default=1, metadata=COUNT)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if self.nights > LONGEST:
            raise ParameterError(
                f"nights is {self.nights}; a horizon has at most {LONGEST} nights: start another horizon after it"
            )
        if self.bands is not None and not 1 <= self.bands <= self.nights:
            raise ParameterError(f"bands is {self.bands}; it must lie between 1 and the horizon's {self.nights} nights")
        if (self.participations - 1) * self.separation >= self.nights:
            raise ParameterError(
                f"{self.participations} participations at least {self.separation} nights apart do not fit into "
                f"{self.nights} nights; declare fewer participations"
            )

    @property
    def coefficients(self) -> tuple[int, ...]:
        """ĉ_0 … ĉ_{T−1}: not negative, not increasing."""
        kept = self.bands or self.nights
        return _square_root(self.nights)[:kept] + (0,) * (self.nights - kept)

    @property
    def norm_squared(self) -> int:
        """The square of how far a row moves Ĉx, where it moves the sum of a night by 1: an integer, exactly."""
        column, moved = self.coefficients, [0] * self.nights
        for start in range(0, self.participations * self.separation, self.separation):
            for place, coefficient in enumerate(column[: self.nights - start], start):
                moved[place] += coefficient
        return sum(entry * entry for entry in moved)

    @property
    def largest_entry(self) -> int:
        """Largest change of one night's entry of Ĉx by a row that moves the sum of a night by 1.

        The most of Σ_i ĉ_{t−s_i} over participations: ĉ does not increase, and they are ``separation`` nights apart.
        """
        return sum(self.coefficients[: self.participations * self.separation : self.separation])

    @property
    def norm(self) -> float:
        """The square root of :attr:`norm_squared`, rounded up."""
        squared = self.norm_squared
        root = math.sqrt(squared)
        return root if Fraction(root) ** 2 >= squared else math.nextafter(root, math.inf)

    @property
    def kept_nights(self) -> int:
        """The number of nights whose sums a party needs at once."""
        return self.bands or self.nights

    def decoder(self, night: int) -> Floats:
        """Return the weights (night,) of y_1 … y_night whose sum is the running sum of that night."""
        if not 1 <= night <= self.nights:
            raise ParameterError(f"night is {night}; it must lie between 1 and the horizon's {self.nights} nights")
        return _decoder(self.coefficients)[:night][::-1]

    def amplification(self, night: int) -> float:
        """Return the deviation of a running sum's noise over that of the noise of one night."""
        return l2_norm(self.decoder(night))

    def error_of(self, night: int) -> float:
        """Return the deviation of a running sum's noise, in units of that of one release of one sum at the same cost.

        In closed form: ‖Ĉe_1‖₂ ‖(b_0 … b_{night−1})‖₂, exact but for rounding to 15 digits.
        """
        return self.norm * self.amplification(night)

    @property
    def root_mean_square_error(self) -> float:
        """The root mean square of :meth:`error_of` over all nights."""
        squares = self.decoder(self.nights)[::-1] ** 2 * np.arange(self.nights, 0, -1)
        return self.norm * math.sqrt(math.fsum(squares.tolist()) / self.nights)
