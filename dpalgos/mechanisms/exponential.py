"""The exponential mechanism, drawn as report-noisy-max with Gumbel noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Numerics
from dpalgos.noise import RandomStream
from dpalgos.rows import Floats

__all__ = ["ExponentialMechanism"]


@dataclass(frozen=True, slots=True)
class ExponentialMechanism:
    """Choose index i with probability proportional to ``exp(epsilon * score_i / (2 * sensitivity))``.

    Guarantee
    ---------
    epsilon-DP for **one** selection, if replacing (or adding) a row moves each score by at most ``sensitivity`` and the
    set of candidates does not depend on the rows: numerator and normaliser each change by at most
    exp(epsilon / 2). T selections compose to T epsilon; running them inside an iteration does not make them free. The
    same selection is epsilon^2/8-zCDP, because its loss ranges over an interval of length epsilon.

    The draw is ``argmax(epsilon score / (2 sensitivity) + Gumbel)``, which has exactly those probabilities and never
    exponentiates a score, so any size of score is safe. Total: a score that is not a number counts as the lowest.
    Numerics are ``idealised``.

    Parameters
    ----------
    epsilon : float
    sensitivity : float
        How far one row moves a score, for the neighbouring relation in force.

    References
    ----------
    McSherry, Talwar, "Mechanism design via differential privacy", FOCS 2007, Theorem 6; Gumbel form: Dwork, Roth 2014,
    section 3.4; zCDP: Cesar, Rogers, "Bounding, concentrating, and truncating", ALT 2021, Lemma 3.4.
    """

    epsilon: float
    sensitivity: float
    numerics: ClassVar[Numerics] = Numerics.IDEALISED

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("sensitivity", self.sensitivity)):
            if not (math.isfinite(value) and value > 0):
                raise ParameterError(f"{name} is {value!r}; it must be a finite number above 0")

    def rho(self) -> float:
        """Return the zCDP parameter of one selection, rounded up."""
        return math.nextafter(self.epsilon**2 / 8.0, math.inf)

    def probabilities(self, scores: Floats) -> Floats:
        """Return the probability of each index; not to be released, it is a function of the rows."""
        logits = self._logits(scores)
        weights = np.exp(logits - logits.max())
        return np.asarray(weights / weights.sum())

    def select(self, scores: Floats, stream: RandomStream) -> int:
        """Return the chosen index.

        Parameters
        ----------
        scores : array (candidates,)
            At least one candidate; their number is public.
        """
        return int(np.argmax(self._logits(scores) + stream.generator().gumbel(size=len(scores))))

    def _logits(self, scores: Floats) -> Floats:
        if len(scores) == 0:
            raise ParameterError("the exponential mechanism was given 0 candidates; it needs at least 1")
        # Bounded, so that a sum with noise and a difference from the maximum stay numbers.
        bounded = np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        return np.clip(bounded * (self.epsilon / (2.0 * self.sensitivity)), -1e300, 1e300)
