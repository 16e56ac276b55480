"""Running an algorithm on one of two neighbours while watching what its noisy sums say of which one it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from dpalgos.algorithms import Algorithm, DirectAlgorithm, fit, is_sum_algorithm
from dpalgos.audit.gaussian import score_of_sums
from dpalgos.guarantees import Setting
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.mechanisms.symmetric import SymmetricRoundedGaussian, to_vector, unpack
from dpalgos.models import Artefact
from dpalgos.noise import NoiseSource
from dpalgos.rows import Ints, Rows
from dpalgos.summation import IntegerNoise, SumAlgorithm, TrustedSummation, run_sums

__all__ = ["WatchedSummation", "run_watched"]


class WatchedSummation:
    """The plain sum with noise added once, and the log-likelihood ratio of left to right of all sums so far.

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
        self._inner, self._algorithm, self._setting = TrustedSummation(noise), algorithm, setting
        prepare = getattr(algorithm, "prepare", None)
        self._other, self._party, self._world = other if prepare is None else prepare(other, setting), party, world
        self._state = algorithm.initial(setting)
        self.ratio: float | None = 0.0

    def release(self, step: str, contributions: Sequence[Ints], law: IntegerNoise) -> Ints:
        """Release the sum, and add what it says."""
        formed = list(contributions)
        noisy = self._inner.release(step, formed, law)
        own: Ints = sum(formed[1:], start=formed[0])
        theirs = own - formed[self._party] + self._algorithm.contribution(self._state, self._other, self._setting)
        self._state = self._algorithm.update(self._state, noisy, self._setting)
        left, right = (own, theirs) if self._world else (theirs, own)
        sums = [array.astype(float) for array in (noisy, left, right)]
        if isinstance(law, SymmetricRoundedGaussian):
            sums = [to_vector(unpack(array)) for array in sums]
        if not isinstance(law, SymmetricRoundedGaussian | RoundedGaussian):
            self.ratio = None
        elif self.ratio is not None:
            self.ratio += score_of_sums(sums[0], sums[1], sums[2], law.sigma)
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
) -> tuple[Artefact, float | None]:
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

    Returns
    -------
    artefact
    float or None
        The log-likelihood ratio of its Gaussian sums; None where it has other noise, or sees rows directly.
    """
    if not is_sum_algorithm(algorithm):
        return fit(cast(DirectAlgorithm, algorithm), rows, setting, noise), None
    sums = cast(SumAlgorithm, algorithm)
    watched = WatchedSummation(noise, sums, setting, other, party, world)
    return run_sums(sums, rows, setting, watched), watched.ratio
