"""Principal components of released second moments: directions, their variances, and the noise's floor.

All is post-processing of :class:`~dpalgos.evaluators.second_moments.SecondMoments`: of a symmetric A = (1/n) Σ zzᵀ,
(w, w), Ã = A + E is released. E has independent Gaussian entries of standard deviation σ off the diagonal and √2 σ on
it, so that its distribution does not change under rotations. λ̃ᵢ and ṽᵢ are eigenvalues and eigenvectors of Ã.

*Noisy eigenvalues are not variances.* ṽ leans towards the noise, so that λ̃ = ṽᵀAṽ + ṽᵀEṽ is larger than ṽᵀAṽ, the
variance along the released direction. For one eigenvalue λ of A above σ√w and nothing else, λ̃ → λ + wσ²/λ and
ṽᵀAṽ → λ − wσ²/λ. With more of a spectrum the other eigenvalues count as well (Ledoit & Péché 2011; Bun, Bouchaud,
Potters 2017, for additive noise):

    ṽᵢᵀAṽᵢ  →  λ̃ᵢ − 2σ² Σⱼ 1/(λ̃ᵢ − λ̃ⱼ),

which is the same number where A has one eigenvalue: the others' noise is a semicircle, whose sum is wσ²/λ. The simpler
formula is too large by 2 to 6 % of the largest variance where the spectrum falls slowly (300 columns, ratio 0.99);
this one is within 0.5 %. Eigenvalues nearer to each other than σ repel each other by noise alone, so that differences D
enter as D/(D² + σ²). The estimate is 0 where λ̃ < 2σ√w, the edge of the noise, and never below 0.

*Margins* are [max(0, λ̃ − q), λ̃ + q], around λ̃ and not around the estimate: |λ̃ − ṽᵀAṽ| = |ṽᵀEṽ| ≤ ‖E‖₂ for every ṽ,
so with q the 95 % quantile of ‖E‖₂ all of them hold together with probability 0.95, for any A.

*The quantile* is simulated. Householder's reflections make of E/σ a tridiagonal matrix with N(0, 2) on the diagonal and
χ_{w−1}, χ_{w−2}, … on the off-diagonal, of the same eigenvalues (Dumitriu & Edelman 2002); its outermost ones depend on
the first multiple of w^⅓ entries alone (Edelman & Persson 2005).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.parameters import ParameterError
from dpalgos.projections.principal import oriented
from dpalgos.rows import Floats

if TYPE_CHECKING:
    from dpalgos.evaluators.second_moments import Moments

LEVEL = 0.95
"""Probability with which all margins of a release hold."""
SHOWN_SHARE = 0.1
"""Of the total variance, what a component holds whose epsilon is named where none is above the noise."""
_DRAWS, _SEED, _HALVINGS = 8192, 20260117, 16
# Of the tridiagonal matrix, so many times w^(1/3) rows are kept.
_ROWS = 10.0


@cache
def norm_quantile(width: int, level: float = LEVEL) -> float:
    """Return the quantile of ‖E‖₂/σ for symmetric Gaussian noise: about 2√w.

    Parameters
    ----------
    width : int
        w, at least 1.
    level : float
        Probability that ‖E‖₂ stays below, in (0, 1).
    """
    random = np.random.default_rng([_SEED, width])
    kept = min(width, math.ceil(_ROWS * width ** (1.0 / 3.0)))
    diagonal = math.sqrt(2.0) * random.standard_normal((kept, _DRAWS))
    beside = random.chisquare(np.arange(width - 1, width - kept, -1.0)[:, None], (kept - 1, _DRAWS))

    def inside(bound: float) -> NDArray[np.bool_]:
        """Return which draws have all eigenvalues within a bound: then T + bound and bound − T are positive."""
        good = np.ones(diagonal.shape[1], dtype=np.bool_)
        for sign in (1.0, -1.0):
            pivot = bound + sign * diagonal[0]
            good &= pivot > 0.0
            for row in range(1, kept):
                pivot = bound + sign * diagonal[row] - beside[row - 1] / np.where(good, pivot, 1.0)
                good &= pivot > 0.0
        return good

    low, high = 2.0 * math.sqrt(width) - 1.0, 2.0 * math.sqrt(width) + 3.0
    within, wanted = 0, level * _DRAWS
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        good = inside(middle)
        enough = within + int(good.sum()) >= wanted
        # A draw that is within a bound is within each larger one: only the others are looked at above it.
        undecided = good if enough else ~good
        if enough:
            high = middle
        else:
            low, within = middle, within + int(good.sum())
        diagonal, beside = diagonal[:, undecided], beside[:, undecided]
    return high


def variances_along(noisy: Floats, deviation: float) -> Floats:
    """Return estimates of ṽᵢᵀAṽᵢ, the variances along the eigenvectors of a noisy matrix, (w,).

    Parameters
    ----------
    noisy : array (w,)
        All its eigenvalues.
    deviation : float
        σ.
    """
    if deviation <= 0.0:
        return np.maximum(noisy, 0.0)
    apart = noisy[:, None] - noisy[None, :]
    estimates = noisy - 2.0 * deviation**2 * (apart / (apart**2 + deviation**2)).sum(axis=1)
    above = noisy >= 2.0 * deviation * math.sqrt(len(noisy))
    return np.where(above, np.clip(estimates, 0.0, noisy), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Principal components of released moments, the largest first, in units of the rows.

    Parameters
    ----------
    directions : array (w, k)
        Orthonormal columns.
    noisy : array (w,)
        All eigenvalues of the noisy matrix.
    variances : array (k,)
        Estimates of the variance along each direction.
    low, high : array (k,)
        95 % margins, which hold together.
    total : float
        The noisy trace, without bias; never below the sum of the estimates.
    deviation : float
        σ.
    quantile : float
        q, below which the noise's spectral norm stays with probability 0.95.
    floor : float
        What rows without any variance stay below: q, and what the noise of the released mean adds to second moments
        about it, χ²(w) times its variance, at its own 95 % quantile.
    """

    directions: Floats
    noisy: Floats
    variances: Floats
    low: Floats
    high: Floats
    total: float
    deviation: float
    quantile: float
    floor: float

    @property
    def shares(self) -> Floats:
        """Each component's share of the total variance, (k,)."""
        return np.asarray(self.variances / self.total) if self.total > 0.0 else np.zeros_like(self.variances)

    @property
    def above(self) -> int:
        """Number of noisy eigenvalues above the floor."""
        return int((self.noisy > self.floor).sum())

    @property
    def less_noise(self) -> float:
        """By which factor noise has to shrink until a component shows that holds a tenth of the total variance.

        Of the total as it is released, or of the upper end of its margin where that is nearer to zero than its noise. A
        component of few columns holds more: 1/w of the total at least.
        """
        spread = 1.645 * self.deviation * math.sqrt(2.0 * len(self.noisy))
        total = max(float(self.noisy.sum()), spread)
        return self.floor / (max(SHOWN_SHARE, 1.0 / len(self.noisy)) * total)


