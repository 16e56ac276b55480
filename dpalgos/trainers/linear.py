"""What trainers of linear models share, and exact minimisers of the risk without privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dpalgos.algorithms import Algorithm, Unproved
from dpalgos.guarantees import Setting
from dpalgos.linear import LinearTask
from dpalgos.losses import make_loss
from dpalgos.models import LinearModel
from dpalgos.neighbouring import NeighbouringPair
from dpalgos.noise import NoiseSource
from dpalgos.parameters import POSITIVE
from dpalgos.registry import register
from dpalgos.rows import Rows
from dpalgos.solvers import Problem, minimise


@dataclass(frozen=True, kw_only=True)
class LinearClassifierTrainer(Algorithm):
    """A trainer of linear classifiers.

    Parameters
    ----------
    loss : str
        Name of a loss.
    width : float, optional
        h of the smooth hinges.
    intercept_scaling : float
        B of the constant feature inside the unit ball; 0 for no intercept.
    """

    loss: str = "huber-hinge"
    width: float | None = None
    intercept_scaling: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.task

    @property
    def task(self) -> LinearTask:
        """The learning task, its parameters validated."""
        return LinearTask(loss=make_loss(self.loss, self.width), intercept_scaling=self.intercept_scaling)

    def check(self, setting: Setting) -> None:
        """Raise where the loss does not fit the labels."""
        super().check(setting)
        self.task.check(setting)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return the neighbours whose gradients at zero weights lie farthest apart."""
        return self.task.steepest_pair(setting)


@dataclass(frozen=True, kw_only=True)
class LinearTrainer(LinearClassifierTrainer):
    """A trainer of linear models, for classes or, with the squared loss, for real labels.

    Parameters
    ----------
    label_range : (float, float)
        Declared range of real labels.
    """

    label_range: Sequence[float] = (-1.0, 1.0)

    @property
    def task(self) -> LinearTask:
        """The learning task, its parameters validated."""
        return LinearTask(
            loss=make_loss(self.loss, self.width),
            intercept_scaling=self.intercept_scaling,
            label_range=self.label_range,
        )


@register("trainers", "erm")
@dataclass(frozen=True, kw_only=True)
class EmpiricalRisk(Unproved, LinearTrainer):
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
    width, intercept_scaling, label_range
        See :class:`~dpalgos.trainers.linear.LinearTrainer`.
    tolerance : float
        Norm of the gradient at which the solver stops.
    """

    regularisation: float = field(default=0.01, metadata=POSITIVE)
    tolerance: float = field(default=1e-8, metadata=POSITIVE)

    source: ClassVar[str] = "regularised empirical risk minimisation; Wang et al. 2024, eq. (4)"
    sound_counterpart: ClassVar[str | None] = "objective-perturbation"

    def problem(self, parties: Sequence[Rows], setting: Setting) -> Problem:
        """Return the risk over all parties' rows together."""
        return self.task.problem(parties, setting, self.regularisation)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the minimiser over all parties' rows together."""
        return self.diagnostics(parties, setting, noise)[0]

    def diagnostics(
        self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource
    ) -> tuple[LinearModel, dict[str, float]]:
        """Return the minimiser and its ``objective``, J at the minimum."""
        self.check(setting)
        problem = self.problem(parties, setting)
        weights = minimise(problem, self.tolerance)
        return self.task.model(weights, setting), {"objective": problem.value(weights)}
