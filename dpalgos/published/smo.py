"""Sequential minimal optimisation of the C-SVM's dual.

A rule says which pair of dual variables an iteration moves: one class per rule, one table of names.
Throughout, v_t = −y_t ∇f(α)_t; I_up and I_low hold the t whose y_t α_t may grow and shrink; m = max of v over I_up and
M = min of v over I_low, so that (i, j) violates optimality where i ∈ I_up, j ∈ I_low and v_i > v_j.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from dpalgos.kernels import Kernel
from dpalgos.parameters import Bounded, between
from dpalgos.published.kernel_rows import KernelRows
from dpalgos.rows import Floats, Ints, RandomStream

# Random numbers that are asked for at once.
_DRAWS = 1024
# LIBSVM's numbers: iterations between two shrinkings, and the limit nobody should meet.
_SHRINK_EVERY = 1000
_FEWEST_LIMIT = 10_000_000
# Where rounded kernel rows moved v by more than this share of the tolerance, and it was not reached, they stay float64.
_DRIFT = 0.1


@dataclass(frozen=True, slots=True)
class Extremes:
    """Positions and values of the two ends: ``i`` attains m over I_up, ``j`` attains M over I_low."""

    i: int
    m: float
    j: int
    smallest: float


Selector = Callable[["Active", Extremes], tuple[int, int] | None]
"""Return the working set as positions, None where the rule admits no pair. Called only while m − M ≥ tolerance."""


class WorkingSetRule(Protocol):
    """A rule of selection; what it remembers from iteration to iteration lives in the selector it makes."""

    def selector(self, rows: int, tolerance: float) -> Selector:
        """Return a fresh selector for a problem of that many rows."""


def _with_best_partner(active: Active, i: int, threshold: float) -> tuple[int, int] | None:
    """Return i with the j, v_j ≤ threshold, that promises the largest fall of the objective; None without one."""
    j = active.compiled.second_order(
        active.v, active.low, active.row(i), active.diagonal, i, float(active.v[i]), threshold
    )
    return (i, j) if j >= 0 else None


@dataclass(frozen=True, slots=True)
class MaximalViolatingPair:
    """WSS 1: i attains m and j attains M.

    References
    ----------
    Keerthi, Shevade, Bhattacharyya 2001; WSS 1 of Fan, Chen, Lin 2005.
    """

    def selector(self, rows: int, tolerance: float) -> Selector:
        """Return the selector."""
        return lambda active, ends: (ends.i, ends.j)


@dataclass(frozen=True, slots=True)
class SecondOrder:
    """WSS 2, LIBSVM's: i attains m; j promises the largest fall of the objective, (v_i − v_j)²/(K_ii + K_jj − 2 K_ij).

    References
    ----------
    Fan, Chen, Lin, "Working set selection using second order information for training support vector machines",
    JMLR 6 (2005), WSS 2.
    """

    def selector(self, rows: int, tolerance: float) -> Selector:
        """Return the selector."""
        return lambda active, ends: _with_best_partner(active, ends.i, np.inf)

    def advance(self, active: Active, tolerance: float, budget: int) -> tuple[int, int | None]:
        """Take steps at once; see :func:`solve`."""
        rows = active.kernel_rows
        done, missing, rows.clock = active.compiled.second_order_steps(
            budget,
            tolerance,
            active.cost,
            active.y,
            active.alpha,
            active.v,
            active.up,
            active.low,
            active.diagonal,
            rows.held,
            rows.places,
            rows.used,
            rows.clock,
        )
        return done, missing if missing >= 0 else None


@dataclass(frozen=True, slots=True)
class ConstantFactor(Bounded):
    """WSS 3: any pair with v_i − v_j ≥ σ (m − M).

    The papers leave open which of those pairs is taken. Here i is the next in cyclic order that has a partner, and j
    promises the largest fall of the objective among its partners. With σ = 1 this is WSS 1 but for ties.

    References
    ----------
    Chen, Fan, Lin, "A study on SMO-type decomposition methods for support vector machines", 2006; WSS 3 of Fan, Chen,
    Lin 2005.
    """

    sigma: float = field(metadata=between(0.0, 1.0, open_low=True))

    def selector(self, rows: int, tolerance: float) -> Selector:
        """Return a selector that remembers the last i."""
        last = -1

        def select(active: Active, ends: Extremes) -> tuple[int, int] | None:
            nonlocal last
            needed = self.sigma * (ends.m - ends.smallest)
            # Rounding must not lose the pair of extremes, which meets the condition in real arithmetic.
            sufficient = np.flatnonzero((active.up != 0) & (active.v >= min(ends.smallest + needed, ends.m)))
            last = int(sufficient[np.searchsorted(sufficient, last, side="right") % len(sufficient)])
            return _with_best_partner(active, last, max(float(active.v[last]) - needed, ends.smallest))

        return select


@dataclass(frozen=True, slots=True)
class FirstConstantFactor(Bounded):
    """WSS 4: i attains m, and any j ∈ I_low with v_i − v_j ≥ σ (m − M).

    The paper leaves open which j; here it is the one that promises the largest fall of the objective. WSS 4 then
    runs from WSS 2 (σ → 0) to WSS 1 (σ = 1, but for ties).

    References
    ----------
    Sun, Yang, Li, Zhang, "DPWSS", PeerJ Computer Science 7:e799 (2021), WSS 4, eqs. 20–23.
    """

    sigma: float = field(metadata=between(0.0, 1.0, open_low=True))

    def selector(self, rows: int, tolerance: float) -> Selector:
        """Return the selector."""
        return lambda active, ends: _with_best_partner(
            active, ends.i, max(ends.m - self.sigma * (ends.m - ends.smallest), ends.smallest)
        )


@dataclass(frozen=True, slots=True)
class PrivateSelection(Bounded):
    """DPWSS: the exponential mechanism over the pairs that WSS 4 admits, each pair once.

    i attains m. A partner j ∈ I_low with v_i − v_j > tolerance, not drawn before with this i, has the score
    q = (m − v_j)/(m − M); those with q ≥ σ are drawn with probability ∝ exp(ε q / (2 Δq)), Δq = 1 − σ.

    Guarantee
    ---------
    None; see :class:`dpalgos.published.machines.DpWss`. Δq = 1 − σ bounds how far two admitted scores of *one* data set
    lie apart. A neighbouring data set has other candidates altogether: a pair that names a replaced record has
    probability zero in one of them.

    Parameters
    ----------
    sigma : float
        In (0, 1): at 1 the claimed sensitivity is zero and the mechanism undefined.
    epsilon : float
        Of one selection.
    stream : RandomStream

    References
    ----------
    Sun, Yang, Li, Zhang, "DPWSS", PeerJ Computer Science 7:e799 (2021), Algorithm 1, eqs. 26–28.
    """

    sigma: float = field(metadata=between(0.0, 1.0, open_low=True, open_high=True))
    epsilon: float
    stream: RandomStream

    def selector(self, rows: int, tolerance: float) -> Selector:
        """Return a selector that remembers the pairs it has drawn."""
        exponent = self.epsilon / (2.0 * (1.0 - self.sigma))
        drawn: defaultdict[int, list[int]] = defaultdict(list)
        uniforms: list[float] = []

        def select(active: Active, ends: Extremes) -> tuple[int, int] | None:
            if not uniforms:
                uniforms.extend(((self.stream.words(_DRAWS) >> np.uint64(11)) * 2.0**-53).tolist())
            uniform, partners = uniforms.pop(), drawn[int(active.ids[ends.i])]
            falls = ends.m - active.v
            scores = falls / (ends.m - ends.smallest)
            admitted = np.flatnonzero(
                (active.low != 0) & ~np.isin(active.ids, partners) & (falls > tolerance) & (scores >= self.sigma)
            )
            weights = np.cumsum(np.exp(exponent * (scores[admitted] - 1.0)))
            if not weights.any():
                return None
            place = np.searchsorted(weights, uniform * weights[-1], side="right")
            j = int(admitted[min(int(place), len(admitted) - 1)])
            partners.append(int(active.ids[j]))
            return ends.i, j

        return select


RULES: Mapping[str, Callable[[float], WorkingSetRule]] = MappingProxyType(
    {
        "wss1": lambda sigma: MaximalViolatingPair(),
        "wss2": lambda sigma: SecondOrder(),
        "wss3": ConstantFactor,
        "wss4": FirstConstantFactor,
    }
)
"""How to make each named rule from σ, which the first two do not need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Result of SMO.

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


