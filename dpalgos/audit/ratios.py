"""Log-likelihood ratios of noisy integer sums, by the law of their noise: the best scores there are.

A law that is not known here has none, and is audited as a black box. Another law enters its own by
``@log_ratio.register``.
"""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from dpalgos.mechanisms.discrete_gaussian import DiscreteGaussian
from dpalgos.mechanisms.discrete_laplace import DiscreteLaplace
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.mechanisms.symmetric import (
    SymmetricDiscreteGaussian,
    SymmetricRoundedGaussian,
    SymmetricRoundedRadial,
    to_vector,
)
from dpalgos.rows import Floats
from dpalgos.secure.noise_shares import RoundedRadial, TruexGaussian

_Gaussian = RoundedGaussian | SymmetricRoundedGaussian | TruexGaussian | DiscreteGaussian | SymmetricDiscreteGaussian


def is_gaussian(law: object) -> bool:
    """Whether a law is that of a Gaussian mechanism, up to its rounding."""
    return isinstance(law, _Gaussian)


def score_of_sums(noisy: Floats, left: Floats, right: Floats, sigma: float) -> Floats:
    """Return the log-likelihood ratio of noisy sums, of left to right, for normal noise of deviation ``sigma``.

    Over steps that may depend on each other, ratios add up: given the past, each step is a Gaussian mechanism.

    Parameters
    ----------
    noisy : array (T, p)
        The sums of T runs.
    left, right : array (p,) or (T, p)
        The exact ones on either neighbour.
    sigma : float

    Returns
    -------
    array (T,)
    """
    return np.asarray(((noisy - 0.5 * (left + right)) * (left - right)).sum(axis=1) / sigma**2)


@singledispatch
def log_ratio(law: object, noisy: Floats, left: Floats, right: Floats) -> Floats | None:
    """Return the log-likelihood ratios of left to right of noisy sums, or None for an unknown law.

    The rounding of the noise is left out, so the ratio is exact only for fine grids. A score needs no more: bounds hold
    for events of any score.

    Parameters
    ----------
    law : IntegerNoise
    noisy, left, right
        As for :func:`score_of_sums`.
    """
    return None


@log_ratio.register(RoundedGaussian)
@log_ratio.register(DiscreteGaussian)
@log_ratio.register(TruexGaussian)
@log_ratio.register(SymmetricRoundedGaussian)
@log_ratio.register(SymmetricDiscreteGaussian)
def _(law: _Gaussian, noisy: Floats, left: Floats, right: Floats) -> Floats | None:
    lengths = _lengths(law)
    return score_of_sums(noisy * lengths, left * lengths, right * lengths, law.sigma)


@log_ratio.register
def _(law: DiscreteLaplace, noisy: Floats, left: Floats, right: Floats) -> Floats | None:
    return np.asarray((np.abs(noisy - right) - np.abs(noisy - left)).sum(axis=1) / law.scale)


@log_ratio.register(RoundedRadial)
@log_ratio.register(SymmetricRoundedRadial)
def _(law: RoundedRadial | SymmetricRoundedRadial, noisy: Floats, left: Floats, right: Floats) -> Floats | None:
    away = [np.linalg.norm((noisy - exact) * _lengths(law), axis=1) for exact in (right, left)]
    return np.asarray((away[0] - away[1]) / law.scale)


def _lengths(law: object) -> Floats | float:
    """Return the lengths of the coordinates of a symmetric matrix in the isometry that noise is drawn by, or 1."""
    if isinstance(law, SymmetricRoundedGaussian | SymmetricDiscreteGaussian | SymmetricRoundedRadial):
        return to_vector(np.ones((law.dimension, law.dimension)))
    return 1.0
