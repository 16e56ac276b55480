"""Working set selection: which pair of dual variables an iteration of SMO moves. One class a rule, one table of names.

Throughout, v_t = −y_t ∇f(α)_t; I_up and I_low hold the t whose y_t α_t may grow and shrink; m = max of v over I_up and
M = min of v over I_low, so that (i, j) violates optimality where i ∈ I_up, j ∈ I_low and v_i > v_j.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpalgos.kernels import KernelRows
from dpalgos.parameters import Bounded, between
from dpalgos.rows import Features, Floats, Ints, RandomStream

_DRAWS = 1024

Flags = NDArray[np.uint8]


class Active(Protocol):
    """The rows in play, as a rule sees them: arrays over positions 0 … active − 1."""

    v: Floats
    up: Flags
    low: Flags
    ids: Ints
    """Number of each active row among all rows; stays the same when shrinking moves it to another position."""
    diagonal: Floats

    def row(self, position: int) -> Features:
        """Return the kernel row of one position."""


class Stepped(Active, Protocol):
    """The rows in play, as a rule that takes steps itself changes them."""

    y: Floats
    alpha: Floats
    cost: float
    kernel_rows: KernelRows
    gains: Floats
    """Working space."""


@dataclass(frozen=True, slots=True)
class Extremes:
    """Positions and values of the two ends: ``i`` attains m over I_up, ``j`` attains M over I_low."""

    i: int
    m: float
    j: int
    smallest: float


Selector = Callable[[Active, Extremes], tuple[int, int] | None]
"""Return the working set as positions, None where the rule admits no pair. Called only while m − M ≥ tolerance."""


class WorkingSetRule(Protocol):
    """A rule of selection; what it remembers from iteration to iteration lives in the selector it makes."""

    def selector(self, rows: int, tolerance: float) -> Selector:
        """Return a fresh selector for a problem of that many rows."""


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
        from dpalgos.smo.compiled import second_order

        def select(active: Active, ends: Extremes) -> tuple[int, int] | None:
            row = active.row(ends.i)
            j = second_order(active.v, active.low, row, active.diagonal, ends.i, ends.m, np.inf)
            return (ends.i, j) if j >= 0 else None

        return select

    def advance(self, active: Stepped, tolerance: float, budget: int) -> tuple[int, int | None]:
        """Take steps at once; see :func:`dpalgos.smo.solver.solve`."""
        from dpalgos.smo.compiled import second_order_steps

        rows = active.kernel_rows
        done, missing, rows.clock = second_order_steps(
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
            active.gains,
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
        from dpalgos.smo.compiled import first_sufficient, second_order

        last = -1

        def select(active: Active, ends: Extremes) -> tuple[int, int] | None:
            nonlocal last
            needed = self.sigma * (ends.m - ends.smallest)
            # Rounding must not lose the pair of extremes, which meets the condition in real arithmetic.
            i = first_sufficient(active.v, active.up, min(ends.smallest + needed, ends.m), last)
            v_i = float(active.v[i])
            j = second_order(
                active.v, active.low, active.row(i), active.diagonal, i, v_i, max(v_i - needed, ends.smallest)
            )
            last = i
            return i, j

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
        from dpalgos.smo.compiled import second_order

        def select(active: Active, ends: Extremes) -> tuple[int, int] | None:
            threshold = max(ends.m - self.sigma * (ends.m - ends.smallest), ends.smallest)
            j = second_order(active.v, active.low, active.row(ends.i), active.diagonal, ends.i, ends.m, threshold)
            return (ends.i, j) if j >= 0 else None

        return select


@dataclass(frozen=True, slots=True)
class PrivateSelection(Bounded):
    """DPWSS: the exponential mechanism over the pairs that WSS 4 admits, each pair once.

    i attains m. A partner j ∈ I_low with v_i − v_j > tolerance, not drawn before with this i, has the score
    q = (m − v_j)/(m − M); those with q ≥ σ are drawn with probability ∝ exp(ε q / (2 Δq)), Δq = 1 − σ.

    Guarantee
    ---------
    None; see :class:`dpalgos.trainers.smo.DpWss`. Δq = 1 − σ bounds how far two admitted scores of *one* data set
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
        from dpalgos.smo.compiled import draw_partner

        exponent = self.epsilon / (2.0 * (1.0 - self.sigma))
        drawn: dict[int, list[int]] = {}
        marks = np.zeros(rows, dtype=np.uint8)
        uniforms: list[float] = []

        def select(active: Active, ends: Extremes) -> tuple[int, int] | None:
            if not uniforms:
                uniforms.extend(((self.stream.words(_DRAWS) >> np.uint64(11)) * 2.0**-53).tolist())
            partners = drawn.setdefault(int(active.ids[ends.i]), [])
            marks[partners] = 1
            barred = marks[active.ids]
            marks[partners] = 0
            j = draw_partner(
                active.v,
                active.low,
                barred,
                ends.m,
                ends.smallest,
                self.sigma,
                exponent,
                tolerance,
                uniforms.pop(),
            )
            if j < 0:
                return None
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