class Active:
    """α and v over all rows, and the part of them that is active, as a rule sees it: arrays over its positions.

    ``ids`` holds each active row's number among all rows, which stays when shrinking moves it to another position.

    v is moved step by step along kernel rows that may be rounded, and :meth:`settle` says what it is without that.
    """

    def __init__(self, kernel: Kernel, features: Any, y: Floats, cost: float) -> None:
        from dpalgos.published import _smo as compiled

        n = len(y)
        # The compiler is imported where a problem is solved, and not before.
        self.compiled = compiled
        self.kernel_rows = KernelRows(kernel, features)
        self.row = self.kernel_rows.row
        self.cost = cost
        self.all_y, self.all_alpha, self.all_v = y, np.zeros(n), y.copy()
        # α and v when every row was active last, and how far v may be from what α says by the rounding until then.
        self._last_alpha, self._last_v, self._drift = self.all_alpha.copy(), self.all_v.copy(), 0.0
        # Rows in the order of LIBSVM's, which shrinking changes: of equals the last one is taken.
        self._order: Ints = np.arange(n)
        self.y: Floats
        self.alpha: Floats
        self.v: Floats
        self._activate(n)

    def _activate(self, active: int) -> None:
        ids = self.ids = self._order[:active].copy()
        self.y, self.alpha, self.v = self.all_y[ids], self.all_alpha[ids], self.all_v[ids]
        may_grow, may_shrink = self.alpha < self.cost, self.alpha > 0
        self.up = np.where(self.y > 0, may_grow, may_shrink).astype(np.uint8)
        self.low = np.where(self.y > 0, may_shrink, may_grow).astype(np.uint8)
        self.diagonal = self.kernel_rows.diagonal

    def write_back(self) -> None:
        """Write α and v of the active rows to where those of all rows are, in their own order."""
        self.all_alpha[self.ids], self.all_v[self.ids] = self.alpha, self.v

    @property
    def shrunken(self) -> bool:
        """Whether some rows are not active."""
        return len(self.ids) < len(self.all_y)

    def shrink(self, m: float, smallest: float) -> None:
        """Set aside the rows at a bound that no violating pair can hold while m and M stay as they are."""
        idle = (~self.low.astype(bool) & (self.v < smallest)) | (~self.up.astype(bool) & (self.v > m))
        moved = np.arange(len(idle))
        active = self.compiled.set_aside(idle, moved)
        if active == len(idle) or active < 2:
            return
        self.write_back()
        self._order[: len(idle)] = self.ids[moved]
        self.kernel_rows.keep(moved[:active])
        self._activate(active)

    def restore(self) -> None:
        """Make every row active, with v of those set aside moved by all that α has moved meanwhile."""
        self.write_back()
        aside = self._order[len(self.ids) :]
        moved = np.flatnonzero(self.all_alpha != self._last_alpha)
        by = (self.all_y * (self.all_alpha - self._last_alpha))[moved]
        if aside.size:
            self.all_v[aside] = self._last_v[aside] - self.kernel_rows.scores(aside, moved, by)
            self.kernel_rows.restore(self._order.copy())
        self._drift += self.kernel_rows.rounding * float(np.abs(by).sum())
        self._last_alpha, self._last_v = self.all_alpha.copy(), self.all_v.copy()
        self._activate(len(self.all_y))

    def settle(self, tolerance: float) -> float:
        """Make every row active, with v computed in float64 from α alone wherever it decides anything.

        That is at the support vectors and where v is so near to the bias that rounding may hide a loss or an end. With
        D what rounding has moved v by at most, y (v − bias) < −3 D − tolerance at every other row: of any v within D of
        that, and the bias that belongs to it, the row has no loss and attains neither m nor M above its bound. (What
        float64 itself rounds is left out of D, and covered by counting it twice.)

        Returns how far v was from what it is now at most.
        """
        self.restore()
        slack = 6.0 * self._drift + tolerance
        margins = self.all_y * (self.all_v - _bias(self))
        at, support = np.flatnonzero((self.all_alpha > 0) | (margins >= -slack)), np.flatnonzero(self.all_alpha)
        exact = self.all_y[at] - self.kernel_rows.scores(at, support, (self.all_y * self.all_alpha)[support])
        moved = float(np.abs(exact - self.all_v[at]).max(initial=0.0))
        self.all_v[at] = exact
        self._last_v = self.all_v.copy()
        self._activate(len(self.all_y))
        return moved

    def extremes(self) -> Extremes:
        """Return the two ends of the active rows."""
        return Extremes(*self.compiled.scan(self.v, self.up, self.low))

    def violation(self) -> float:
        """Return m − M of the active rows."""
        ends = self.extremes()
        return ends.m - ends.smallest


