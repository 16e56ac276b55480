"""How far a sum of positive parts of Gaussians exceeds a level, in expectation: an upper bound to many digits."""

import math

import numpy as np
import scipy

from dpalgos.rows import Floats

_STEP = 0.02
_UNIT = 2.0**-53


def _log_excess(points: Floats, shift: float) -> Floats:
    """Return log E[(y - x)+], y = (g + shift)+ with g ~ N(0, 1), at points x >= 0."""
    z = points - shift
    # phi(z) - z Phi(-z): the factor phi(z) is taken out where the terms are small.
    far = np.maximum(z, 0.0)
    inside = 1.0 - far * math.sqrt(math.pi / 2.0) * scipy.special.erfcx(far / math.sqrt(2.0))
    tail = -(far**2) / 2.0 - math.log(math.sqrt(2.0 * math.pi)) + np.log(inside)
    near = np.minimum(z, 0.0)
    density = np.exp(-(near**2) / 2.0) / math.sqrt(2.0 * math.pi)
    return np.asarray(np.where(z > 0, tail, np.log(density - near * np.exp(scipy.special.log_ndtr(-near)))))


def _log_moment(tilt: float, shift: float) -> tuple[float, float]:
    """Return log E[e^(tilt y)] and its derivative."""
    moved = tilt * shift + tilt**2 / 2.0
    none, some = float(scipy.special.log_ndtr(-shift)), float(moved + scipy.special.log_ndtr(shift + tilt))
    whole = float(np.logaddexp(none, some))
    density = math.exp(moved - (shift + tilt) ** 2 / 2.0 - whole) / math.sqrt(2.0 * math.pi)
    return whole, density + (shift + tilt) * math.exp(some - whole)


def log_expected_excess(count: int, shift: float, level: float) -> float:
    """Return an upper bound on log E[(S - level)+], S the sum of ``count`` independent (g + shift)+, g ~ N(0, 1).

    Parameters
    ----------
    count : int
        At least 1.
    shift : float
        At least 0.
    level : float
        Above 0.

    Notes
    -----
    Guarantee. Never low. (i) Each summand y is cut at a far Y, which costs at most ``count E[(y - Y)+]``. (ii) The cut
    distribution is put on a grid by moving the mass of each cell to the cell's ends, means kept; that makes it larger
    in the convex order, which sums of independent numbers inherit, and x -> (x - level)+ is convex, so the expectation
    grows (by a factor of about 1 + 10^-3). The mass of a node is the second difference of ``E[(y - x)+]`` over the
    step. (iii) The sum is convolved by fast Fourier transforms of the distribution tilted by e^(tilt y), so that the
    part above the level is the bulk. An error of the tilted distribution in l1 is multiplied by at most ``exp(-tilt
    level) / (tilt e)``, the largest value of ``exp(-tilt s) (s - level)+``; with N points and unit round-off u it is at
    most ``21 u log2(N) sqrt(N)`` a summand (:func:`~dpalgos.accounting.composition.library_profile`).
    """
    tilt = 0.1
    if _log_moment(tilt, shift)[1] * count < level:
        tilt = float(
            scipy.optimize.brentq(lambda t: _log_moment(t, shift)[1] * count - level, tilt, level + 1.0, xtol=1e-6)
        )
    farthest = 2.0 * shift + tilt + math.hypot(14.0, level / math.sqrt(count))
    nodes: Floats = _STEP * np.arange(math.ceil(farthest / _STEP) + 2, dtype=np.float64)
    log_values = _log_excess(nodes, shift)
    # Second differences relative to the middle value, so that far tails keep their precision.
    middle = log_values[1:-1]
    bends = np.expm1(log_values[:-2] - middle) + np.expm1(log_values[2:] - middle)
    first = -math.expm1(log_values[1] - log_values[0]) * math.exp(log_values[0])
    last = log_values[-2] + math.log(-math.expm1(log_values[-1] - log_values[-2]))
    with np.errstate(divide="ignore"):
        logs = np.concatenate(
            [
                [math.log(max(1.0 - first / _STEP, 1e-300))],
                middle + np.log(np.maximum(bends, 1e-300)) - math.log(_STEP),
                [last - math.log(_STEP)],
            ]
        )
    logs = logs + tilt * nodes
    largest = float(logs.max())
    weights = np.exp(logs - largest)
    whole = float(weights.sum())
    log_moment = (largest + math.log(whole)) * count
    length = 2 ** math.ceil(math.log2(count * nodes.size + 1))
    summed = np.fft.irfft(np.fft.rfft(weights / whole, length) ** count, length)
    sums = _STEP * np.arange(length)
    above = sums > level
    expected = float(
        np.sum(np.maximum(summed[above], 0.0) * np.exp(-tilt * (sums[above] - level)) * (sums[above] - level))
    )
    lost = 21.0 * _UNIT * math.log2(length) * math.sqrt(length) * count / (math.e * tilt)
    bulk = log_moment - tilt * level + math.log(expected + lost)
    return float(np.logaddexp(bulk, math.log(count) + log_values[-1])) + 1e-8
