"""Losses of linear models as functions of the scores, the constants that proofs use, slopes of many rows."""

import difflib
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.errors import ParameterError, UnknownNameError
from dpalgos.parameters import POSITIVE, Bounded
from dpalgos.rows import Floats, Ints


def outputs(classes: int) -> int:
    """Return how many weight rows a linear model of ``classes`` classes has: one for a binary problem."""
    return 1 if classes <= 2 else classes


def signs(labels: Ints, classes: int) -> Floats:
    """Return one-vs-rest targets (n, outputs): +1 for the class, −1 for the rest; class 1 is + where there are two."""
    positive = np.arange(classes) if outputs(classes) > 1 else np.ones(1, dtype=np.int64)
    return np.asarray(np.where(labels[:, None] == positive[None, :], 1.0, -1.0))


class ScoreLoss(Bounded, ABC):
    """A convex loss of a row's scores s (one a weight row) and its target.

    The gradient of a row's loss with respect to the weights is ``slope ⊗ x``, so with ‖x‖ ≤ 1 its Frobenius norm
    is at most :meth:`slope_norm`, and the Hessian in the scores is at most ``curvature_bound`` times the identity.
    """

    name: ClassVar[str]
    separable: ClassVar[bool] = True
    """Whether the loss is a sum over weight rows, so that each row is a problem of its own."""

    @property
    @abstractmethod
    def curvature_bound(self) -> float:
        """Largest second derivative."""

    @abstractmethod
    def slope_norm(self, width: int) -> float:
        """Return the largest l2 norm of a row's slope vector over ``width`` scores."""

    def targets(self, labels: Ints, classes: int) -> Floats:
        """Return the targets (n, outputs), ±1 for a class against the rest."""
        return signs(labels, classes)

    @abstractmethod
    def value(self, scores: Floats, targets: Floats) -> Floats:
        """Return each row's loss: (n, outputs) where separable, (n, 1) otherwise."""

    @abstractmethod
    def slope(self, scores: Floats, targets: Floats) -> Floats:
        """Return the derivative with respect to the scores, (n, outputs)."""

    @abstractmethod
    def curvature_product(self, scores: Floats, targets: Floats) -> Callable[[Floats], Floats]:
        """Return the map from directions (n, outputs) to second derivative times direction, at these scores."""

    def write_slopes(self, scores: Floats, targets: NDArray[np.float32], start: int) -> None:
        """Replace scores (K, m) by slopes, which may differ from :meth:`slope` in the last bits.

        Parameters
        ----------
        scores : array (K, m)
            Overwritten.
        targets : array (K, n) of float32
            Those of the rows are the columns from ``start`` on.
        start : int
        """
        own = targets[:, start : start + scores.shape[1]].astype(np.float64)
        scores[:] = self.slope(scores.T, own.T).T


class _Margin(ScoreLoss):
    """Losses of the margin z = y s, one-vs-rest: what they share."""

    def slope_norm(self, width: int) -> float:
        """Return √width: each class's slope lies in [−1, 1], and all of them can be at an end at once."""
        return math.sqrt(width)

    @abstractmethod
    def margin_value(self, margins: Floats) -> Floats:
        """Return ℓ(z)."""

    @abstractmethod
    def margin_slope(self, margins: Floats) -> Floats:
        """Return ℓ′(z)."""

    @abstractmethod
    def margin_curvature(self, margins: Floats) -> Floats:
        """Return ℓ″(z)."""

    def value(self, scores: Floats, targets: Floats) -> Floats:
        """Return ℓ(y s), (n, outputs)."""
        return self.margin_value(scores * targets)

    def slope(self, scores: Floats, targets: Floats) -> Floats:
        """Return y ℓ′(y s), (n, outputs)."""
        return targets * self.margin_slope(scores * targets)

    def curvature_product(self, scores: Floats, targets: Floats) -> Callable[[Floats], Floats]:
        """Return multiplication by ℓ″(y s)."""
        curvature = self.margin_curvature(scores * targets)
        return lambda direction: curvature * direction


