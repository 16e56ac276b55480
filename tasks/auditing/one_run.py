"""The audit of a whole training run, from one run: synthetic canaries, each flipped by a coin of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import time

import numpy as np

from dpalgos.audit.one_run import (
    curve_of,
    epsilon_lower_bound_of_guesses,
    guess,
    mu_lower_bound_of_guesses,
    tail_under_approximate_dp,
    tail_under_curve,
)
from dpalgos.audit.report import BoundReport, Verdict
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Neighbours
from dpalgos.rows import NULL_LABEL
from tasks.auditing.synthetic import SyntheticRun
from tasks.auditing.systems import require_noise

# Of the coins, those that the output says most of; more guesses are worse ones.
_GUESSED = 0.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OneRunReport(BoundReport):
    """The outcome of an audit from one run.

    Parameters
    ----------
    canaries, guesses, correct : int
        Coins, how many were guessed, and how many rightly.
    lower_mu : float
        That the run is Gaussian-DP with any smaller mu is refuted at the confidence.
    p_value : float
        The largest probability of so many right guesses or more under what is proved, or, where nothing is, claimed.
    """

    canaries: int
    guesses: int
    correct: int
    lower_mu: float
    p_value: float


def audit_in_one_run(
    name: str,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    canaries: int = 1000,
    confidence: float = 0.99,
    neighbours: Neighbours = Neighbours.REPLACE_ONE,
    seed: int = 0,
) -> OneRunReport:
    """Train a registered system once, on rows that are all canaries, and guess the state of each from its model.

    A canary is a synthetic row of norm 1 in a random direction. Its coin says, under ``replace-one``, whether it is
    that row or its opposite, with the same label; under ``replace-special``, whether it is there or a null record. Its
    score is the margin of the row in the model of its party, or of all, in input coordinates; nothing is learnt from
    other runs. There are four times as many features as canaries a party, so that canaries hardly get in each other's
    way. What a release tells beside the model is not looked at here.

    Guarantee
    ---------
    If the run is private as stated, ``p_value`` is at most a with probability at most a: see
    :mod:`dpalgos.audit.one_run`. A system that passes is not proved sound: one run is far from tight.

    Parameters
    ----------
    name : str
    epsilon, delta : float
        What the system is asked to cost.
    canaries : int
        At least 10.
    confidence : float
    neighbours : Neighbours
    seed : int
        Of rows, coins and noise: all are synthetic.

    Raises
    ------
    UnknownNameError, ParameterError
        For a name that is not registered, numbers out of range, a system that draws no noise, or one whose model is
        not linear in the features of a row.
    """
    if canaries < 10:
        raise ParameterError(
            f"{canaries} canaries; an audit from one run needs ten at the least, and hundreds to show much"
        )
    require_noise(name)
    started = time.monotonic()
    rows = -(-canaries // 2)
    run = SyntheticRun.of(name, epsilon=epsilon, delta=delta, rows=rows, dimension=4 * rows, neighbours=neighbours)
    random = np.random.default_rng(seed)
    coins = random.choice([-1, 1], 2 * rows)
    directions = random.standard_normal((2 * rows, 4 * rows))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    # Every other canary of either party is of the one class.
    labels = np.arange(2 * rows) // 2 % 2
    held = coins[:, None] * directions, labels
    if neighbours is Neighbours.REPLACE_SPECIAL:
        held = np.where(coins[:, None] == 1, directions, 0.0), np.where(coins == 1, labels, NULL_LABEL)
    scores = run.margins(held, directions, labels, hashlib.sha256(f"one run/{seed}".encode()).digest())
    guesses = max(1, round(_GUESSED * len(scores)))
    correct = int((guess(scores, guesses) == coins).sum())
    stated, counts = run.stated, (correct, guesses, len(scores))
    if stated.costs is not None:
        p_value = max(tail_under_curve(*counts, curve_of(cost)) for cost in stated.costs)
    else:
        claimed = stated.claimed_epsilon
        p_value = 1.0 if claimed is None else tail_under_approximate_dp(*counts, claimed, delta)
    return OneRunReport(
        algorithm=name,
        claimed_epsilon=stated.claimed_epsilon,
        proved_epsilon=stated.proved_epsilon,
        proved_mu=stated.proved_mu,
        delta=delta,
        canaries=len(scores),
        guesses=guesses,
        correct=correct,
        lower_bound=epsilon_lower_bound_of_guesses(*counts, delta=delta, confidence=confidence),
        lower_mu=mu_lower_bound_of_guesses(*counts, confidence=confidence),
        p_value=p_value,
        confidence=confidence,
        verdict=Verdict.VIOLATES if p_value < 1.0 - confidence else Verdict.CONSISTENT,
        seconds=round(time.monotonic() - started, 2),
        neighbours=str(neighbours),
        seed=seed,
    )
