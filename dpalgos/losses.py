"""Losses of linear scores with the constants that proofs use, and certified minimisers of regularised risks."""

import difflib
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.elementary import exponentials, sigmoid
from dpalgos.parameters import POSITIVE, Bounded, ParameterError, UnknownNameError
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
    """Whether the loss is a sum over weight rows, so that each row is a separate problem."""

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

    def slope_in_order(self, scores: Floats, targets: Floats) -> Floats:
        """Return what :meth:`slope` does, rounded alike on every processor (:mod:`dpalgos.elementary`)."""
        return self.slope(scores, targets)

    @abstractmethod
    def curvature_product(self, scores: Floats, targets: Floats) -> Callable[[Floats], Floats]:
        """Return the map from directions (n, outputs) to second derivative times direction, at these scores."""

    def write_slopes(self, scores: Floats, targets: NDArray[np.float32], start: int) -> None:
        """Replace scores (K, m) by what :meth:`slope_in_order` returns of them.

        Parameters
        ----------
        scores : array (K, m)
            Overwritten.
        targets : array (K, n) of float32
            Those of the rows are the columns from ``start`` on.
        start : int
        """
        own = targets[:, start : start + scores.shape[1]].astype(np.float64)
        scores[:] = self.slope_in_order(scores.T, own.T).T


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

    def slope_in_order(self, scores: Floats, targets: Floats) -> Floats:
        """Return −y/(1 + e^{y s}), (n, outputs)."""
        return -targets * sigmoid(-(scores * targets))

    def write_slopes(self, scores: Floats, targets: NDArray[np.float32], start: int) -> None:
        """Replace scores (K, m) by slopes, in compiled code."""
        own = targets[:, start : start + scores.shape[1]]
        scores *= -own
        _write_sigmoids(scores)
        scores *= -own

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


def _write_sigmoids(numbers: Floats) -> None:
    """Replace numbers (K, m) by their sigmoids, in compiled code."""
    from dpalgos import _compiled

    for row in numbers:
        _compiled.write_sigmoids(row)


def _shares(powers: Floats) -> Floats:
    """Return powers (n, K) over their sum, row by row."""
    # Class after class: the same numbers however rows lie in memory and however many there are.
    return np.asarray(powers / functools.reduce(np.add, powers.T)[:, None])


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
            _write_sigmoids(scores)
            scores -= targets[:, start : start + scores.shape[1]]
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
        return _shares(np.exp(scores - scores.max(axis=1, keepdims=True)))

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

    def slope_in_order(self, scores: Floats, targets: Floats) -> Floats:
        """Return p − e_y."""
        if scores.shape[1] == 1:
            return sigmoid(scores) - targets
        return _shares(exponentials(scores - scores.max(axis=1, keepdims=True))) - targets

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
        raise UnknownNameError(f"loss {loss!r} is unknown; nearest: {', '.join(near)}")
    if width is not None and _LOSSES[loss] not in (HuberHinge, SmoothedHinge):
        raise ParameterError(f"the loss {loss!r} takes no width; omit it")
    return cast(ScoreLoss, _LOSSES[loss]() if width is None else _LOSSES[loss](width=width))


