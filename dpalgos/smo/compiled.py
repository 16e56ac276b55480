"""The inner loops, compiled; imported when a solver starts."""

from __future__ import annotations

import numpy as np

from dpalgos.compiling import compiled
from dpalgos.rows import Floats, Ints

__all__ = ["draw_partner", "first_sufficient", "scan", "second_order", "step", "sweep"]

_TAU = 1e-12  # stands in for a curvature that is not positive (LIBSVM's value)


@compiled
def scan(v: Floats, up: np.ndarray, low: np.ndarray) -> tuple[int, float, int, float]:
    """Return (argmax, max) of v over ``up`` and (argmin, min) of v over ``low``, the last of equals as in LIBSVM."""
    i, largest, j, smallest = -1, -np.inf, -1, np.inf
    for t in range(v.size):
        if up[t] and v[t] >= largest:
            i, largest = t, v[t]
        if low[t] and v[t] <= smallest:
            j, smallest = t, v[t]
    return i, largest, j, smallest


@compiled
def first_sufficient(v: Floats, up: np.ndarray, threshold: float, after: int) -> int:
    """Return the first t in cyclic order after ``after`` that is in ``up`` with v[t] ≥ threshold, −1 if none."""
    n = v.size
    for step_ in range(1, n + 1):
        t = (after + step_) % n
        if up[t] and v[t] >= threshold:
            return t
    return -1


@compiled
def second_order(
    v: Floats, low: np.ndarray, row: Floats, diagonal: Floats, i: int, v_i: float, threshold: float
) -> int:
    """Return j in ``low`` with v_j < v_i, v_j ≤ threshold and the largest (v_i − v_j)²/curvature; −1 if none."""
    j, best = -1, -np.inf
    for t in range(v.size):
        if low[t] and v[t] < v_i and v[t] <= threshold:
            curvature = diagonal[i] + diagonal[t] - 2.0 * row[t]
            if curvature <= 0.0:
                curvature = _TAU
            gain = (v_i - v[t]) * (v_i - v[t]) / curvature
            if gain >= best:
                j, best = t, gain
    return j


@compiled
def draw_partner(
    v: Floats,
    low: np.ndarray,
    barred: np.ndarray,
    m: float,
    smallest: float,
    sigma: float,
    exponent: float,
    tolerance: float,
    uniform: float,
) -> int:
    """Return j with probability ∝ exp(exponent · score_j) over the pairs DPWSS admits; −1 if there is none."""
    spread = m - smallest
    total = 0.0
    for t in range(v.size):
        if low[t] and not barred[t] and m - v[t] > tolerance:
            score = (m - v[t]) / spread
            if score >= sigma:
                total += np.exp(exponent * (score - 1.0))
    if total == 0.0:
        return -1
    left, j = uniform * total, -1
    for t in range(v.size):
        if low[t] and not barred[t] and m - v[t] > tolerance:
            score = (m - v[t]) / spread
            if score >= sigma:
                j = t
                left -= np.exp(exponent * (score - 1.0))
                if left < 0.0:
                    break
    return j


@compiled
def step(
    i: int,
    j: int,
    cost: float,
    y: Floats,
    alpha: Floats,
    v: Floats,
    up: np.ndarray,
    low: np.ndarray,
    diagonal: Floats,
    row_i: Floats,
    row_j: Floats,
) -> None:
    """Move y_i α_i up and y_j α_j down to the minimum along that line within the box; update v and the index sets."""
    curvature = diagonal[i] + diagonal[j] - 2.0 * row_i[j]
    if curvature <= 0.0:
        curvature = _TAU
    delta = (v[i] - v[j]) / curvature
    room_i = cost - alpha[i] if y[i] > 0 else alpha[i]
    room_j = alpha[j] if y[j] > 0 else cost - alpha[j]
    delta = min(delta, room_i, room_j)
    # A bound that is reached is set exactly, so that the index sets never hang on a rounding.
    if delta == room_i:
        alpha[i] = cost if y[i] > 0 else 0.0
    else:
        alpha[i] = min(max(alpha[i] + y[i] * delta, 0.0), cost)
    if delta == room_j:
        alpha[j] = 0.0 if y[j] > 0 else cost
    else:
        alpha[j] = min(max(alpha[j] - y[j] * delta, 0.0), cost)
    for t in (i, j):
        up[t] = alpha[t] < cost if y[t] > 0 else alpha[t] > 0.0
        low[t] = alpha[t] > 0.0 if y[t] > 0 else alpha[t] < cost
    for t in range(v.size):
        v[t] -= delta * (row_i[t] - row_j[t])


@compiled
def sweep(order: Ints, rows: Floats, y: Floats, squares: Floats, cost: float, alpha: Floats, weights: Floats) -> float:
    """One pass of dual coordinate descent without the equality constraint; return the largest projected gradient."""
    largest = 0.0
    d = weights.size
    for t in order:
        margin = 0.0
        for f in range(d):
            margin += rows[t, f] * weights[f]
        gradient = y[t] * margin - 1.0
        before = alpha[t]
        projected = gradient
        if before <= 0.0:
            projected = min(gradient, 0.0)
        elif before >= cost:
            projected = max(gradient, 0.0)
        if projected == 0.0:
            continue
        largest = max(largest, abs(projected))
        # A row of zeros has no margin to gain: its loss is constant and its variable belongs at the bound.
        after = min(max(before - gradient / squares[t], 0.0), cost) if squares[t] > 0.0 else cost
        alpha[t] = after
        change = (after - before) * y[t]
        for f in range(d):
            weights[f] += change * rows[t, f]
    return largest
