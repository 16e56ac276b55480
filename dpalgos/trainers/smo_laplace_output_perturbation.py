"""PrivateSVM of Rubinstein et al. 2012: the SVM solved exactly, Laplace noise on each of its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import PureAlgorithm
from dpalgos.guarantees import Claim, Guarantee, Setting
from dpalgos.losses import outputs
from dpalgos.mechanisms.laplace import Laplace
from dpalgos.models import LinearModel
from dpalgos.noise import NoiseSource
from dpalgos.registry import register
from dpalgos.rows import Rows
from dpalgos.smo.machine import fingerprints
from dpalgos.trainers.smo_output_perturbation import HingeMinimisers


@register("trainers", "smo-output-perturbation-laplace")
@dataclass(frozen=True, kw_only=True)
class SmoLaplaceOutputPerturbation(PureAlgorithm, HingeMinimisers):
    """Release w + noise, w the minimiser of ½‖w‖² + C Σ hinge, one-vs-rest, each weight with Laplace noise of its own.

    Guarantee
    ---------
    epsilon-DP, jointly for all classes: the p weights of each of m machines move by at most Δ = 2C in l2 (C under
    replace-special), the solver's certified gap added (:class:`~dpalgos.trainers.smo_output_perturbation`), hence by
    √p Δ in l1, and all of them by m√p Δ. Laplace noise of that scale over epsilon. The paper's own scale, for two
    classes, is 4C√p/epsilon (Lemma 15 bounds the l2 norm by 4C, twice what is needed). Numerics idealised.

    Parameters
    ----------
    budget : PureEpsilon
    C : float
        Weight of the sum of losses, the paper's C over n.
    tolerance : float
        Share of 2C that the solver's inexactness may add to the sensitivity, in (0, 1].
    intercept_scaling : float
        The constant feature, as there; 0, the paper's, trains without intercept.

    References
    ----------
    Rubinstein, Bartlett, Huang, Taft, "Learning in a large function space: privacy-preserving mechanisms for SVM
    learning", JPC 4 (2012), Algorithms 1 and 2, Theorems 10 and 16.
    """

    intercept_scaling: float = 0.0

    source: ClassVar[str] = "Rubinstein, Bartlett, Huang, Taft 2012, Algorithm 1 (PrivateSVM-Finite)"
    claim: ClassVar[Claim | None] = Claim("epsilon-DP", "Rubinstein et al. 2012, Theorem 10, for two classes")

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget."""
        self.check(setting)
        return Guarantee(losses=(self.budget,), neighbours=setting.neighbours)

    def scale(self, setting: Setting) -> float:
        """Return the scale of the noise of each weight."""
        # The l2 sensitivity holds √m; the l1 norm of m machines of p weights needs m√p in place of it.
        weights = outputs(setting.classes) * (setting.dimension + 1)
        return Laplace.calibrated(self.budget.epsilon, self.sensitivity(setting) * math.sqrt(weights)).scale

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the noisy machine of all parties' rows together."""
        self.check(setting)
        exact = self._minimisers(parties, setting, noise.stream("order", fingerprints(parties)))
        drawn = Laplace(self.scale(setting)).sample(exact.size, noise.stream("weights", exact))
        return self._model(np.asarray(exact + drawn.reshape(exact.shape)))
