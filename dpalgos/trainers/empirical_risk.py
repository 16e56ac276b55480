"""Exact minimisers of the regularised risk, the reference without privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.guarantees import Claim, Guarantee, Loss, Setting, Trust, nothing_proved
from dpalgos.losses import make_loss
from dpalgos.models import LinearModel
from dpalgos.noise import NoiseSource
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows, gather
from dpalgos.solvers import Problem, minimise
from dpalgos.validation import require_positive

__all__ = ["EmpiricalRisk", "pool"]


def pool(parties: Sequence[Rows], setting: Setting) -> tuple[Floats, Ints]:
    """Return the rows of all parties together, made safe: features (n, d) in the unit ball, labels (n,)."""
    parts = [gather(rows, setting.classes) for rows in parties]
    if not parts:
        return np.zeros((0, setting.dimension)), np.zeros(0, dtype=np.int64)
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


@register("trainers", "erm")
@dataclass(frozen=True, slots=True, kw_only=True)
class EmpiricalRisk:
    """Minimise mean loss + (λ/2)‖W‖² exactly, one-vs-rest unless the loss is joint, without intercept and noise.

    Guarantee
    ---------
    None: the model is a function of the rows.

    Parameters
    ----------
    regularisation : float
        λ.
    loss : str
        Name of a loss.
    width : float, optional
        h of the smooth hinges.
    tolerance : float
        Norm of the gradient at which the solver stops.
    """

    regularisation: float = 0.01
    loss: str = "huber-hinge"
    width: float | None = None
    tolerance: float = 1e-8

    source: ClassVar[str] = "regularised empirical risk minimisation; Wang et al. 2024, eq. (4)"
    claim: ClassVar[Claim | None] = None
    sound_counterpart: ClassVar[str | None] = "objective-perturbation"
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL, Trust.LOCAL)
    budgets: ClassVar[tuple[type[Loss], ...]] = ()
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive("regularisation", self.regularisation)
        require_positive("tolerance", self.tolerance)
        make_loss(self.loss, self.width)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return none."""
        return nothing_proved("no noise is drawn", setting.neighbours)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the minimiser over all parties' rows together."""
        features, labels = pool(parties, setting)
        loss = make_loss(self.loss, self.width)
        targets = loss.targets(labels, setting.classes)
        problem = Problem(features=features, targets=targets, loss=loss, regularisation=self.regularisation)
        return LinearModel(weights=minimise(problem, self.tolerance).weights)
