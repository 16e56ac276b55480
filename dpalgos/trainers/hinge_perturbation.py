"""Noise on the exact minimisers of the C-SVM, which a certified solver finds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import (
    Algorithm,
    GaussianAlgorithm,
    NeighbouringPair,
    PureAlgorithm,
    Refused,
)
from dpalgos.coordinate_descent import minimise_hinge, rounding_slack
from dpalgos.guarantees import RELATIONS, Claim, Neighbours, Setting
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.linear import LinearTask
from dpalgos.losses import HuberHinge, outputs, signs
from dpalgos.mechanisms.distributions import Laplace, RoundedGaussian
from dpalgos.models import LinearModel
from dpalgos.parameters import NON_NEGATIVE, POSITIVE, ParameterError, between
from dpalgos.registry import register
from dpalgos.rows import NULL_LABEL, Floats, Ints, NoiseSource, RandomStream, Rows, fingerprints, sanitise

# Grid units per sensitivity: rounding thousands of weights then adds about 10⁻⁴ of it.
_FINENESS = 20
# Covers the norms that clipping, appending and dividing leave above 1, by a few parts in 10¹⁵.
_NORM_EXCESS = 1e-12
_LARGEST_WEIGHT = 2.0**52


@dataclass(frozen=True, kw_only=True)
class HingeMinimisers(Algorithm):
    """The exact minimisers of ½‖w‖² + C Σ hinge, one-vs-rest, and how far one record moves them.

    Parameters
    ----------
    C : float
        Weight of the sum of losses; with λ the weight of a mean loss's regulariser, C = 1/(nλ). The noise grows with C.
    tolerance : float
        Share of 2C that the solver's inexactness may add to the sensitivity, in (0, 1]; Γ = (tolerance · C)²/2, or
        what float64 can certify for so many rows where that is more.
    intercept_scaling : float
        B, at least 0; 0 trains without intercept.
    """

    C: float = field(default=1.0, metadata=POSITIVE)
    tolerance: float = field(default=0.01, metadata=between(0.0, 1.0, open_low=True))
    intercept_scaling: float = field(default=1.0, metadata=NON_NEGATIVE)

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    measured: ClassVar[str] = "minimisers of ½‖w‖² + C Σ hinge, l2"

    def gap(self, setting: Setting) -> float:
        """Return Γ, how far the solver may stay from the minimum in each one-vs-rest problem."""
        # At the minimum C Σ hinge, Σ α and ‖w‖²/2 are at most C n, the value of w = 0.
        value = self.C * setting.rows
        slack = rounding_slack(setting.rows, setting.dimension + 1, self.C, value, value, math.sqrt(2.0 * value))
        return max(0.5 * (self.tolerance * self.C) ** 2, 4.0 * slack)

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves all released weights together, in l2, the solver's gap included."""
        exact = setting.neighbours.records * self.C * (1.0 + _NORM_EXCESS)
        return math.sqrt(outputs(setting.classes)) * (exact + 2.0 * math.sqrt(2.0 * self.gap(setting)))

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the minimisers of one party's rows, within the solver's gap."""
        return self._minimisers([rows], setting, KeyedNoise(public_secret(0), "statistic").stream("order", np.zeros(0)))

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return neighbours whose hinges push zero weights farthest apart; they attain √K·2C (or √K·C) for C ≤ 1."""
        return LinearTask(loss=HuberHinge(), intercept_scaling=self.intercept_scaling).steepest_pair(setting)

    def _minimisers(self, parties: Sequence[Rows], setting: Setting, order: RandomStream) -> Floats:
        """Return one weight row a class, of all parties' rows together."""
        features, labels = self._pool(parties, setting)
        targets = signs(labels, setting.classes)
        return np.stack([minimise_hinge(features, y, self.C, self.gap(setting), order) for y in targets.T])

    def _pool(self, parties: Sequence[Rows], setting: Setting) -> tuple[Floats, Ints]:
        count = sum(rows.count for rows in parties)
        pooled, labels, filled = np.zeros((count, setting.dimension + 1)), np.zeros(count, dtype=np.int64), 0
        for rows in parties:
            for features, block_labels, _ in rows.blocks():
                part = slice(filled, filled + len(block_labels))
                pooled[part, :-1], labels[part] = sanitise(features, block_labels, setting.classes)
                filled = part.stop
        # A null record has no constant feature either: a zero row moves no weight.
        pooled[:, -1] = np.where(labels == NULL_LABEL, 0.0, self.intercept_scaling)
        pooled *= self._factor()
        return pooled[:filled], labels[:filled]

    def _factor(self) -> float:
        return 1.0 / math.hypot(1.0, self.intercept_scaling)

    def _model(self, weights: Floats) -> LinearModel:
        """Return the model in the coordinates of the rows as they were before the constant was appended."""
        scaled = weights * self._factor()
        return LinearModel(weights=scaled[:, :-1], intercept=scaled[:, -1] * self.intercept_scaling)


