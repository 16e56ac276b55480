"""Sequential minimal optimisation of the C-SVM dual, for any kernel and any rule of working set selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpalgos.kernels import Kernel
from dpalgos.rows import Floats, Ints
from dpalgos.smo.rows_cache import KernelRows
from dpalgos.smo.working_sets import Extremes, WorkingSetRule

__all__ = ["Solution", "solve"]

# LIBSVM's numbers: iterations between two shrinkings, and the limit nobody should meet.
_SHRINK_EVERY = 1000
_FEWEST_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What SMO ends with.

    Parameters
    ----------
    coefficients : array (n,)
        y_t α_t; the decision value of z is Σ_t coefficients[t] k(x_t, z) + bias.
    bias : float
    objective : float
        ½ αᵀQα − Σα, the dual objective that is minimised.
    duality_gap : float
        Primal value of (w, bias) minus the dual value: how far the objective is from its minimum at most.
    violation : float
        m − M, the largest violation of optimality.
    iterations : int
    converged : bool
        Whether the violation is below the tolerance; a rule that has run out of pairs may stop before.
    """

    coefficients: Floats
    bias: float
    objective: float
    duality_gap: float
    violation: float
    iterations: int
    converged: bool

    @property
    def support(self) -> Ints:
        """Numbers of the rows with a coefficient."""
        return np.flatnonzero(self.coefficients)


class _State:
    """α and v over all rows, and the part of them that is active."""

    def __init__(self, kernel: Kernel, features: Any, y: Floats, cost: float) -> None:
        n = len(y)
        self.kernel_rows = KernelRows(kernel, features)
        self.row = self.kernel_rows.row
        self.cost = cost
        self.all_y, self.all_alpha, self.all_v = y, np.zeros(n), y.copy()
        self.y: Floats
        self.alpha: Floats
        self.v: Floats
        self._activate(np.arange(n))

    def _activate(self, ids: Ints) -> None:
        self.ids = ids
        self.y, self.alpha, self.v = self.all_y[ids], self.all_alpha[ids], self.all_v[ids]
        may_grow, may_shrink = self.alpha < self.cost, self.alpha > 0
        self.up = np.where(self.y > 0, may_grow, may_shrink).astype(np.uint8)
        self.low = np.where(self.y > 0, may_shrink, may_grow).astype(np.uint8)
        self.diagonal = self.kernel_rows.diagonal

    def _write_back(self) -> None:
        self.all_alpha[self.ids], self.all_v[self.ids] = self.alpha, self.v

    @property
    def shrunken(self) -> bool:
        """Whether some rows are not active."""
        return len(self.ids) < len(self.all_y)

    def shrink(self, m: float, smallest: float) -> None:
        """Set aside the rows at a bound that no violating pair can hold while m and M stay as they are."""
        idle = (~self.low.astype(bool) & (self.v < smallest)) | (~self.up.astype(bool) & (self.v > m))
        kept = np.flatnonzero(~idle)
        # Dropping a few rows is not worth copying the rest.
        if len(kept) > 0.98 * len(idle) or len(kept) < 2:
            return
        self._write_back()
        self.kernel_rows.keep(kept)
        self._activate(self.ids[kept])

    def restore(self) -> None:
        """Make every row active, with v computed afresh where it was set aside."""
        self._write_back()
        aside = np.setdiff1d(np.arange(len(self.all_y)), self.ids, assume_unique=True)
        support = np.flatnonzero(self.all_alpha)
        coefficients = (self.all_y * self.all_alpha)[support]
        self.all_v[aside] = self.all_y[aside] - self.kernel_rows.scores(aside, support, coefficients)
        self.kernel_rows.restore()
        self._activate(np.arange(len(self.all_y)))


def _bias(state: _State, ends: Extremes) -> float:
    """Return the bias: the mean of v over the free rows, else the middle of what optimality allows."""
    free = (state.alpha > 0) & (state.alpha < state.cost)
    if free.any():
        return float(state.v[free].mean())
    finite = [end for end in (ends.m, ends.smallest) if np.isfinite(end)]
    return sum(finite) / len(finite) if finite else 0.0


