"""What a release promises at every level at once: its Gaussian-DP parameter, and the trade-off curve of any test.

An (epsilon, delta) pair is one point of what is proved. The trade-off function f of a release gives, for every test of
"this row was in" against "another row was" with type I error alpha, a bound f(alpha) below which its type II error
cannot fall (Dong, Roth, Su 2022, Definition 1): f(alpha) = 1 - alpha says that nothing can be learnt.

A release that is (epsilon, delta)-DP in both orders of every neighbouring pair has, for a test with rejection
probability alpha under one and 1 - beta under the other,

    1 - beta <= e^epsilon alpha + delta    and    1 - alpha <= e^epsilon beta + delta,

so beta >= max(1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha)) (Wasserman, Zhou 2010, Theorem 2.4). Every
point of a proved privacy profile gives such a bound, and so does the largest of finitely many: the curve below is
never above the true one. For Gaussian components it is exact, G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu).

References
----------
Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022).
Gomez et al., "(epsilon, delta) considered harmful: best practices for reporting differential privacy guarantees",
2025.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypedDict

import numpy as np
import scipy

from dpalgos.accounting.composition import components, compose
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Loss
from dpalgos.rows import Floats
from dpalgos.validation import rounded_down

TYPE_I_ERRORS = (0.001, 0.01, 0.05, *(round(0.1 * tenth, 1) for tenth in range(1, 10)))
"""Where curves are stated: what a careful test allows itself, and tenths."""

# How many points of a profile the curve of other than Gaussian releases is made of; each is proved by itself.
_POINTS = 48
_DELTAS = (1e-12, 1e-9, 1e-6, 1e-3, 0.1)
_DIGITS = 6


def gaussian_mu(losses: Sequence[Loss]) -> float | None:
    """Return mu of releases that together are mu-Gaussian-DP; None where one of them is of another type.

    Raises
    ------
    ParameterError
        For something that is not a loss type.
    """
    parts = components(losses)
    return None if parts.pure or parts.rhos or parts.slacks or parts.unproved is not None else parts.mu


# Parties of one plan mostly make releases that cost the same.
@lru_cache(maxsize=256)
def lines(losses: tuple[Loss, ...]) -> Floats:
    """Return points of the composed privacy profile: delta, e^epsilon and e^−epsilon of each, (3, points).

    A test of type I error α has a type II error of at least 1 − delta − e^epsilon α, and of at least
    e^−epsilon (1 − delta − α).
    """
    profile, corner = compose(losses), components(losses).epsilon
    finite = (epsilon for delta in _DELTAS if math.isfinite(epsilon := profile.epsilon(delta)))
    # The sum of pure epsilons is a corner of the curve; other points lie evenly up to the widest epsilon.
    epsilons = [corner, *np.linspace(0.0, next(finite, corner), _POINTS).tolist()]
    points = [(profile.delta(epsilon), math.exp(min(epsilon, 700.0)), math.exp(-epsilon)) for epsilon in epsilons]
    return np.array(points).T


def trade_off(losses_by_party: Iterable[Sequence[Loss]], alphas: Sequence[float] = TYPE_I_ERRORS) -> Floats:
    """Return a lower bound on the type II error of every test at each type I error.

    Parameters
    ----------
    losses_by_party : iterable of sequences of Loss
        What each party pays. A row belongs to one party, so the least of the parties' curves holds for every row.
    alphas : sequence of float
        Type I errors, between 0 and 1.

    Returns
    -------
    array (len(alphas),)
        Rounded down to six significant digits; zero where nothing is proved.

    Raises
    ------
    ParameterError
        If an alpha is no probability, or something is not a loss type.
    """
    levels = np.asarray(alphas, dtype=np.float64)
    if not ((levels >= 0) & (levels <= 1)).all():
        raise ParameterError(f"type I errors are {list(alphas)}; each must lie between 0 and 1")
    curve = 1.0 - levels
    distinct = {tuple(losses) for losses in losses_by_party}
    gaussian = {losses: mu for losses in distinct if (mu := gaussian_mu(losses)) is not None}
    if gaussian:
        # Curves of larger mu lie below; both functions err by a few units in the last place.
        shifted = -scipy.special.ndtri(levels) - max(gaussian.values())
        curve = np.minimum(curve, scipy.special.ndtr(shifted) * (1 - 1e-12))
    for losses in distinct - gaussian.keys():
        deltas, rises, falls = lines(losses)
        bounds = np.maximum(1.0 - deltas - rises * levels[:, None], falls * (1.0 - deltas - levels[:, None]))
        curve = np.minimum(curve, bounds.max(axis=1, initial=0.0) - 1e-15)
    return np.array([max(rounded_down(value, _DIGITS), 0.0) for value in curve.tolist()])


class Promise(TypedDict):
    """What a release promises beyond any one (epsilon, delta), for its manifest."""

    mu: float | None
    trade_off: list[tuple[float, float]] | None


def whole_promise(losses: Sequence[Loss]) -> Promise:
    """Return mu, where all is Gaussian, and the curve as pairs of errors; None where nothing is proved."""
    proved = components(losses).unproved is None
    curve = list(zip(TYPE_I_ERRORS, trade_off([losses]).tolist(), strict=True)) if proved else None
    return Promise(mu=gaussian_mu(losses), trade_off=curve)
