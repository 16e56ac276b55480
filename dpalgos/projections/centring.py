"""No projection, and the noisy mean subtracted."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import GaussianAlgorithm, NeighbouringPair, OneSum, ProjectionAlgorithm, antipodal_pair, grid
from dpalgos.elementary import l2_norm
from dpalgos.features.public_map import PublicMap, RowFeatures
from dpalgos.guarantees import Setting, Trust
from dpalgos.integer_sums import encode_rows, encoded_radius, row_weights, squared_limit, sum_sensitivity
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.models import LinearModel, Projection, released_kind
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows, clip_to_unit_ball, sanitise


@register("projections", "identity")
@dataclass(frozen=True, kw_only=True)
class Identity(PublicMap):
    """Keep every feature.

    Guarantee
    ---------
    No privacy cost: the map is made from the number of features alone.
    """

    source: ClassVar[str] = "the identity"

    def output_dimension(self, dimension: int) -> int:
        """Return the same number."""
        return dimension

    def map_for(self, dimension: int) -> Projection:
        """Return the unit matrix."""
        return Projection(basis=np.eye(dimension))


@released_kind("centred-rows")
@dataclass(frozen=True, slots=True)
class CentredRows(RowFeatures):
    """The map x ↦ (x − mean)/2: where rows and mean are in the unit ball it stays there; linear models stay linear.

    Parameters
    ----------
    mean : array (d,)
        Of norm at most 1.
    """

    mean: Floats

    @property
    def dimension(self) -> int:
        """Number of features d, which stays."""
        return len(self.mean)

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, d)."""
        return np.asarray((np.asarray(features, dtype=np.float64) - self.mean) / 2.0)

    def before(self, model: LinearModel) -> LinearModel:
        """Return the model of rows before this map that scores them as ``model`` does after it."""
        weights = model.weights / 2.0
        return LinearModel(weights=weights, intercept=model.intercept - weights @ self.mean)


@register("projections", "private-centring")
@dataclass(frozen=True, kw_only=True)
class PrivateCentring(GaussianAlgorithm, OneSum, ProjectionAlgorithm):
    """Release the noisy sum of all rows once; the trainer then reads half the difference of each row from that mean.

    Rows of a table have much in common (every column positive, most of its categories rare): what they share fills the
    unit ball and the gradients, and tells classes apart by nothing. A small part of the budget takes it out.

    Guarantee
    ---------
    The budget: one Gaussian mechanism on a sum of integers. Each row is encoded with norm at most R
    (:func:`~dpalgos.integer_sums.encode_rows`), so that the sum moves in l2 by at most 2R where a row is
    replaced (attained by antipodal rows) and by R against a null record, which adds nothing. The mean, its shrinkage
    and the map are post-processing. Each row is mapped by itself and stays in the unit ball, since ‖x‖ ≤ 1, ‖m‖ ≤ 1 and
    ‖x − m‖/2 ≤ 1: an algorithm that reads the mapped rows has the sensitivity it states. Numerics are exact.

    The mean m of n rows, whose noise has the public deviation s a coordinate, is multiplied by (1 − d s²/‖m‖²)₊ (James
    & Stein 1961), so that where the noise is all there is, rows stay where they are.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated

    References
    ----------
    Sun, Suresh, Menon, "The importance of feature preprocessing for differentially private linear optimization",
    arXiv:2307.11106 (2023).
    """

    source: ClassVar[str] = "Sun, Suresh, Menon 2023, section 4: features centred privately"
    people: ClassVar[str] = "each of k rows has a norm of at most R/k, so their sum has a norm of at most R"
    # Of all parties' rows together, by a curator or by sums: no aggregation of parties' own means is registered.
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)
    measured: ClassVar[str] = "sum of the rows, l2"

    def output_dimension(self, dimension: int) -> int:
        """Return the same number."""
        return dimension

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the sum of rows of norm at most 1."""
        return sum_sensitivity(1.0, setting.neighbours)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact sum, in units of the rows."""
        return self.contribution(self.initial(setting), rows, setting) / self._scale(setting)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return antipodal rows, or one and a null record."""
        return antipodal_pair(setting)

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each coordinate of the sum."""
        radius = encoded_radius(1.0, self._scale(setting))
        return RoundedGaussian.calibrated(self.budget, sum_sensitivity(radius, setting.neighbours))

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return the number of features."""
        return (setting.dimension,)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's exact sum of encoded rows; null records add nothing."""
        total = np.zeros(self.sum_shape(setting), dtype=np.int64)
        limit = squared_limit(1.0, self._scale(setting))
        for features, labels, shares in rows.blocks():
            clean, _ = sanitise(features, labels, setting.classes)
            weights = None if shares is None else row_weights(shares, limit)
            total += encode_rows(clean, 1.0, self._scale(setting), weights).sum(axis=0)
        return total

    def result(self, state: Ints, setting: Setting) -> CentredRows:
        """Return the map of the shrunk noisy mean."""
        units = self._scale(setting) * max(setting.rows, 1)
        mean = state / units
        noise = setting.dimension * (self.distribution(setting).sigma * setting.noise_factor / units) ** 2
        length = max(l2_norm(mean) ** 2, np.finfo(np.float64).tiny)
        return CentredRows(mean=clip_to_unit_ball(mean[None, :] * max(0.0, 1.0 - noise / length))[0])

    def _scale(self, setting: Setting) -> float:
        return grid(self.budget, 2.0, 1, setting)