# Up to this many columns the Hessian of each weight row is formed and factorised; beyond, conjugate gradients.
_DIRECT_COLUMNS = 64
# Up to this many columns XᵀX is decomposed once to precondition the conjugate gradients.
_PRECONDITIONED_COLUMNS = 4096
_NEWTON_STEPS = 100
_INNER_STEPS = 400
_USUAL_INNER_STEPS = 100
_CANCELLATION = 2.0**-48
_UNIT = 2.0**-53
# Rows of one sum, so that the bound on a mean's rounding error does not grow with their number.
_BLOCK = 4096
# Relative error granted to the second-order terms that the standard bounds leave out.
_MARGIN = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The risk J(W) = (1/n) Σᵢ vᵢ ℓ(W xᵢ, tᵢ) + (Λ/2) ‖W‖² + ⟨B, W⟩.

    Parameters
    ----------
    features : array (n, d), rows in the unit ball
        No rows at all make the mean zero.
    targets : array (n, m), as the loss wants them
    loss : ScoreLoss
    regularisation : float, Λ > 0
    linear : array (m, d), optional
    weights : array (n,), optional
        vᵢ: 1/k for each of a person's k rows, so that a person's losses count as their mean; 1 where left out.
    records : int, optional
        What the sum is divided by: people where rows weigh, at least Σ vᵢ; rows where left out.
    """

    features: Floats
    targets: Floats
    loss: ScoreLoss
    regularisation: float
    linear: Floats | float = 0.0
    weights: Floats | None = None
    records: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (m, d) of the weights."""
        return int(self.targets.shape[1]), int(self.features.shape[1])

    @property
    def smoothness(self) -> float:
        """A Lipschitz constant of the gradient: the loss's curvature on the unit ball, plus Λ."""
        return self.loss.curvature_bound + self.regularisation

    @property
    def count(self) -> int:
        """Divisor of sums over rows, at least 1."""
        return max(len(self.features) if self.records is None else self.records, 1)

    def scores(self, weights: Floats) -> Floats:
        """Return X Wᵀ, (n, m)."""
        return np.asarray(self.features @ weights.T)

    def weighed(self, rowwise: Floats, start: int = 0) -> Floats:
        """Return numbers of some rows from ``start`` on, times what these weigh."""
        if self.weights is None:
            return rowwise
        own = self.weights[start : start + len(rowwise)]
        return rowwise * (own if rowwise.ndim == 1 else own[:, None])

    def _mean(self, rowwise: Floats) -> Floats:
        return np.asarray((self.weighed(rowwise).T @ self.features) / self.count)

    def value(self, weights: Floats) -> float:
        """Return J(W)."""
        rows = self.weighed(self.loss.value(self.scores(weights), self.targets)).sum() / self.count
        return float(rows + 0.5 * self.regularisation * np.sum(weights * weights) + np.sum(self.linear * weights))

    def gradient(self, weights: Floats) -> Floats:
        """Return ∇J(W), (m, d)."""
        return self.gradient_at(self.scores(weights), weights)

    def gradient_at(self, scores: Floats, weights: Floats) -> Floats:
        """Return ∇J(W) where the rows' scores are known."""
        slopes = self.loss.slope(scores, self.targets)
        return np.asarray(self._mean(slopes) + self.regularisation * weights + self.linear)

    def certified_gradient(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return ∇J(W) and upper bounds on the norms of the exact gradient.

        Guarantee
        ---------
        Each bound is the norm that was computed plus :func:`rounding_bound` at the slopes and weights found; the
        gradient is summed over blocks of rows for it. Given rows in the unit ball, IEEE arithmetic and elementary
        functions right to 2⁻⁵⁰ of what they are multiplied by, the exact gradient's norm is no larger.
        """
        slopes_of = np.zeros(len(weights))
        total = np.zeros(self.shape)
        for start in range(0, len(self.features), _BLOCK):
            rows, targets = self.features[start : start + _BLOCK], self.targets[start : start + _BLOCK]
            slopes = self.weighed(self.loss.slope(np.asarray(rows @ weights.T), targets), start)
            total += np.asarray(slopes.T @ rows)
            slopes_of += np.abs(slopes).sum(axis=0)
        gradient = self.regularisation * weights + self.linear + total / self.count
        joined = self.loss.separable
        slope = slopes_of / self.count if joined else np.asarray([np.linalg.norm(slopes_of / self.count)])
        return gradient, _norms(self, gradient) * (1.0 + 1e-12) + rounding_bound(
            self, slope=slope, weight=_norms(self, weights), linear=_norms(self, self.linear)
        )

    def only(self, rows: Ints) -> Self:
        """Return the problem of some weight rows; for separable losses."""
        return replace(self, targets=self.targets[:, rows], linear=np.broadcast_to(self.linear, self.shape)[rows])


def rounding_bound(problem: Problem, *, slope: Floats, weight: Floats, linear: Floats | float = 0.0) -> Floats:
    """Return how far the gradient of :meth:`Problem.certified_gradient` may be from the exact one, in l2.

    Parameters
    ----------
    problem : Problem
        Its numbers of rows, features and classes, its loss and regularisation; not what the rows contain.
    slope : array
        Mean size of the slopes, a weight row or jointly.
    weight, linear : array
        Norms of the weights and of the linear term, alike.

    Notes
    -----
    By the standard bounds (Higham, "Accuracy and stability of numerical algorithms", 2002, section 3.1), for any order
    of each sum, with unit round-off u: a score errs by ``(d + 2) u ‖w‖``, its slope by the loss's curvature c
    times that and by the elementary functions' error; a mean over n rows in q blocks of b errs by ``(b + q + 4) u``
    times the mean size of the slopes, because the rows' norms are at most 1; Λ w and the last additions err by a few u.
    Where rows weigh, 1/k and the product with it err by u each, so by two times that mean more; n is the number of
    rows, of which there may be ``rows_per_person`` times as many as records.
    """
    count, columns = problem.features.shape
    blocks = min(count, _BLOCK) + math.ceil(count / _BLOCK) + (4 if problem.weights is None else 6)
    elementary = (problem.shape[0] + 16) * 2.0**-50
    by_scores = problem.loss.curvature_bound * (columns + 6) * _UNIT * (weight + 1.0)
    by_sums = blocks * _UNIT * slope
    by_rest = _UNIT * (8.0 * problem.regularisation * weight + 4.0 * linear + 4.0 * slope)
    return np.asarray(_MARGIN * (by_scores + by_sums + by_rest + elementary))


def certified_minimiser(problem: Problem, tolerance: float) -> Floats:
    """Return weights whose exact gradient has at most this norm, of each weight row where the loss is separable.

    The certificate is :meth:`Problem.certified_gradient`; where :func:`minimise` has not earned it, gradient descent
    goes on until it has.

    Guarantee
    ---------
    Ends, and with the certificate, for every tolerance of at least ``4 (κ + 1) E``: κ = (c + Λ)/Λ and E the
    :func:`rounding_bound` at the minimiser. Proof. A step W − (∇ + e)/(c + Λ) with an error ‖e‖ ≤ E, its rounding
    included, shrinks the distance to the minimiser by the factor 1 − 1/κ and adds at most E/(c + Λ), so the distance
    tends to at most E/Λ, where the exact gradient is at most κ E and its certificate at most (κ + 2) E. Below twice
    that it comes within κ ln(κ² ‖∇J(W₀)‖/E) steps.
    """
    weights = minimise(problem, tolerance / 2.0)
    gradient, norms = problem.certified_gradient(weights)
    while (norms > tolerance).any():
        weights = weights - gradient / problem.smoothness
        gradient, norms = problem.certified_gradient(weights)
    return weights


def _norms(problem: Problem, values: Floats | float) -> Floats:
    """Per weight row where the rows are independent problems, over all of them otherwise."""
    full = np.broadcast_to(values, problem.shape)
    if problem.loss.separable:
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", full, full)))
    return np.asarray([np.linalg.norm(full)])


def _goal(problem: Problem, weights: Floats, tolerance: float) -> Floats:
    """Half the tolerance, or what float64 can tell from zero where large terms cancel."""
    large = _norms(problem, weights) * problem.regularisation + _norms(problem, problem.linear)
    return np.maximum(0.5 * tolerance, _CANCELLATION * large)


def minimise(problem: Problem, tolerance: float) -> Floats:
    """Minimise a strongly convex risk until the gradient's norm is at most ``tolerance``.

    Newton's method over all weight rows at once: Hessians factorised for few columns, preconditioned conjugate
    gradients beyond, a bracketing search along each direction. Losses with a piecewise linear slope (the Huber
    hinge) use an element of the generalised Hessian. Should Newton's method stall, Nesterov's accelerated gradient
    takes over; with the known condition number κ = (c + Λ)/Λ its number of steps is bounded for every data set:
    J(W_t) − J* ≤ (κ + 1)(1 − 1/√κ)^t (J(W_0) − J*), J(W_0) − J* ≤ ‖∇J(W_0)‖²/(2Λ) and ‖∇J‖² ≤ 2(c + Λ)(J − J*).
    So the tolerance is reached on any rows of the unit ball in real arithmetic, and in float64 as long as it is
    above the rounding error of the gradient: about 10⁻¹⁴, and 2⁻⁴⁸ of Λ‖W‖ + ‖B‖ where those are large.

    Total: nothing raises because of what the rows contain.

    Parameters
    ----------
    problem : Problem
    tolerance : float
        Bound on the l2 norm of the gradient, of each weight row where the loss is separable. The distance to the exact
        minimiser is at most this over Λ.

    Returns
    -------
    array (m, d)
    """
    if problem.features.size == 0:
        return np.zeros(problem.shape) - problem.linear / problem.regularisation
    weights = _newton(problem, np.zeros(problem.shape), tolerance)
    norms = _norms(problem, problem.gradient(weights))
    if (norms > 2.0 * _goal(problem, weights, tolerance)).any():
        weights = _accelerated(problem, weights, tolerance)
    return weights


def _newton(problem: Problem, weights: Floats, tolerance: float) -> Floats:
    precondition = _preconditioner(problem)
    active = np.arange(len(weights))
    scores = problem.scores(weights)
    part, best = problem, math.inf
    stalled = 0
    for _ in range(_NEWTON_STEPS):
        gradient = part.gradient_at(scores, weights[active])
        norms = _norms(part, gradient)
        open_rows = norms > _goal(part, weights[active], tolerance)
        if not open_rows.any():
            break
        stalled = stalled + 1 if norms.max() > 0.9 * best else 0
        best = min(best, float(norms.max()))
        if stalled > 15:
            break
        if problem.loss.separable and not open_rows.all():
            active, scores, gradient, norms = (
                active[open_rows],
                scores[:, open_rows],
                gradient[open_rows],
                norms[open_rows],
            )
            part = problem.only(active)
        direction = _direction(part, scores, gradient, norms, tolerance, precondition)
        along = part.features @ direction.T
        steps = _search(part, weights[active], scores, direction, along)
        weights[active] += steps[:, None] * direction
        scores = scores + steps[None, :] * along
    return weights


def _direction(
    problem: Problem,
    scores: Floats,
    gradient: Floats,
    norms: Floats,
    tolerance: float,
    precondition: Callable[[Floats, float], Floats] | None,
) -> Floats:
    """Solve Hessian · direction = −gradient, exactly or to a residual that shrinks with the gradient."""
    product = problem.loss.curvature_product(scores, problem.targets)
    classes, columns = gradient.shape
    if problem.loss.separable or classes == 1:
        curvature = product(np.ones_like(scores))
        if _is_cheaper_to_factorise(curvature, columns):
            return _factorised(problem, problem.weighed(curvature) / problem.count, gradient)
    mean_curvature = float(np.mean(product(np.ones_like(scores)))) if problem.loss.separable else 0.1

    def hessian_product(vectors: Floats) -> Floats:
        return problem._mean(product(problem.scores(vectors))) + problem.regularisation * vectors

    def apply(vectors: Floats) -> Floats:
        return vectors if precondition is None else precondition(vectors, mean_curvature)

    # A superlinear forcing sequence, but never much below what is asked for.
    target = np.maximum(np.minimum(0.3, np.sqrt(norms)) * norms, 0.2 * tolerance)
    return _conjugate_gradients(problem, hessian_product, apply, -gradient, target)


def _is_cheaper_to_factorise(curvature: Floats, columns: int) -> bool:
    """Whether forming the Hessians from the rows that bend them costs less than conjugate gradients would."""
    count, classes = curvature.shape
    forming = 2.0 * np.count_nonzero(curvature) * columns**2 + classes * columns**3
    return columns <= _DIRECT_COLUMNS or forming <= _USUAL_INNER_STEPS * 4.0 * count * classes * columns


def _factorised(problem: Problem, weights: Floats, gradient: Floats) -> Floats:
    direction = np.empty_like(gradient)
    for row in range(len(gradient)):
        bent = np.flatnonzero(weights[:, row])
        hessian = np.zeros((gradient.shape[1], gradient.shape[1]))
        # Block by block: weighted rows are another copy of them all otherwise.
        for start in range(0, len(bent), _BLOCK):
            own = bent[start : start + _BLOCK]
            features = problem.features[own]
            hessian += (features * weights[own, row : row + 1]).T @ features
        hessian[np.diag_indices(len(hessian))] += problem.regularisation
        direction[row] = np.linalg.solve(hessian, -gradient[row])
    return direction


def _preconditioner(problem: Problem) -> Callable[[Floats, float], Floats] | None:
    """Return vectors, curvature ↦ about (curvature · XᵀX/n + Λ)⁻¹ vectors.

    Factorised anew where the curvature is no longer within a factor of two: near enough for conjugate gradients, and a
    tenth of the work of an eigendecomposition, which would serve every curvature.
    """
    d = problem.features.shape[1]
    direct = d <= _DIRECT_COLUMNS and (problem.loss.separable or problem.shape[0] == 1)
    if direct or d > _PRECONDITIONED_COLUMNS:
        return None
    squares = problem.features.T @ problem.features / len(problem.features)
    held: list[tuple[float, tuple[Floats, bool]]] = []

    def apply(rows: Floats, curvature: float) -> Floats:
        if not held or not 0.5 * held[0][0] <= curvature <= 2.0 * held[0][0]:
            # Rounding may leave a square matrix of rows a little below zero.
            shifted = curvature * squares
            shifted[np.diag_indices(d)] += problem.regularisation + 1e-14 * curvature
            held[:] = [(curvature, scipy.linalg.cho_factor(shifted, lower=True, overwrite_a=True, check_finite=False))]
        return np.asarray(scipy.linalg.cho_solve(held[0][1], rows.T, check_finite=False).T)

    return apply


def _conjugate_gradients(
    problem: Problem,
    hessian_product: Callable[[Floats], Floats],
    precondition: Callable[[Floats], Floats],
    right: Floats,
    target: Floats,
) -> Floats:
    """Solve for all weight rows in lockstep; rows that are done stand still."""
    separable = problem.loss.separable

    def inner(a: Floats, b: Floats) -> Floats:
        if separable:
            return np.asarray(np.einsum("ij,ij->i", a, b))[:, None]
        return np.asarray([[np.vdot(a, b)]])

    solution = np.zeros_like(right)
    residual = right.copy()
    conjugate = preconditioned = precondition(residual)
    energy = inner(residual, preconditioned)
    for _ in range(_INNER_STEPS):
        image = hessian_product(conjugate)
        bend = inner(conjugate, image)
        moving = (np.sqrt(inner(residual, residual)) > target[:, None]) & (bend > 0)
        if not moving.any():
            break
        step = np.where(moving, energy / np.where(bend > 0, bend, 1.0), 0.0)
        solution = solution + step * conjugate
        residual = residual - step * image
        preconditioned = precondition(residual)
        new = inner(residual, preconditioned)
        conjugate = preconditioned + np.where(moving, new / np.where(energy > 0, energy, 1.0), 0.0) * conjugate
        energy = new
    return solution


def _search(problem: Problem, weights: Floats, scores: Floats, direction: Floats, along: Floats) -> Floats:
    """Return a step length a weight row, near the root of the (monotone) derivative along the direction."""
    quadratic = problem.regularisation * np.einsum("ij,ij->i", direction, direction)
    constant = np.einsum("ij,ij->i", problem.regularisation * weights + problem.linear, direction)

    def joined(rows: Floats) -> Floats:
        return rows if problem.loss.separable else np.full_like(rows, rows.sum())

    def derivative(steps: Floats) -> Floats:
        slopes = problem.loss.slope(scores + steps[None, :] * along, problem.targets)
        return joined(
            np.einsum("ij,ij->j", problem.weighed(slopes), along) / problem.count + steps * quadratic + constant
        )

    steps = np.ones(len(weights))
    start = np.abs(derivative(np.zeros(len(weights))))
    low, high = np.zeros(len(weights)), np.full(len(weights), np.inf)
    limit = 0.9
    for _ in range(40):
        now = derivative(steps)
        done = np.abs(now) <= limit * start
        if done.all():
            break
        limit = 0.25
        low = np.where(~done & (now < 0), steps, low)
        high = np.where(~done & (now > 0), steps, high)
        steps = np.where(
            done, steps, np.where(np.isinf(high), 2.0 * steps, 0.5 * (low + np.where(np.isinf(high), 0.0, high)))
        )
    return steps


def _accelerated(problem: Problem, weights: Floats, tolerance: float) -> Floats:
    """Nesterov's method for strongly convex functions, for as many steps as its bound asks for at most."""
    large, small = problem.smoothness, problem.regularisation
    root = math.sqrt(large / small)
    gap = float(np.sum(np.square(problem.gradient(weights)))) / (2.0 * small)
    bound = math.ceil(root * math.log(max(2.0 * large * gap * (large / small + 1.0) / tolerance**2, 2.0))) + 1
    momentum = (root - 1.0) / (root + 1.0)
    previous = weights
    for _ in range(bound):
        ahead = weights + momentum * (weights - previous)
        gradient = problem.gradient(ahead)
        if (_norms(problem, gradient) <= _goal(problem, ahead, tolerance)).all():
            return ahead
        previous, weights = weights, ahead - gradient / large
    return weights
