"""Exact minimisers of the regularised risk, the reference without privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpalgos.guarantees import Claim, Guarantee, Loss, Setting, Trust, nothing_proved
from dpalgos.linear import LinearTask
from dpalgos.losses import make_loss
from dpalgos.models import LinearModel
from dpalgos.noise import NoiseSource
from dpalgos.registry import register
from dpalgos.rows import Rows
from dpalgos.solvers import Problem, minimise
from dpalgos.validation import require_positive

__all__ = ["EmpiricalRisk"]


@register("trainers", "erm")
@dataclass(frozen=True, slots=True, kw_only=True)
class EmpiricalRisk:
    """Minimise mean loss + (λ/2)‖W‖² exactly, one-vs-rest unless the loss is joint, without noise.

    Guarantee
    ---------
    None: the model is a function of the rows.

    Parameters
    ----------
    regularisation : float
        λ.
    loss : str
        Name of a loss; ``squared`` for real labels.
    width : float, optional
        h of the smooth hinges.
    intercept_scaling : float
        B of the constant feature inside the unit ball; 0 for no intercept.
    label_range : (float, float)
        Declared range of real labels.
    tolerance : float
        Norm of the gradient at which the solver stops.
    """

    regularisation: float = 0.01
    loss: str = "huber-hinge"
    width: float | None = None
    intercept_scaling: float = 0.0
    label_range: Sequence[float] = (-1.0, 1.0)
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
        self._task()

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return none."""
        self._task().check(setting)
        return nothing_proved("no noise is drawn", setting.neighbours)

    def problem(self, parties: Sequence[Rows], setting: Setting) -> Problem:
        """Return the risk over all parties' rows together."""
        features, targets = self._task().gather(parties, setting)
        return Problem(features=features, targets=targets, loss=self._task().loss, regularisation=self.regularisation)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the minimiser over all parties' rows together."""
        return self.diagnostics(parties, setting, noise)[0]

    def diagnostics(
        self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource
    ) -> tuple[LinearModel, dict[str, float]]:
        """Return the minimiser and its ``objective``, J at the minimum."""
        self._task().check(setting)
        problem = self.problem(parties, setting)
        weights = minimise(problem, self.tolerance).weights
        return self._task().model(weights, setting), {"objective": problem.value(weights)}

    def _task(self) -> LinearTask:
        return LinearTask(
            loss=make_loss(self.loss, self.width),
            intercept_scaling=self.intercept_scaling,
            label_range=self.label_range,
        )
