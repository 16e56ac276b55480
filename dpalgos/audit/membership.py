"""Membership inference by likelihood ratios (LiRA), and what a guarantee leaves such an attack.

Shadow models are trained on the same n records, of which each is in one of two states by a fair coin of its own: the
row, or what the neighbouring relation puts in its place (another row, or a null record). A model's score of a row is
how well it fits it. For one row and one model, the attack compares the score with the scores of the other models that
held the row and of those that did not, each taken as normal, and says "member" where the likelihood ratio is large.

*What a guarantee leaves.* Fix a row, the other records of a model and all other models. The two states of the row are
neighbours, and the attack's threshold on its ratio is a test of one against the other, which may use the other models
as they are independent of this one. Under a trade-off curve f its true positive rate is at most 1 − f(false positive
rate). 1 − f is concave, so the same holds for the rates averaged over rows, other records and models (Jensen), that is
for one threshold on all ratios. Hence, for the whole curve of such thresholds,

    advantage = max (TPR − FPR) ≤ max_α (1 − f(α) − α),   area under the ROC curve ≤ 1 − ∫ f(α) dα.

These are statements on expectations; measured rates scatter about them.

References
----------
Carlini, Chien, Nasr, Song, Terzis, Tramèr, "Membership inference attacks from first principles", IEEE S&P 2022.
Yeom, Giacomelli, Fredrikson, Jha, "Privacy risk in machine learning", CSF 2018 (the advantage).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpalgos.accounting.trade_off import trade_off
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Loss
from dpalgos.rows import Floats

_FEWEST = 8
_GRID, _SPLIT = 120, 0.1


@dataclass(frozen=True, slots=True)
class Attack:
    """How an attack does, or the most that a guarantee leaves it.

    Parameters
    ----------
    levels : array (m,)
        False positive rates, increasing from 0 to 1.
    rates : array (m,)
        True positive rates at these.
    """

    levels: Floats
    rates: Floats

    @property
    def advantage(self) -> float:
        """The largest difference of true and false positive rate."""
        return float((self.rates - self.levels).max())

    @property
    def area(self) -> float:
        """The area under the curve."""
        return float(np.trapezoid(self.rates, self.levels))

    def rate_at(self, level: float) -> float:
        """Return the true positive rate at the largest false positive rate of the curve that is at most ``level``."""
        place = int(np.searchsorted(self.levels, level, side="right")) - 1
        return float(self.rates[place])


def likelihood_ratios(scores: Floats, members: NDArray[np.bool_]) -> Floats:
    """Return the log-likelihood ratio of member to non-member for each model and row, (N, n).

    The normal laws of a row's scores are fitted on all models but the one in question, with one variance for all rows
    and both states, which few models can tell.

    Parameters
    ----------
    scores : array (N, n)
        How well each of N models fits each of n rows.
    members : bool array (N, n)
        Which rows each model held.

    Raises
    ------
    ParameterError
        For fewer than 8 models, or a row that fewer than three models held, or fewer than three did not.
    """
    if len(scores) < _FEWEST:
        raise ParameterError(f"{len(scores)} shadow models; at least {_FEWEST} are needed, and some dozens to see much")
    held, not_held = members.sum(axis=0), (~members).sum(axis=0)
    if min(held.min(), not_held.min()) < 3:
        raise ParameterError("a row was held by fewer than three models, or by all but two: train more shadow models")
    means = []
    for state in (members, ~members):
        # Without the model in question where it is in this state.
        total = np.where(state, scores, 0.0).sum(axis=0) - np.where(state, scores, 0.0)
        means.append(total / (state.sum(axis=0) - state))
    residual = scores - np.where(members, means[0], means[1])
    # Each model's own residuals are left out of its variance.
    squares = (residual**2).sum(axis=1)
    variance = (squares.sum() - squares) / (residual.size - residual.shape[1])
    variance = np.maximum(variance, 1e-12 * max(float(np.square(scores).mean()), 1e-300))[:, None]
    ratios: Floats = ((scores - means[1]) ** 2 - (scores - means[0]) ** 2) / (2.0 * variance)
    return ratios


def attack(ratios: Floats, members: NDArray[np.bool_]) -> Attack:
    """Return the ROC curve of one threshold on all ratios."""
    flat, states = ratios.ravel(), members.ravel()
    order = np.argsort(-flat, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(flat[order])), len(flat) - 1)
    hits, alarms = np.cumsum(states[order])[ends], np.cumsum(~states[order])[ends]
    levels, rates = alarms / max(int((~states).sum()), 1), hits / max(int(states.sum()), 1)
    return Attack(np.concatenate([[0.0], levels]), np.concatenate([[0.0], rates]))


def bound_of(bills: Sequence[Sequence[Loss]]) -> Attack:
    """Return the curve that no attack exceeds where each party pays one of these bills.

    The trade-off curve is bounded from below on a grid; between its points it is taken as the next one's, which is
    smaller, so that advantage and area are bounded from above.
    """
    # Small false positive rates are what matters to whoever is accused.
    levels = np.concatenate([[0.0], np.geomspace(1e-4, _SPLIT, _GRID)[:-1], np.linspace(_SPLIT, 1.0, _GRID)])
    missed = trade_off(bills, levels.tolist())
    return Attack(levels, 1.0 - np.append(missed[1:], 0.0))