def solve(
    kernel: Kernel,
    features: Any,
    y: Floats,
    *,
    cost: float,
    tolerance: float,
    rule: WorkingSetRule,
    shrinking: bool,
) -> Solution:
    """Minimise ½ αᵀQα − Σα subject to 0 ≤ α ≤ cost and yᵀα = 0, where Q_st = y_s y_t k(x_s, x_t).

    Each iteration moves the pair the rule selects to the minimum along its feasible line. Memory is a constant number
    of vectors of length n, a bounded cache of kernel rows, and what the rule remembers of the pairs it selected.

    Parameters
    ----------
    kernel : Kernel
    features : array or sparse matrix (n, d)
        Finite.
    y : array (n,) of ±1
        One class alone, or no rows, give α = 0 and the class as bias.
    cost : float
        C, positive.
    tolerance : float
        Stop where m − M is below it.
    rule : WorkingSetRule
    shrinking : bool
        Set aside rows at a bound that seem to stay there; checked again before the end.

    Notes
    -----
    A rule may have a method ``advance(state, tolerance, budget)``, which takes several of its steps at once: it returns
    how many, and the position of the kernel row that is missing for the next, or None where there is another reason to
    stop.

    References
    ----------
    Platt 1999; Fan, Chen, Lin 2005; shrinking as in Chang, Lin, "LIBSVM: a library for support vector machines", 2011,
    section 5.1.
    """
    from dpalgos.smo.compiled import scan, step

    n = len(y)
    # The mirrored problem has the same pairs, but begins each with what violates most on the other side. That is how
    # scikit-learn's LIBSVM does it, whose +1 is the first class. Of Sun et al.'s sets it takes 0.8 to 0.9 times as many
    # iterations on a1a, australian, diabetes and splice, but twice as many on heart and breast-cancer. (LIBSVM's own
    # program makes a label +1 its +1: for its iterations that label is class 0 here.)
    state = _State(kernel, features, -np.asarray(y, dtype=np.float64), cost)
    select, advance = rule.selector(n, tolerance), getattr(rule, "advance", None)
    limit = max(_FEWEST_LIMIT, 100 * n)
    iterations, until_shrinking, near_end = 0, min(n, _SHRINK_EVERY) if shrinking else limit, False
    while iterations < limit:
        if advance is not None:
            # Steps between which nothing else is to do are taken all at once.
            done, missing = advance(state, tolerance, min(until_shrinking, limit - iterations))
            iterations, until_shrinking = iterations + done, until_shrinking - done
            if missing is not None:
                state.row(missing)
                continue
        ends = Extremes(*scan(state.v, state.up, state.low))
        if shrinking and until_shrinking == 0:
            until_shrinking = min(n, _SHRINK_EVERY)
            if not near_end and ends.m - ends.smallest <= 10 * tolerance:
                # So near the end, what was set aside too early is worth taking back once.
                near_end = True
                if state.shrunken:
                    state.restore()
                    ends = Extremes(*scan(state.v, state.up, state.low))
            state.shrink(ends.m, ends.smallest)
            ends = Extremes(*scan(state.v, state.up, state.low))
        pair = select(state, ends) if ends.m - ends.smallest >= tolerance else None
        if pair is None:
            if not state.shrunken:
                break
            state.restore()
            until_shrinking = 1
            continue
        until_shrinking -= 1
        iterations += 1
        i, j = pair
        step(
            i,
            j,
            cost,
            state.y,
            state.alpha,
            state.v,
            state.up,
            state.low,
            state.diagonal,
            state.row(i),
            state.row(j),
        )
    if state.shrunken:
        state.restore()
    ends = Extremes(*scan(state.v, state.up, state.low))
    bias = _bias(state, ends)
    # w·x_t = y_t − v_t, so every sum below needs only vectors that are at hand.
    norm = float(np.sum(state.alpha * (1.0 - state.y * state.v)))
    total = float(np.sum(state.alpha))
    losses = float(np.sum(np.maximum(0.0, state.y * (state.v - bias))))
    return Solution(
        coefficients=-state.y * state.alpha,
        bias=-bias,
        objective=0.5 * norm - total,
        duality_gap=max(0.0, norm - total + cost * losses),
        violation=max(0.0, ends.m - ends.smallest),
        iterations=iterations,
        converged=not ends.m - ends.smallest >= tolerance,
    )
