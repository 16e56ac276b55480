"""What trainers of linear models share: the fields that make their task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpalgos.algorithms import Algorithm
from dpalgos.guarantees import Setting
from dpalgos.linear import LinearTask
from dpalgos.losses import make_loss
from dpalgos.neighbouring import NeighbouringPair


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
