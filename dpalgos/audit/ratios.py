"""Log-likelihood ratios of two neighbours given noisy sums, and runs that are watched for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import cast

import numpy as np

from dpalgos.algorithms import (
    Algorithm,
    DirectAlgorithm,
    IntegerNoise,
    SumAlgorithm,
    TrustedSummation,
    fit,
    is_sum_algorithm,
    run_sums,
)
from dpalgos.audit.experiment import GAUSSIAN_RATIO, RATIO
from dpalgos.guarantees import Setting
from dpalgos.mechanisms.distributions import (
    DiscreteGaussian,
    DiscreteLaplace,
    RoundedGaussian,
    SymmetricDiscreteGaussian,
    SymmetricRoundedGaussian,
    SymmetricRoundedRadial,
    to_vector,
)
from dpalgos.models import Artefact
from dpalgos.rows import Floats, Ints, NoiseSource, Rows
from dpalgos.secure.noise_shares import RoundedRadial, TruexGaussian

_Gaussian = RoundedGaussian | SymmetricRoundedGaussian | TruexGaussian | DiscreteGaussian | SymmetricDiscreteGaussian


def is_gaussian(distribution: object) -> bool:
    """Return whether a distribution is that of a Gaussian mechanism, up to its rounding."""
    return isinstance(distribution, _Gaussian)


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
def log_ratio(distribution: object, noisy: Floats, left: Floats, right: Floats) -> Floats | None:
    """Return the log-likelihood ratios of left to right of noisy sums, or None for an unknown distribution.

    The rounding of the noise is left out, so the ratio is exact only for fine grids. A score needs no more: bounds hold
    for events of any score.

    Parameters
    ----------
    distribution : IntegerNoise
    noisy, left, right
        As for :func:`score_of_sums`.
    """
    return None


@log_ratio.register(RoundedGaussian)
@log_ratio.register(DiscreteGaussian)
@log_ratio.register(TruexGaussian)
@log_ratio.register(SymmetricRoundedGaussian)
@log_ratio.register(SymmetricDiscreteGaussian)
def _(distribution: _Gaussian, noisy: Floats, left: Floats, right: Floats) -> Floats | None:
    lengths = _lengths(distribution)
    return score_of_sums(noisy * lengths, left * lengths, right * lengths, distribution.sigma)


@log_ratio.register
def _(distribution: DiscreteLaplace, noisy: Floats, left: Floats, right: Floats) -> Floats | None:
    return np.asarray((np.abs(noisy - right) - np.abs(noisy - left)).sum(axis=1) / distribution.scale)


@log_ratio.register(RoundedRadial)
@log_ratio.register(SymmetricRoundedRadial)
def _(
    distribution: RoundedRadial | SymmetricRoundedRadial, noisy: Floats, left: Floats, right: Floats
) -> Floats | None:
    away = [np.linalg.norm((noisy - exact) * _lengths(distribution), axis=1) for exact in (right, left)]
    return np.asarray((away[0] - away[1]) / distribution.scale)


def _lengths(distribution: object) -> Floats | float:
    """Return the lengths of the coordinates of a symmetric matrix in the isometry that noise is drawn by, or 1."""
    if isinstance(distribution, SymmetricRoundedGaussian | SymmetricDiscreteGaussian | SymmetricRoundedRadial):
        return to_vector(np.ones((distribution.dimension, distribution.dimension)))
    return 1.0


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """One run.

    Parameters
    ----------
    artefact : Artefact
    ratio : float or None
        Log-likelihood ratio of left to right of all its noisy sums; None where a distribution is not known, or rows are
        read directly.
    gaussian : bool
        Whether all its noise is that of Gaussian sums.
    noise : tuple of array
        What each step's noise was if the run was on the left neighbour.
    """

    artefact: Artefact
    ratio: float | None
    gaussian: bool
    noise: tuple[Floats, ...] = ()


def observed_ratio(runs: Sequence[WatchedRun]) -> dict[str, Floats]:
    """Return the observable that holds what is known of all sums of some runs together; none where nothing is."""
    known = [run.ratio for run in runs if run.ratio is not None]
    gaussian = len(known) == len(runs) and all(run.gaussian for run in runs)
    return {GAUSSIAN_RATIO if gaussian else RATIO: np.array([sum(known)])} if known else {}


class _WatchedSummation:
    """The plain sum with noise added once, and each step's distribution, the noisy sum and either world's exact one.

    Parameters
    ----------
    noise : NoiseSource
    algorithm : SumAlgorithm
    setting : Setting
    other : Rows
        What the party that differs would hold on the other neighbour; its part is worked out in each step's state.
    party : int
        Which party that is.
    world : bool
        Whether the algorithm runs on the left neighbour.
    """

    def __init__(
        self, noise: NoiseSource, algorithm: SumAlgorithm, setting: Setting, other: Rows, party: int, world: bool
    ) -> None:
        self._inner = TrustedSummation(noise)
        self._algorithm, self._setting, self._party, self._world = algorithm, setting, party, world
        prepare = getattr(algorithm, "prepare", None)
        self._other, self._state = other if prepare is None else prepare(other, setting), algorithm.initial(setting)
        self.sums: list[tuple[IntegerNoise, Ints, Ints, Ints]] = []

    def release(self, step: str, contributions: Sequence[Ints], distribution: IntegerNoise) -> Ints:
        """Release the sum, and keep what was summed."""
        formed = list(contributions)
        noisy = self._inner.release(step, formed, distribution)
        own: Ints = sum(formed[1:], start=formed[0])
        theirs = own - formed[self._party] + self._algorithm.contribution(self._state, self._other, self._setting)
        self._state = self._algorithm.update(self._state, noisy, self._setting)
        self.sums.append((distribution, noisy, *((own, theirs) if self._world else (theirs, own))))
        return noisy


def run_watched(
    algorithm: Algorithm,
    setting: Setting,
    noise: NoiseSource,
    rows: Sequence[Rows],
    other: Rows,
    *,
    party: int = 0,
    world: bool = True,
) -> WatchedRun:
    """Run an algorithm on the left neighbour (``world``) or the right one.

    Parameters
    ----------
    algorithm, setting, noise
    rows : sequence of Rows
        The parties' rows on this neighbour.
    other : Rows
        What the party that differs holds on the other one.
    party : int
        Which party that is.
    world : bool
    """
    if not is_sum_algorithm(algorithm):
        return WatchedRun(fit(cast(DirectAlgorithm, algorithm), rows, setting, noise), ratio=None, gaussian=False)
    sums = cast(SumAlgorithm, algorithm)
    watched = _WatchedSummation(noise, sums, setting, other, party, world)
    artefact = run_sums(sums, rows, setting, watched)
    log_ratios = (
        log_ratio(distribution, *(array.reshape(1, -1).astype(np.float64) for array in of))
        for distribution, *of in watched.sums
    )
    ratios = [float(ratio[0]) for ratio in log_ratios if ratio is not None]
    return WatchedRun(
        artefact,
        ratio=sum(ratios) if len(ratios) == len(watched.sums) else None,
        gaussian=all(is_gaussian(distribution) for distribution, *_ in watched.sums),
        noise=tuple((noisy - left).ravel().astype(np.float64) for _, noisy, left, _ in watched.sums),
    )
