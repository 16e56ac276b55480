"""The inner loops of SMO, compiled; imported when it starts."""

import numpy as np

from dpalgos.compiling import compiled_in_order
from dpalgos.rows import Features, Floats, Ints

_TAU = 1e-12  # stands in for a curvature that is not positive (LIBSVM's value)


@compiled_in_order
def scan(v: Floats, up: np.ndarray, low: np.ndarray) -> tuple[int, float, int, float]:
    """Return (argmax, max) of v over ``up`` and (argmin, min) of v over ``low``, the last of equals as in LIBSVM."""
    i, largest, j, smallest = -1, -np.inf, -1, np.inf
    for t in range(v.size):
        if up[t] and v[t] >= largest:
            i, largest = t, v[t]
        if low[t] and v[t] <= smallest:
            j, smallest = t, v[t]
    return i, largest, j, smallest


@compiled_in_order
def second_order(
    v: Floats, low: np.ndarray, row: Features, diagonal: Floats, i: int, v_i: float, threshold: float
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


@compiled_in_order
def step(
    i: int,
    j: int,
    row_i: Features,
    row_j: Features,
    diagonal: Floats,
    y: Floats,
    cost: float,
    alpha: Floats,
    v: Floats,
    up: np.ndarray,
    low: np.ndarray,
) -> None:
    """Move y_i α_i up and y_j α_j down to the minimum along that line within the box; update v and the index sets."""
    curvature = diagonal[i] + diagonal[j] - 2.0 * row_i[j]
    if curvature <= 0.0:
        curvature = _TAU
    delta = (v[i] - v[j]) / curvature
    before_i, before_j = alpha[i], alpha[j]
    # LIBSVM's way to the box: what the line keeps gives the other bound, so that neither leaves it by a rounding.
    if y[i] != y[j]:
        difference = before_i - before_j
        after_i, after_j = before_i + y[i] * delta, before_j + y[i] * delta
        if min(after_i, after_j) < 0.0:
            after_i, after_j = max(difference, 0.0), max(-difference, 0.0)
        if max(after_i, after_j) > cost:
            after_i, after_j = min(cost, cost + difference), min(cost, cost - difference)
    else:
        total = before_i + before_j
        least, most = max(total - cost, 0.0), min(total, cost)
        after_i, after_j = before_i + y[i] * delta, before_j - y[i] * delta
        if after_i > cost or after_j < 0.0:
            after_i, after_j = most, least
        if after_j > cost or after_i < 0.0:
            after_i, after_j = least, most
    alpha[i], alpha[j] = after_i, after_j
    for t in (i, j):
        up[t] = alpha[t] < cost if y[t] > 0 else alpha[t] > 0.0
        low[t] = alpha[t] > 0.0 if y[t] > 0 else alpha[t] < cost
    by_i, by_j = y[i] * (after_i - before_i), y[j] * (after_j - before_j)
    for t in range(v.size):
        v[t] -= by_i * np.float64(row_i[t]) + by_j * np.float64(row_j[t])


@compiled_in_order
def set_aside(idle: np.ndarray, order: Ints) -> int:
    """Exchange each idle position with the last that is not, as LIBSVM does; ``order`` is moved along.

    Returns how many positions, the first ones, are not idle.
    """
    active, i = idle.size, 0
    while i < active:
        if idle[i]:
            active -= 1
            while active > i and idle[active]:
                active -= 1
            if active > i:
                order[i], order[active] = order[active], order[i]
        i += 1
    return active


@compiled_in_order
def second_order_steps(
    budget: int,
    tolerance: float,
    cost: float,
    y: Floats,
    alpha: Floats,
    v: Floats,
    up: np.ndarray,
    low: np.ndarray,
    diagonal: Floats,
    held: Features,
    places: Ints,
    used: Ints,
    clock: int,
) -> tuple[int, int, int]:
    """Take up to ``budget`` steps of WSS 2, the last of equals as in LIBSVM, while no kernel row is missing.

    Returns the number of steps, the position of the row that is missing (−1 if none is), and the clock of
    :class:`dpalgos.published.kernel_rows.KernelRows`.
    """
    done = 0
    while done < budget:
        i, m, _, smallest = scan(v, up, low)
        if not m - smallest >= tolerance:
            break
        if places[i] < 0:
            return done, i, clock
        row = held[places[i]]
        j = second_order(v, low, row, diagonal, i, m, np.inf)
        if j < 0:
            break
        clock += 1
        used[places[i]] = clock
        if places[j] < 0:
            return done, j, clock
        used[places[j]] = clock
        step(i, j, row, held[places[j]], diagonal, y, cost, alpha, v, up, low)
        done += 1
    return done, -1, clock
