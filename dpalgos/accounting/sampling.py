"""What Poisson sampling of rows saves: T steps of a sampled Gaussian as one (s, μ) entry, under replace-special.

At each step every record takes part with probability q, independently, and nobody learns which; the sum of those that
do gets Gaussian noise of z times the largest norm of a record's part. A record that is null adds nothing whether it
takes part or not. So, given what was released before and who else takes part, two data sets that differ in one record,
null on one side, give N(0, z²I) on that side, and on the other (1 − q) N(0, z²I) + q N(v, z²I), ‖v‖ ≤ 1. Of these pairs
the one with ‖v‖ = 1, in one dimension,

    ``P = (1 - q) N(0, z^2) + q N(1, z^2)  against  Q = N(0, z^2)``,

dominates in both orders (Zhu, Dong, Wang 2022, Theorem 11; averaging over the others' draws is post-processing of a
pair that names them), and T steps, each chosen in view of those before, are dominated by T independent copies
(Theorem 10).

Under *replace-one* nothing of this holds at twice the sensitivity: a replaced record takes part on both sides, with
other values, and no single pair of this kind dominates; what is proved there needs another analysis, and is no longer
what peers print (Lebeda, Regehr, Kamath, Steinke, "Avoiding pitfalls for privacy accounting of subsampled mechanisms
under composition", 2024).

A sum of μ² or ρ sees nothing of the sampling: far out in its tail P is as far from Q as without it (at large orders the
Rényi divergences are those of N(1, z²), a constant apart), so the least μ with H ≤ G everywhere is 1/z a step, as if q
were 1. With s > 0 the far tail is paid for apart (:mod:`dpalgos.accounting.domination`), and the rest is close to a
Gaussian of far smaller μ.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpalgos.accounting.domination import Curve
from dpalgos.errors import ParameterError
from dpalgos.mechanisms.gaussian import mu_from_epsilon_delta
from dpalgos.rows import Floats

_CELLS = 10_000
_UNIT = 2.0**-53
_RESOLUTION = 3e-3


def gaussian_part(epsilon: float, delta: float, slack: float) -> float:
    """Return the largest μ for which revealing everything with probability s, beside μ-GDP, is (ε, δ)-DP.

    ``s + (1 − s) δ_μ(ε) ≤ δ``; rounded down.

    Raises
    ------
    ParameterError
        If s is not between 0 and δ.
    """
    if not 0.0 < slack < delta:
        raise ParameterError(f"the slack is {slack!r}; it must lie between 0 and delta, which is {delta!r}")
    return mu_from_epsilon_delta(epsilon, math.nextafter((delta - slack) / (1.0 - slack) * (1.0 - 1e-14), 0.0))


def sampled_curve(rate: float, multiplier: float, steps: int, reach: float) -> tuple[Floats, Floats]:
    """Return epsilons from 0 to ``reach`` and upper bounds on δ there, of both orders of the pair.

    Parameters
    ----------
    rate : float
        q, in (0, 1].
    multiplier : float
        z: the noise's standard deviation over the largest norm of a record's part.
    steps : int
        T.
    reach : float

    Notes
    -----
    Guarantee. Never low: dp-accounting puts each step's loss on a grid by "connect the dots", which dominates, and
    moves the tails that it cuts off to infinity. Its T-fold convolution is one fast Fourier transform of length N, a
    power and an inverse transform. With unit round-off u, transforms err by at most ``7 u log2 N`` of their l2 norm
    (Higham 2002, Theorem 24.2); entries are at most 1 in absolute value, so the T-th power multiplies the error by T at
    most, and its own rounding adds less than ``8 T u``. In l1 that is at most ``16 (T + 4) u log2 N sqrt N``, charged.
    """
    from dp_accounting.pld import privacy_loss_distribution

    interval = reach / _CELLS
    one = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, value_discretization_interval=interval, sampling_prob=rate
    )
    composed = one.self_compose(steps, 1e-15)
    epsilons = np.linspace(0.0, reach, 257)
    points = 2.0 ** math.ceil(math.log2(4 * _CELLS + 2 * steps))
    lost = 16 * (steps + 4) * _UNIT * math.log2(points) * math.sqrt(points) + 1e-15
    return epsilons, np.minimum(np.asarray(composed.get_delta_for_epsilon(epsilons)) * (1 + 1e-9) + lost, 1.0)


@lru_cache(maxsize=64)
def noise_multiplier(rate: float, steps: int, slack: float, mu: float) -> float:
    """Return a noise multiplier z for which T sampled steps are (s, μ) in the sense of this module, nearly the least.

    Parameters
    ----------
    rate : float
        q, in (0, 1].
    steps : int
        T.
    slack : float
        s, in (0, 1).
    mu : float

    Returns
    -------
    float
        At most √T/μ, which is enough without sampling, and is what remains where float64 proves no less (a huge ε, or
        a tiny s); below it proved by :class:`~dpalgos.accounting.domination.Curve`, within about 0.3 % of the least.
    """
    if rate == 1.0:
        return math.sqrt(steps) / mu * (1.0 + 1e-15)
    # Beyond, a Gaussian of this mu has less than s left; the curve must have come down to s as well.
    reach = 1.3 * mu * (mu / 2.0 + math.sqrt(-2.0 * math.log(slack)))

    def holds(multiplier: float) -> bool:
        return Curve(*sampled_curve(rate, multiplier, steps, reach), slack).excess(mu) <= 0.0

    # Without sampling it is √T/μ, which holds with it too: hockey-stick divergences are jointly convex.
    high = math.sqrt(steps) / mu * (1.0 + 1e-15)
    low = high * max(rate, 1e-3) / 2.0
    while high > low * (1.0 + _RESOLUTION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