@register("trainers", "smo-output-perturbation")
@dataclass(frozen=True, kw_only=True)
class SmoOutputPerturbation(GaussianAlgorithm, HingeMinimisers):
    """Release w + noise, w the minimiser of ½‖w‖² + C Σ hinge with the bias as a constant feature; one-vs-rest.

    α and the support vectors never leave: only the noisy weights do.

    Guarantee
    ---------
    The budget, jointly for all classes, for one party's rows (``local``) and for all parties' rows together
    (``central``) alike.

    *Rows.* x is clipped to the unit ball, the constant B (``intercept_scaling``) appended and the whole divided by
    √(1 + B²), so that ‖z‖ ≤ 1. (Appending 1 to a unit row without dividing would make the bound below 2√2 C.)
    *Sensitivity.* F(w) = ½‖w‖² + C Σ max(0, 1 − y w·z) is 1-strongly convex. Neighbours F, F′ differ in one term, g = F
    − F′ = C (ℓ(w; z, y) − ℓ(w; z′, y′)), which is 2C-Lipschitz. With minimisers w, w′: ‖w − w′‖² ≤ [F(w′) − F(w)] +
    [F′(w) − F′(w′)] = g(w′) − g(w) ≤ 2C ‖w − w′‖. So ‖w − w′‖ ≤ 2C; neither a constant feature nor the number of rows
    changes this bound. Under replace-special one of the two terms is the constant C, g is C-Lipschitz, and ‖w − w′‖ ≤
    C. (A null record is a zero row, without the constant feature.) *Tolerance.* The solver returns ŵ with F(ŵ) − min F
    ≤ Γ, certified by a duality gap whose rounding error is bounded (:func:`dpalgos.coordinate_descent.rounding_slack`),
    hence ½‖ŵ − w‖² ≤ Γ: 2√(2Γ) more. Γ is public; the solver goes on until it is met, so nothing else is ever released.
    (A KKT tolerance bounds nothing of the kind.) *Classes.* K one-vs-rest problems on the same rows move by at most √K
    times that, as one vector. *Integers.* The weights are rounded to a grid whose step is a power of two, at most √(K
    p) steps more, and rounded Gaussian integers are added: exactly μ-Gaussian-DP.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    C, tolerance, intercept_scaling
        See :class:`HingeMinimisers`.

    References
    ----------
    Chaudhuri, Monteleoni, Sarwate, "Differentially private empirical risk minimization", JMLR 12 (2011), Corollary 8
    and Rubinstein et al. 2012, Lemma 15 (2C here, for rows in the unit ball and a Lipschitz hinge).
    """

    source: ClassVar[str] = "Chaudhuri, Monteleoni, Sarwate 2011, Corollary 8, for the C-SVM and a certified solver"
    people: ClassVar[str] = Refused("the gap of its solver is certified for rows of equal weight only")

    def check(self, setting: Setting) -> None:
        """Raise where weights could leave the grid of their noise."""
        super().check(setting)
        self.distribution(setting)

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of the weights, in grid units."""
        unit = self._unit(setting)
        if math.sqrt(2.0 * self.C * max(setting.rows, 1)) / unit > _LARGEST_WEIGHT:
            raise ParameterError(
                f"C is {self.C!r}; with {setting.rows} rows the weights could exceed the grid: choose a larger C"
            )
        rounding = math.sqrt(outputs(setting.classes) * (setting.dimension + 1))
        return RoundedGaussian.calibrated(self.budget, self.sensitivity(setting) / unit + rounding)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the noisy machine of all parties' rows together."""
        (noisy,) = self.noisy(parties, setting, noise, 1)
        weights = np.asarray(noisy * self._unit(setting), dtype=np.float64)
        return self._model(weights.reshape(-1, setting.dimension + 1))

    def noisy(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource, count: int) -> Ints:
        """Return the minimisers in grid units plus ``count`` draws of the noise, (count, ·)."""
        weights = self._minimisers(parties, setting, noise.stream("order", fingerprints(parties)))
        exact = np.rint(weights / self._unit(setting)).astype(np.int64)
        drawn = self.distribution(setting).sample(count * exact.size, noise.stream("weights", exact))
        return np.asarray(exact.ravel() + drawn.reshape(count, -1))

    def _unit(self, setting: Setting) -> float:
        return 2.0 ** (math.floor(math.log2(self.sensitivity(setting))) - _FINENESS)


@register("trainers", "smo-output-perturbation-laplace")
@dataclass(frozen=True, kw_only=True)
class SmoLaplaceOutputPerturbation(PureAlgorithm, HingeMinimisers):
    """Release w + Laplace noise on each weight, w the minimiser of ½‖w‖² + C Σ hinge, one-vs-rest.

    Guarantee
    ---------
    epsilon-DP, jointly for all classes: the p weights of each of m machines move by at most Δ = 2C in l2 (C under
    replace-special), the solver's certified gap added (:class:`SmoOutputPerturbation`), hence by
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
    people: ClassVar[str] = Refused("the gap of its solver is certified for rows of equal weight only")
    claim: ClassVar[Claim | None] = Claim("epsilon-DP", "Rubinstein et al. 2012, Theorem 10, for two classes")

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