def _bias(state: Active) -> float:
    """Return the bias: the mean of v over the free rows, else the middle of what optimality allows."""
    free = (state.alpha > 0) & (state.alpha < state.cost)
    if free.any():
        return float(state.v[free].mean())
    ends = state.extremes()
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
    of vectors of length n, the rows once more, column by column, a bounded cache of kernel rows, and what the rule
    remembers of the pairs it selected.

    Every step rounds as LIBSVM's does, whose kernel rows are float32: with WSS 2 the iterations are the same, one by
    one, until rows that were set aside return. What is returned is not rounded so: v is computed in float64
    from α at the end, and where the tolerance is not reached then, it goes on.

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
    n = len(y)
    # The mirrored problem has the same pairs, but begins each with what violates most on the other side. That is how
    # scikit-learn's LIBSVM does it, whose +1 is the first class. Of Sun et al.'s sets it takes 0.9 times as many
    # iterations on australian and diabetes, but twice as many on heart. (LIBSVM's own program makes a label +1 its +1:
    # for its iterations that label is class 0 here.)
    state = Active(kernel, features, -np.asarray(y, dtype=np.float64), cost)
    select, advance = rule.selector(n, tolerance), getattr(rule, "advance", None)
    limit = max(_FEWEST_LIMIT, 100 * n)
    iterations, until_shrinking, near_end = 0, min(n, _SHRINK_EVERY) if shrinking else limit, False
    # Iterations when v was settled, and the violation that was left when rounding had hidden it.
    settled_at, missed = 0, np.inf
    while iterations < limit:
        if advance is not None:
            # Steps between which nothing else is to do are taken all at once.
            done, missing = advance(state, tolerance, min(until_shrinking, limit - iterations))
            iterations, until_shrinking = iterations + done, until_shrinking - done
            if missing is not None:
                state.row(missing)
                continue
        ends = state.extremes()
        if shrinking and until_shrinking == 0:
            until_shrinking = min(n, _SHRINK_EVERY)
            if not near_end and ends.m - ends.smallest <= 10 * tolerance:
                # So near the end, what was set aside too early is worth taking back once.
                near_end = True
                if state.shrunken:
                    state.restore()
            state.shrink(ends.m, ends.smallest)
            ends = state.extremes()
        pair = select(state, ends) if ends.m - ends.smallest >= tolerance else None
        if pair is None:
            if state.shrunken:
                state.restore()
                until_shrinking = 1
                continue
            if settled_at == iterations:
                break
            moved, settled_at = state.settle(tolerance), iterations
            violation = state.violation()
            if violation >= tolerance and moved > _DRIFT * tolerance:
                if state.kernel_rows.rounded:
                    state.kernel_rows.widen()
                elif violation > 0.5 * missed:
                    # Float64 cannot tell either: the tolerance is below what it resolves.
                    break
                missed = violation
            continue
        until_shrinking -= 1
        iterations += 1
        i, j = pair
        state.compiled.step(
            i,
            j,
            state.row(i),
            state.row(j),
            state.diagonal,
            state.y,
            cost,
            state.alpha,
            state.v,
            state.up,
            state.low,
        )
    if state.shrunken or settled_at < iterations:
        state.settle(tolerance)
    intercept, violation = _bias(state), state.violation()
    state.write_back()
    alpha, v = state.all_alpha, state.all_v
    # w·x_t = y_t − v_t, so every sum below needs only vectors that are at hand.
    norm = float(np.sum(alpha * (1.0 - state.all_y * v)))
    total = float(np.sum(alpha))
    losses = float(np.sum(np.maximum(0.0, state.all_y * (v - intercept))))
    return Solution(
        coefficients=-state.all_y * alpha,
        bias=-intercept,
        objective=0.5 * norm - total,
        duality_gap=max(0.0, norm - total + cost * losses),
        violation=max(0.0, violation),
        iterations=iterations,
        converged=not violation >= tolerance,
    )
