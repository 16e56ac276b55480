"""What it costs that work on private rows may take longer than the public deadline at which its release appears."""

from __future__ import annotations

import math
from functools import lru_cache

from dpalgos.accounting.composition import compose
from dpalgos.guarantees import Loss, NoGuarantee, SlackGaussian

_STEPS = (1.0, 10.0, 100.0, 1000.0)
_COARSE = 0.01
_LARGEST_EPSILON = 100.0
_ROUNDING = 1 + 1e-9


@lru_cache(maxsize=4096)
def loss_of_overruns(losses: tuple[Loss, ...], probability: float) -> Loss:
    """Return the loss to be composed with a release's own where its time is observed and an overrun is possible.

    Guarantee
    ---------
    Let M be the release, dominated by a pair with hockey-stick divergence H_t, t > 0, in both orders, and
    ``f(a) = 1 - sup {P(S) : Q(S) <= a}`` its trade-off function. O is what is observed: M's output at the deadline, or,
    with probability at most b on any rows, anything else at any other time. Whether there is an overrun may depend on
    the rows *and* on the output. Then for neighbours

    ``H_t(O) <= s + (1 - s) H_t   for all t > 0, in both orders``,   ``s = c / (1 - H_1)``,   ``c = b + 1 - f(b)``,

    so O costs no more than M composed with (0, s)-DP.

    Proof. On time, O is M's law less a measure k <= Q of mass at most b, and on the first data at most P. An event S
    and an overrun give ``H_t(O) <= b + sup_S [P(S) - t (Q - k)(S)]``. With g = dP/dQ, removing k gains t dk where
    g > t, and elsewhere at most ``g - t + t dk/dQ <= g dk/dQ`` a point: everywhere at most ``g dk``, together at most
    ``sup {∫ g dk : k <= Q, k(1) <= b} = 1 - f(b)``. Hence ``H_t(O) <= H_t + c`` for all t. For t >= 1,
    ``c = s (1 - H_1) <= s (1 - H_t)``. For t < 1, ``H_t(P, Q) = 1 - t + t H_{1/t}(Q, P)`` on either side gives
    ``H_t(O) <= H_t + t c <= H_t + s t (1 - H_{1/t}(Q, P)) = H_t + s (1 - H_t)``.

    The total variation b alone is not enough: on the other data all overruns may fall on outputs that are rare there
    and e^epsilon times likelier here. At one epsilon, c is ``(1 + e^epsilon) b`` for pure losses.

    f and H_1 are bounded by points (e, d) of the profile: ``1 - f(b) <= e^e b + d`` and
    ``1 - H_1 >= 2 (1 - d) / (1 + e^e)`` (add (e, d) on S and, in the other order, on its complement). Any point
    will do, and the best of a few is taken.

    Parameters
    ----------
    losses : tuple of Loss
        Of the release.
    probability : float
        b, above 0.

    Returns
    -------
    SlackGaussian or NoGuarantee
        Slack s and mu 0; no guarantee where s is not below 1. It is for these neighbours alone: s follows from M's own
        divergence, so k neighbours in a row do not cost k s (:func:`dpalgos.accounting.scaling.group_loss`).
    """
    profile = compose(losses)
    points = [
        (epsilon, delta)
        for delta in sorted({min(step * probability, _COARSE) for step in _STEPS} | {_COARSE})
        if (epsilon := profile.epsilon(delta)) <= _LARGEST_EPSILON
    ]
    if not points:
        return NoGuarantee(f"no bound on what overruns of probability {probability:g} reveal")
    lost = min(probability * (1 + math.exp(epsilon)) + delta for epsilon, delta in points)
    alike = max(2 * (1 - delta) / (1 + math.exp(epsilon)) for epsilon, delta in points)
    slack = lost / alike * _ROUNDING
    if slack >= 1:
        return NoGuarantee(f"overruns of probability {probability:g} may reveal everything at so large an epsilon")
    return SlackGaussian(0.0, slack)
