"""Certified dual coordinate descent for the C-SVM without a bias: its minimum to within a gap that is proved."""

from __future__ import annotations

import math

import numpy as np

from dpalgos.rows import Floats, Ints, RandomStream

_UNIT = 2.0**-53
# Rows whose products are summed at once; sums of such blocks are added one by one.
_BLOCK = 1024
# An inner loop stops when the largest violation is this share of what it was, or after so many passes' worth of work.
_INNER_SHARE = 0.05
_INNER_PASSES = 20
_INNER_WORK = 5
# Rows at a bound join the inner loop when their gradient is within this share of the largest violation.
_BAND = 0.1
# On the way to a large C the gap is closed to what would add this share to the sensitivity, or so many passes are made.
_COARSE = 0.1
_COARSE_PASSES = 20


def rounding_slack(rows: int, columns: int, cost: float, losses: float, total: float, norm: float) -> float:
    """Return a bound on the rounding error of the duality gap as :func:`certified_gap` computes it.

    Parameters
    ----------
    rows, columns : int
    cost : float
        C.
    losses : float
        C Σ hinge.
    total : float
        Σ α.
    norm : float
        ‖w‖.

    Notes
    -----
    Let u = 2⁻⁵³ and γ_k = k u/(1 − k u): a sum of k products is off by at most γ_k times the sum of their magnitudes,
    in any order and with or without fused multiply-add (Higham, *Accuracy and stability of numerical algorithms*,
    section 3.1). Rows have norm at most 1 up to 10⁻¹².

    A margin y z·w is off by at most γ_p ‖w‖ and 1 − margin by another u (1 + ‖w‖): together C n (p + 2) u (1 + ‖w‖)
    to first order. Σ hinge and Σ α are summed exactly and rounded once, ‖w‖² is off by at most γ_p ‖w‖².
    w itself stands for v = Σ α y z, from which it is off by e ≤ γ_{b + n/b + 1} Σ α in norm (blocks of b rows, then
    their sums; the triangle inequality over rows), so ½‖v‖² ≤ ½‖w‖² + ‖w‖ e + e²/2. The factor 2 in front covers all
    terms of second order and the additions themselves.
    """
    n, p = rows, columns
    summed = (p + 8) * _UNIT * (losses + total + norm**2)
    margins = (p + 8) * _UNIT * cost * n * (1.0 + norm)
    error = (min(n, _BLOCK) + n / _BLOCK + 8) * _UNIT * total
    return 2.0 * (summed + margins + norm * error + error**2)


def _weights(features: Floats, signed: Floats) -> Floats:
    """Return Σ signed[t] features[t], in blocks so that few roundings come one upon another."""
    total = np.zeros(features.shape[1])
    for start in range(0, len(signed), _BLOCK):
        block = slice(start, start + _BLOCK)
        total += features[block].T @ signed[block]
    return total


def certified_gap(features: Floats, y: Floats, alpha: Floats, cost: float, weights: Floats) -> tuple[float, Floats]:
    """Return an upper bound on the primal value of ``weights`` minus the minimum, and each row's gradient y z·w − 1.

    For 0 ≤ α ≤ C and v = Σ α y z the dual value Σα − ½‖v‖² is below the minimum of ½‖w‖² + C Σ hinge (weak duality), so
    the difference is at most the gap between the two values; the bound on its rounding error is added.

    Parameters
    ----------
    features : array (n, p), rows in the unit ball
    y : array (n,) of ±1
    alpha : array (n,)
    cost : float
    weights : array (p,)
        Must be :math:`v` as this module sums it.
    """
    gradient = y * (features @ weights) - 1.0
    losses = cost * math.fsum(np.maximum(0.0, -gradient))
    total, norm = math.fsum(alpha), math.sqrt(weights @ weights)
    slack = rounding_slack(len(y), features.shape[1], cost, losses, total, norm)
    return norm**2 + losses - total + slack, gradient


def minimise_hinge(features: Floats, y: Floats, cost: float, gap: float, order: RandomStream) -> Floats:
    """Return w with ½‖w‖² + C Σ max(0, 1 − y w·z) within ``gap`` of the minimum, certified.

    Dual coordinate descent (Hsieh et al. 2008): the dual without equality constraint, min ½ αᵀQα − Σα over
    0 ≤ α ≤ C, one variable at a time in random order, with w = Σ α y z kept up to date. An outer pass computes w and
    all gradients again; an inner loop works on the rows off their bounds and on those about to leave them. A large C is
    reached by tenfold steps, each from the α before times ten: variables that belong at the bound stay there, where
    steps of the size of a gradient would take C of them.

    Total: it goes on until the certificate is there, however long that takes. Every pass lowers the dual, which is
    bounded, and coordinate descent on it converges linearly (Luo, Tseng 1992); ``gap`` must be well above
    :func:`rounding_slack`.

    Parameters
    ----------
    features : array (n, p), rows in the unit ball
    y : array (n,) of ±1
    cost : float
    gap : float
    order : RandomStream
        Decides the order of the variables, which moves the result within the gap at most.

    Returns
    -------
    array (p,)

    References
    ----------
    Hsieh, Chang, Lin, Keerthi, Sundararajan, "A dual coordinate descent method for large-scale linear SVM", ICML 2008.
    """
    problem = _Problem(np.ascontiguousarray(features, dtype=np.float64), y, order)
    steps = max(0, math.ceil(math.log10(cost)))
    for step in range(steps, 0, -1):
        smaller = cost / 10.0**step
        problem.descend(smaller, 0.5 * (_COARSE * smaller) ** 2, _COARSE_PASSES)
        problem.alpha *= 10.0
    return problem.descend(cost, gap)


class _Problem:
    """The rows, and the dual variables as they are improved."""

    def __init__(self, features: Floats, y: Floats, order: RandomStream) -> None:
        self._features, self._y, self._order = features, y, order
        self._squares = np.einsum("ij,ij->i", features, features)
        self.alpha: Floats = np.zeros(len(y))

    def descend(self, cost: float, gap: float, passes: float = math.inf) -> Floats:
        """Improve α until the gap is certified, in at most so many passes; return w."""
        from dpalgos._compiled import sweep

        # Ten times one bound may be a rounding above the next.
        np.minimum(self.alpha, cost, out=self.alpha)
        done = 0
        while True:
            weights = _weights(self._features, self.alpha * self._y)
            bound, gradient = certified_gap(self._features, self._y, self.alpha, cost, weights)
            if bound <= gap or done >= passes:
                return weights
            violation, active = self._active(cost, gradient)
            rows, y, squares = self._features[active], self._y[active], self._squares[active]
            alpha = self.alpha[active]
            for _ in range(max(_INNER_PASSES, _INNER_WORK * len(self._y) // max(1, len(active)))):
                order = np.argsort(self._order.words(len(active)), kind="stable")
                if sweep(order, rows, y, squares, cost, alpha, weights) <= _INNER_SHARE * violation:
                    break
            self.alpha[active] = alpha
            done += 1

    def _active(self, cost: float, gradient: Floats) -> tuple[float, Ints]:
        """Return the largest violation of optimality, and the rows that the inner loop works on."""
        at_zero, at_cost = self.alpha <= 0, self.alpha >= cost
        projected = np.where(at_zero, np.minimum(gradient, 0.0), gradient)
        projected = np.where(at_cost, np.maximum(projected, 0.0), projected)
        violation = float(np.abs(projected).max(initial=0.0))
        band = _BAND * violation
        return violation, np.flatnonzero(~(at_zero & (gradient >= band)) & ~(at_cost & (gradient <= -band)))