def principal_components(moments: Moments, components: int | None = None) -> Components:
    """Return the leading components of released moments.

    Parameters
    ----------
    moments : Moments
    components : int, optional
        k; those above the floor where None, which may be none.

    Raises
    ------
    ParameterError
        If k is below 1 or above the number of columns.
    """
    width = len(moments.covariance)
    if components is not None and not 1 <= components <= width:
        raise ParameterError(f"components is {components}; it must lie between 1 and {width}, the columns that vary")
    values, vectors = np.linalg.eigh(moments.covariance)
    values, vectors = values[::-1], oriented(vectors[:, ::-1])
    quantile = moments.deviation * norm_quantile(width)
    floor = quantile + moments.mean_deviation**2 * float(scipy.stats.chi2.ppf(LEVEL, width))
    count = int((values > floor).sum()) if components is None else components
    estimates, kept = variances_along(values, moments.deviation), values[:count]
    return Components(
        directions=np.ascontiguousarray(vectors[:, :count]),
        noisy=np.ascontiguousarray(values),
        variances=estimates[:count],
        low=np.maximum(kept - quantile, 0.0),
        high=kept + quantile,
        total=max(float(values.sum()), float(estimates.sum())),
        deviation=moments.deviation,
        quantile=quantile,
        floor=floor,
    )