@dataclass(frozen=True, slots=True, kw_only=True)
class HuberHinge(_Margin):
    """The Huber hinge: linear below 1 − h, zero above 1 + h, a parabola between.

    Its second derivative jumps at 1 ± h, so proofs by change of variables need an extra argument
    (``trainers.objective_perturbation`` gives it).

    References
    ----------
    Chaudhuri, Monteleoni, Sarwate, "Differentially private empirical risk minimization", JMLR 12 (2011), eq. for
    ℓ_Huber in section 3.4.2; Chapelle, "Training a support vector machine in the primal" (2007).
    """

    width: float = field(default=0.5, metadata=POSITIVE)
    name: ClassVar[str] = "huber-hinge"

    @property
    def curvature_bound(self) -> float:
        """Return 1 / (2h)."""
        return 1.0 / (2.0 * self.width)

    def margin_value(self, margins: Floats) -> Floats:
        """Return ℓ(z)."""
        h = self.width
        inside = np.clip(1.0 + h - margins, 0.0, 2.0 * h)
        return np.asarray(inside * inside / (4.0 * h) + np.maximum(1.0 - h - margins, 0.0))

    def margin_slope(self, margins: Floats) -> Floats:
        """Return ℓ′(z) ∈ [−1, 0]."""
        return -np.clip((1.0 + self.width - margins) / (2.0 * self.width), 0.0, 1.0)

    def margin_curvature(self, margins: Floats) -> Floats:
        """Return ℓ″(z), an element of the generalised derivative at the kinks."""
        return np.where(np.abs(1.0 - margins) <= self.width, self.curvature_bound, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothedHinge(_Margin):
    """Chaudhuri's smoothed hinge ℓ_s: the hinge convolved to be twice continuously differentiable.

    References
    ----------
    Chaudhuri, Monteleoni, Sarwate (2011), JMLR 12, the definition of ℓ_s before Corollary 12; c = 3 / (4h).
    """

    width: float = field(default=0.5, metadata=POSITIVE)
    name: ClassVar[str] = "smoothed-hinge"

    @property
    def curvature_bound(self) -> float:
        """Return 3 / (4h)."""
        return 3.0 / (4.0 * self.width)

    def margin_value(self, margins: Floats) -> Floats:
        """Return ℓ(z)."""
        h = self.width
        u = np.clip(1.0 - margins, -h, h)
        square = u * u
        smooth = -(square * square) / (16.0 * h**3) + 3.0 * square / (8.0 * h) + u / 2.0 + 3.0 * h / 16.0
        # At u = −h the polynomial is zero in real arithmetic; keep it from leaving −1e−17 behind.
        return np.asarray(np.maximum(smooth, 0.0) + np.maximum(1.0 - h - margins, 0.0))

    def margin_slope(self, margins: Floats) -> Floats:
        """Return ℓ′(z) ∈ [−1, 0]."""
        t = np.clip((1.0 - margins) / self.width, -1.0, 1.0)
        return -np.clip(0.5 + t * (3.0 - t * t) / 4.0, 0.0, 1.0)

    def margin_curvature(self, margins: Floats) -> Floats:
        """Return ℓ″(z)."""
        t = (1.0 - margins) / self.width
        return np.asarray(self.curvature_bound * np.maximum(1.0 - t * t, 0.0))


def _sigmoid(scores: Floats) -> Floats:
    # The tanh form neither overflows nor loses the small tail's sign.
    return 0.5 * (1.0 + np.tanh(0.5 * scores))


@dataclass(frozen=True, slots=True, kw_only=True)
class Logistic(_Margin):
    """The logistic loss log(1 + e^{−z}), one-vs-rest; slope at most 1, curvature at most 1/4."""

    name: ClassVar[str] = "logistic"
    curvature_bound: ClassVar[float] = 0.25

    def margin_value(self, margins: Floats) -> Floats:
        """Return ℓ(z)."""
        return np.asarray(np.logaddexp(0.0, -margins))

    def margin_slope(self, margins: Floats) -> Floats:
        """Return ℓ′(z) ∈ [−1, 0]."""
        return -_sigmoid(-margins)

    def margin_curvature(self, margins: Floats) -> Floats:
        """Return ℓ″(z)."""
        positive = _sigmoid(margins)
        return positive * (1.0 - positive)


@dataclass(frozen=True, slots=True, kw_only=True)
class Squared(ScoreLoss):
    """Half the squared error (s − t)²/2, against ±1 targets or real ones.

    The slope is not bounded; proofs use the ball in which a regularised minimiser must lie.
    """

    name: ClassVar[str] = "squared"
    curvature_bound: ClassVar[float] = 1.0

    def slope_norm(self, width: int) -> float:
        """Return infinity."""
        return math.inf

    def value(self, scores: Floats, targets: Floats) -> Floats:
        """Return (s − t)²/2."""
        return np.asarray(0.5 * np.square(scores - targets))

    def slope(self, scores: Floats, targets: Floats) -> Floats:
        """Return s − t."""
        return scores - targets

    def curvature_product(self, scores: Floats, targets: Floats) -> Callable[[Floats], Floats]:
        """Return the identity."""
        return lambda direction: direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax(ScoreLoss):
    """The multinomial logistic loss: one joint gradient over all classes.

    The slope is p − e_y with norm at most √2 (p on another class's corner). With two classes one weight row is
    enough (the other is the reference), the slope is σ(s) − t ∈ [−1, 1].
    """

    name: ClassVar[str] = "softmax"
    curvature_bound: ClassVar[float] = 0.5
    """The largest eigenvalue of diag(p) − ppᵀ."""
    separable: ClassVar[bool] = False

    def slope_norm(self, width: int) -> float:
        """Return √2, or 1 for a single score."""
        return 1.0 if width == 1 else math.sqrt(2.0)

    def write_slopes(self, scores: Floats, targets: NDArray[np.float32], start: int) -> None:
        """Replace scores (K, m) by slopes, those of several classes by compiled code."""
        if len(scores) == 1:
            ScoreLoss.write_slopes(self, scores, targets, start)
        else:
            from dpalgos import _compiled

            _compiled.write_slopes(scores, targets, start)

    def targets(self, labels: Ints, classes: int) -> Floats:
        """Return one-hot targets (n, outputs)."""
        return (signs(labels, classes) + 1.0) / 2.0

    def probabilities(self, scores: Floats) -> Floats:
        """Return class probabilities (n, outputs), of class 1 alone where there is one score."""
        if scores.shape[1] == 1:
            return _sigmoid(scores)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        # Class after class: the same numbers however rows lie in memory and however many there are.
        return np.asarray(powers / functools.reduce(np.add, powers.T)[:, None])

    def value(self, scores: Floats, targets: Floats) -> Floats:
        """Return −log p_y, (n, 1)."""
        if scores.shape[1] == 1:
            return np.asarray(np.logaddexp(0.0, scores) - targets * scores)
        top = scores.max(axis=1, keepdims=True)
        total = top + np.log(np.exp(scores - top).sum(axis=1, keepdims=True))
        return np.asarray(total - (targets * scores).sum(axis=1, keepdims=True))

    def slope(self, scores: Floats, targets: Floats) -> Floats:
        """Return p − e_y."""
        return self.probabilities(scores) - targets

    def curvature_product(self, scores: Floats, targets: Floats) -> Callable[[Floats], Floats]:
        """Return multiplication by diag(p) − ppᵀ, row by row."""
        p = self.probabilities(scores)
        if scores.shape[1] == 1:
            variance = p * (1.0 - p)
            return lambda direction: variance * direction

        def product(direction: Floats) -> Floats:
            weighted = p * direction
            return np.asarray(weighted - p * weighted.sum(axis=1, keepdims=True))

        return product


_LOSSES: dict[str, type[Any]] = {cls.name: cls for cls in (HuberHinge, SmoothedHinge, Logistic, Squared, Softmax)}


def loss_names() -> tuple[str, ...]:
    """Return the losses' names, sorted."""
    return tuple(sorted(_LOSSES))


def make_loss(loss: str, width: float | None = None) -> ScoreLoss:
    """Return a loss by name; ``width`` is h of the smooth hinges and left out elsewhere.

    Raises
    ------
    UnknownNameError
        Naming the nearest losses.
    ParameterError
        If a width is given to a loss that has none, or is not above 0.
    """
    if loss not in _LOSSES:
        near = difflib.get_close_matches(loss, loss_names(), n=3, cutoff=0.4) or list(loss_names())
        raise UnknownNameError(f"no loss is called {loss!r}; nearest: {', '.join(near)}")
    if width is not None and _LOSSES[loss] not in (HuberHinge, SmoothedHinge):
        raise ParameterError(f"the loss {loss!r} has no width; leave it out")
    loss_function: ScoreLoss = _LOSSES[loss]() if width is None else _LOSSES[loss](width=width)
    return loss_function
