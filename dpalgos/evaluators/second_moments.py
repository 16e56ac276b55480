"""Second moments of rows about their released mean, as one charged release: what principal components are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import GaussianAlgorithm, NeighbouringPair, Work, covariance_work, grid, orthogonal_pair
from dpalgos.elementary import l2_norm
from dpalgos.guarantees import GaussianMu, Setting
from dpalgos.integer_sums import (
    OF_BOUNDED_TRACE,
    encode_into,
    encoded_radius,
    gram_sensitivity,
    packed_gram,
    row_weights,
    squared_limit,
    sum_sensitivity,
)
from dpalgos.mechanisms.distributions import SymmetricRoundedGaussian, pack, packed_size, to_vector, total_mu, unpack
from dpalgos.models import Statistic
from dpalgos.parameters import POSITIVE, ParameterError, between
from dpalgos.registry import register
from dpalgos.rows import (
    Array,
    ArrayRows,
    Block,
    Features,
    Floats,
    Ints,
    Rows,
    accumulate,
    clip_to_unit_ball,
    null_labels,
    null_records,
    pieces,
)

# From this many numbers on, encoding is worth the start of the compiler, as for other sums of squares.
_COMPILED_FROM = 2**25
_PART_ENTRIES = 2**20
_MEAN_COSTS, _LEAST_SHARE = 12.0, 0.02


@dataclass(frozen=True, slots=True)
class MomentsState:
    """The sums released so far.

    Parameters
    ----------
    step : int
        Sums that were released.
    mean : array (w,)
        About which moments are formed, less the declared origin, in units of the rows.
    moments : array
        The noisy packed sum of squares, in grid units.
    """

    step: int
    mean: Floats
    moments: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """The released moments, in units of the rows.

    Parameters
    ----------
    mean : array (w,)
        About which second moments are.
    covariance : array (w, w)
        The noisy (1/n) Σ zzᵀ.
    deviation : float
        Of the noise of an entry off the diagonal; √2 times as much on it.
    mean_deviation : float
        Of the noise of each coordinate of the mean, before it is shrunk; 0 where none is released.
    """

    mean: Floats
    covariance: Floats
    deviation: float
    mean_deviation: float = 0.0


@register("evaluators", "second-moments")
@dataclass(frozen=True, kw_only=True)
class SecondMoments(GaussianAlgorithm):
    """Release the mean of all rows, then Σ zzᵀ with z the row minus that mean, clipped to a radius.

    A row y is x less the declared origin, in the columns that vary. Rows of the declared ranges are no longer than
    ``mean_radius``, so that nothing is clipped where the mean is formed. Rows less their mean are shorter: a smaller
    ``radius`` clips few of them, and the noise grows with its square.

    Guarantee
    ---------
    The budget, by two Gaussian mechanisms of one σ on sums of integers. Each row is encoded with norm at most R on a
    grid (:func:`~dpalgos.integer_sums.encode_rows`).

    *Mean.* Σ ỹ moves in l2 by at most 2R where a row is replaced and by R against a null record. It is multiplied by a
    public integer c and stands on the diagonal of a symmetric matrix, whose Frobenius norm is that of the vector: Δ₀ =
    2cR or cR.

    *Squares.* Given the first release, Σ z̃z̃ᵀ moves in the Frobenius norm by at most Δ₁ = √2 R² or R²
    (:func:`~dpalgos.integer_sums.gram_sensitivity`), for any mean: each z is a function of one row and of what
    is released, and null records add zero.

    Noise of σ on diagonals and σ/√2 off them costs Δ/σ for each sum
    (:class:`~dpalgos.mechanisms.distributions.SymmetricRoundedGaussian`), and the adaptive composition is exactly
    √(Δ₀² + Δ₁²)/σ-GDP (Dong, Roth, Su 2022, Corollary 2); σ makes that μ. The integer c gives the mean its share of μ².
    Without ``center`` there is one sum, of squares about the origin, and Δ₀ = 0. Everything else is post-processing.
    Numerics are exact.

    The noisy mean, with public deviation s per coordinate, is multiplied by (1 − w s²/‖m‖²)₊ (James & Stein 1961):
    where noise is all there is, the declared origin stays.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    center : bool
        Whether the mean is released. Otherwise moments are about the origin.
    origin : float or sequence of float
        Declared middle of each feature.
    varies : sequence of int, optional
        Places of the w features that vary; a constant's noise would only be in the way. Default: all.
    mean_radius : float
        Norm to which y is clipped for the mean.
    radius : float
        Norm to which z is clipped.
    mean_share : float, optional
        Share f of μ² that the mean gets. Default: 12√w/(μn), at least 0.02 and at most ½. The mean's error is then a
        variance of about half of what the noise of the squares reaches: w(2 mean_radius)²/(fμ²n²) for 2√w radius²/(μn).

    References
    ----------
    Dwork, Talwar, Thakurta, Zhang, "Analyze Gauss", STOC 2014; Dong, Roth, Su, JRSS B 84 (2022).
    """

    center: bool = True
    origin: float | Sequence[float] = 0.0
    varies: Sequence[int] | None = None
    mean_radius: float = field(default=1.0, metadata=POSITIVE)
    radius: float = field(default=1.0, metadata=POSITIVE)
    mean_share: float | None = field(default=None, metadata=between(0.01, 0.5))

    source: ClassVar[str] = "ours; Dwork et al. 2014, Algorithm 1, around a released mean"
    people: ClassVar[str] = (
        "in the sum of rows, each of k rows has a norm of at most R/k, so their sum has a norm of at most R; in the "
        f"second moments, {OF_BOUNDED_TRACE}"
    )
    measured: ClassVar[str] = "Σ zzᵀ, Frobenius"

    def check(self, setting: Setting) -> None:
        """Raise where origin and varying features do not fit rows."""
        super().check(setting)
        origin, places = np.asarray(self.origin, dtype=np.float64), self._places(setting)
        dimension = setting.dimension
        if origin.shape not in ((), (dimension,)) or not np.isfinite(origin).all():
            raise ParameterError(
                f"origin has shape {origin.shape}; give one finite number, or one for each of {dimension} features"
            )
        if not len(places) or len(np.unique(places)) < len(places) or not 0 <= places.min() <= places.max() < dimension:
            raise ParameterError(
                f"varies is {list(self.varies or ())}; give different places from 0 to {dimension - 1}, at least one"
            )

    def width(self, setting: Setting) -> int:
        """Return w, the number of features that vary."""
        return len(self._places(setting))

    def steps(self, setting: Setting) -> int:
        """Return 2 sums: of rows and of squares; 1 without the mean."""
        return 1 + self.center

    def work(self, setting: Setting) -> Work:
        """Return that of a covariance, and of another pass for the mean."""
        return replace(covariance_work(setting), passes=self.steps(setting))

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the sum of squares, in units of the squared radius."""
        return gram_sensitivity(1.0, setting.neighbours)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact sum of squares about the origin, as a vector of the same length."""
        state = replace(self.initial(setting), step=self.steps(setting) - 1)
        return to_vector(unpack(self.contribution(state, rows, setting) / self._scale(setting) ** 2))

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return orthogonal rows of norm R about the origin, or one and a null record."""
        pair, places = orthogonal_pair(replace(setting, dimension=self.width(setting))), self._places(setting)
        origin = np.broadcast_to(np.asarray(self.origin, dtype=np.float64), setting.dimension)

        def placed(side: ArrayRows) -> ArrayRows:
            rows = np.zeros((side.count, setting.dimension))
            rows[:, places] = self.radius * side.features
            rows[~null_labels(side.labels, setting.classes)] += origin
            return replace(side, features=rows)

        return replace(pair, left=placed(pair.left), right=placed(pair.right))

    def units(self, setting: Setting) -> int:
        """Return the grid units that a square of the radius is."""
        return int(self._scale(setting)) ** 2

    def distribution(self, setting: Setting) -> SymmetricRoundedGaussian:
        """Return the noise of each packed matrix, in grid units."""
        return SymmetricRoundedGaussian.calibrated(self.budget, math.hypot(*self._moves(setting)), self.width(setting))

    def initial(self, setting: Setting) -> MomentsState:
        """Return the origin, and no squares."""
        self.check(setting)
        width = self.width(setting)
        return MomentsState(step=0, mean=np.zeros(width), moments=np.zeros(packed_size(width), dtype=np.int64))

    def contribution(self, state: MomentsState, rows: Rows, setting: Setting) -> Ints:
        """Return the party's exact sum of rows on a diagonal, and afterwards its sum of squares; null records add 0."""
        if state.step < self.steps(setting) - 1:
            return self._multiple(setting) * pack(np.diag(self._summed(rows, setting)))

        def clean(features: Features, labels: Array) -> Features:
            return self._centred(features, labels, state.mean, self.radius, setting)

        return packed_gram(rows.blocks(), clean, self.width(setting), self._scale(setting), count=setting.rows)

    def update(self, state: MomentsState, noisy_sum: Ints, setting: Setting) -> MomentsState:
        """Keep the shrunk mean, and then the squares."""
        if state.step < self.steps(setting) - 1:
            return replace(state, step=1, mean=self._mean(np.diagonal(unpack(noisy_sum)).astype(np.float64), setting))
        return replace(state, step=state.step + 1, moments=noisy_sum)

    def result(self, state: MomentsState, setting: Setting) -> Statistic:
        """Return the mean, and the packed upper triangle of the noisy (1/n) Σ zzᵀ, in units of the rows."""
        moments = state.moments / self._scale(setting) ** 2 / max(setting.rows, 1) * self.radius**2
        return Statistic(values=np.concatenate([state.mean, moments]))

    def decoded(self, values: Floats, setting: Setting) -> Moments:
        """Return what the numbers of a release are.

        Raises
        ------
        ParameterError
            If there are more or fewer than of rows with so many features.
        """
        width = self.width(setting)
        if values.shape != (width + packed_size(width),):
            raise ParameterError(
                f"a release has shape {values.shape}; for {width} features it must have {width + packed_size(width)} "
                "numbers"
            )
        sigma = self.distribution(setting).sigma * setting.noise_factor
        units = self._scale(setting) ** 2 * max(setting.rows, 1)
        return Moments(
            mean=values[:width],
            covariance=unpack(values[width:]),
            deviation=sigma / math.sqrt(2.0) / units * self.radius**2,
            mean_deviation=sigma / self._mean_units(setting) * self.mean_radius if self.center else 0.0,
        )

    def share(self, setting: Setting) -> float:
        """Return f, the share of μ² that the mean gets, by public numbers alone; 0 where none is released."""
        if not self.center:
            return 0.0
        if self.mean_share is not None:
            return self.mean_share
        signal = total_mu(self.budget) * max(setting.rows, 1) / setting.noise_factor
        return min(max(_MEAN_COSTS * math.sqrt(self.width(setting)) / signal, _LEAST_SHARE), 0.5)

    def _places(self, setting: Setting) -> Ints:
        return np.arange(setting.dimension) if self.varies is None else np.asarray(self.varies, dtype=np.int64)

    def _scale(self, setting: Setting) -> float:
        budget = GaussianMu(total_mu(self.budget) * math.sqrt(1.0 - self.share(setting)))
        return grid(budget, gram_sensitivity(1.0, setting.neighbours), 1, setting)

    def _multiple(self, setting: Setting) -> int:
        """Return c, so that the mean gets its share of μ² at most."""
        radius = encoded_radius(1.0, self._scale(setting))
        share = self.share(setting)
        wanted = math.sqrt(share / (1.0 - share))
        squares, rows = (moved(radius, setting.neighbours) for moved in (gram_sensitivity, sum_sensitivity))
        return max(1, math.floor(wanted * squares / rows))

    def _mean_units(self, setting: Setting) -> float:
        """Return the integers that a mean of norm mean_radius adds up to."""
        return self._multiple(setting) * self._scale(setting) * max(setting.rows, 1)

    def _moves(self, setting: Setting) -> tuple[float, float]:
        """Return Δ₀ and Δ₁, in grid units."""
        radius = encoded_radius(1.0, self._scale(setting))
        rows = self._multiple(setting) * sum_sensitivity(radius, setting.neighbours) if self.center else 0.0
        return math.nextafter(rows, math.inf), gram_sensitivity(radius, setting.neighbours)

    def _centred(self, features: Features, labels: Array, mean: Floats, radius: float, setting: Setting) -> Features:
        """Return rows less origin and mean in units of a radius, (m, w); null records are zero.

        In the rows' own precision: what is rounded is one row.
        """
        null = null_records(features, labels, max(setting.classes, 1))
        places, kind = self._places(setting), features.dtype
        middle = np.broadcast_to(np.asarray(self.origin, dtype=np.float64), setting.dimension)[places] + mean
        # Neighbouring places are a view: choosing among a block's columns costs as much as encoding them.
        together = places[-1] - places[0] + 1 == len(places) and bool((np.diff(places) > 0).all())
        chosen = features[:, places[0] : places[-1] + 1] if together else features[:, places]
        with np.errstate(over="ignore", invalid="ignore"):
            rows = (chosen - middle.astype(kind)) * kind.type(1.0 / radius)
        if null.any():
            rows[null] = 0.0
        return np.asarray(rows)

    def _summed(self, rows: Rows, setting: Setting) -> Ints:
        """Return Σ ỹ over a party's rows, (w,), exactly."""
        width, scale = self.width(setting), self._scale(setting)
        compiled = setting.rows * width >= _COMPILED_FROM

        def add(total: Ints, part: Block) -> None:
            features, labels, shares = part
            centred = self._centred(features, labels, np.zeros(width), self.mean_radius, setting)
            weights = None if shares is None else row_weights(shares, squared_limit(1.0, scale))
            encoded = encode_into(
                np.empty(centred.shape, dtype=np.float64),
                centred,
                1.0,
                scale,
                weights,
                compiled=compiled and centred.dtype == np.float32,
            )
            # Whole numbers below 2^26: float64 holds the sum of a part.
            total += encoded.sum(axis=0).astype(np.int64)

        parts = (
            (features[part], labels[part], None if shares is None else shares[part])
            for features, labels, shares in rows.blocks()
            for part in pieces(len(features), width, _PART_ENTRIES)
        )
        return np.asarray(sum(accumulate(lambda: np.zeros(width, dtype=np.int64), add, parts)))

    def _mean(self, noisy: Floats, setting: Setting) -> Floats:
        """Return the shrunk mean of the noisy sums, in units of the rows, of norm at most that of its radius."""
        units = self._mean_units(setting)
        mean = noisy / units
        noise = len(mean) * (self.distribution(setting).sigma * setting.noise_factor / units) ** 2
        length = max(l2_norm(mean) ** 2, np.finfo(np.float64).tiny)
        return np.asarray(self.mean_radius * clip_to_unit_ball(mean[None, :] * max(0.0, 1.0 - noise / length))[0])
