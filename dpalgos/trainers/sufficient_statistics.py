"""Ridge regression from one noisy sum of XᵀX and XᵀY."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import NeighbouringPair, one_row_apart
from dpalgos.guarantees import Setting
from dpalgos.integer_sums import packed_gram
from dpalgos.linear import LinearTask
from dpalgos.losses import Squared, outputs
from dpalgos.mechanisms.symmetric import unpack
from dpalgos.models import LinearModel
from dpalgos.parameters import NON_NEGATIVE, POSITIVE
from dpalgos.projections.covariance import OF_BOUNDED_TRACE, GaussianMoments
from dpalgos.registry import register
from dpalgos.rows import Array, Features, Floats, Ints, Rows


@register("trainers", "sufficient-statistics")
@dataclass(frozen=True, kw_only=True)
class SufficientStatistics(GaussianMoments):
    """Release Σ zzᵀ with noise once, z = (x, a t)/√(1 + a²), and solve ridge regression of the targets t from it.

    The blocks of Σ zzᵀ are XᵀX, XᵀT and TᵀT. Targets are one-hot classes (±1 for two classes) or real labels in
    [−1, 1].

    Guarantee
    ---------
    The budget. ‖x‖ ≤ 1 and ‖t‖ ≤ 1, so ‖z‖ ≤ 1 and the sum's Frobenius sensitivity is √2 under replace-one and 1 under
    replace-special (z = 0 for a null record, target and constant feature included), as for ``analyze-gauss``, on the
    same exact integer path. (Releasing XᵀX and XᵀT alone, with weights
    that balance them, has the same sensitivity, so TᵀT is free.) All that follows is post-processing.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    regularisation : float
        Least λ of the mean squared loss plus (λ/2)‖W‖².
    target_weight : float
        a: a larger one spends more of the budget on the targets.
    noise_regularisation : float
        λ is at least this many times the noise's typical largest eigenvalue, 2s√p/n for off-diagonal deviation s.
    intercept_scaling : float
        B of the constant feature inside the unit ball; 0 for no intercept.
    label_range : (float, float)
        Declared range of real labels.

    References
    ----------
    Vu, Slavkovic, ICDM Workshops 2009; Foulds et al., UAI 2016; Wang, UAI 2018 (noise-aware ridge).
    """

    regularisation: float = field(default=1e-3, metadata=POSITIVE)
    target_weight: float = field(default=1.0, metadata=POSITIVE)
    noise_regularisation: float = field(default=0.5, metadata=NON_NEGATIVE)
    intercept_scaling: float = 0.0
    label_range: Sequence[float] = (-1.0, 1.0)

    source: ClassVar[str] = "sufficient statistics perturbation after Vu, Slavkovic 2009 and Wang 2018"
    people: ClassVar[str] = OF_BOUNDED_TRACE
    measured: ClassVar[str] = "Σ zzᵀ of z = (x, a t)/√(1 + a²), Frobenius"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._task()

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return rows x, x′ and targets t, t′ with z ⟂ z′, or as near to it as there are any.

        (1 + a²) z·z′ = x·x′ + a² t·t′. Different classes have t·t′ = 0, but −1 where there are two, and real labels at
        the ends of their range as well; and with u for the row before the constant B, x·x′ = (u·u′ + B²)/(1 + B²).
        """
        wanted = self.target_weight**2 if outputs(setting.classes) == 1 else 0.0
        constant = self.intercept_scaling**2
        cosine = min(1.0, max(-1.0, wanted * (1.0 + constant) - constant))
        other = np.zeros(max(setting.dimension, 2))
        other[:2] = cosine, math.sqrt(1.0 - cosine**2)
        low, high = (float(end) for end in self.label_range) if setting.classes == 1 else (0.0, 1.0)
        row = np.eye(1, setting.dimension)[0]
        return one_row_apart(setting, row, other[: setting.dimension], labels=(low, high))

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the packed upper triangle of the party's exact integer sum."""

        def joined(features: Features, labels: Array) -> Floats:
            clean, targets = self._task().block(features, labels, setting)
            if outputs(setting.classes) > 1:
                # One-hot; a null record's zeros stay.
                targets = np.maximum(targets, 0.0)
            return np.hstack([clean, self.target_weight * targets]) / math.hypot(1.0, self.target_weight)

        return packed_gram(rows.blocks(), joined, self.width(setting), self._scale(setting))

    def result(self, state: Ints, setting: Setting) -> LinearModel:
        """Solve (Â + nλ) Wᵀ = B̂ with the negative eigenvalues of the noisy Â = XᵀX cut to zero."""
        scaling = 1.0 + self.target_weight**2
        sums = unpack(state) / self._scale(setting) ** 2 * scaling
        width = self._task().shape(setting)[1]
        gram, moments = sums[:width, :width], sums[:width, width:] / self.target_weight
        values, vectors = np.linalg.eigh(gram)
        strength = max(setting.rows, 1) * self.regularisation
        sigma = setting.noise_factor * self.distribution(setting).sigma
        deviation = sigma / math.sqrt(2.0) / self._scale(setting) ** 2 * scaling
        strength = max(strength, self.noise_regularisation * 2.0 * deviation * math.sqrt(width))
        weights: Floats = vectors @ ((vectors.T @ moments) / (np.maximum(values, 0.0) + strength)[:, None])
        return self._task().model(weights.T, setting)

    def _task(self) -> LinearTask:
        return LinearTask(loss=Squared(), intercept_scaling=self.intercept_scaling, label_range=self.label_range)

    def width(self, setting: Setting) -> int:
        """Return the features, the constant and the targets."""
        return sum(self._task().shape(setting))
