"""The audit of a system from one run: canaries put in by coins, and guessed from what was released."""

from __future__ import annotations

import dataclasses
import hashlib
import time

import numpy as np

from dpalgos.audit.bounds import (
    curve_of,
    epsilon_lower_bound_of_guesses,
    guess,
    mu_lower_bound_of_guesses,
    tail_under_approximate_dp,
    tail_under_curve,
)
from dpalgos.audit.experiment import USUAL, AuditOptions, BoundReport, Verdict
from dpalgos.guarantees import Neighbours
from dpalgos.parameters import ParameterError
from dpalgos.rows import NULL_LABEL
from tasks.auditing.synthetic_runs import SyntheticRun
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
    name: str, options: AuditOptions = USUAL, *, canaries: int = 1000, rows_per_person: int | None = None
) -> OneRunReport:
    """Train a registered system once, on rows that are all canaries, and guess the state of each from its model.

    A canary is a synthetic row of norm 1 in a random direction. Its coin says, under ``replace-one``, whether it is
    that row or its opposite, with the same label; under ``replace-special``, whether it is there or a null record. Its
    score is the margin of the row in the model of its party, or of all, in input coordinates; nothing is learnt from
    other runs. There are four times as many features as canaries per party, so that canaries hardly interfere. Only the
    model is examined here, no other output of the release.

    With ``rows_per_person`` a canary is a person: that row as often as a draw from 1 to so many says, so that a system
    that lets a person with many rows weigh more gives itself away.

    Guarantee
    ---------
    If the run is private as stated, ``p_value`` is at most a with probability at most a: see
    :mod:`dpalgos.audit.bounds`. A system that passes is not proved sound: one run is far from tight.

    Parameters
    ----------
    name : str
    options : AuditOptions
        The seed is that of rows, coins and noise: all are synthetic.
    canaries : int
        At least 10.
    rows_per_person : int, optional
        The most rows of a person, at least 1; None: each row is a canary.

    Raises
    ------
    UnknownNameError, ParameterError
        For a name that is not registered, numbers out of range, a system that draws no noise, one whose model is not
        linear in the features of a row, or people where it takes none.
    """
    if canaries < 10:
        raise ParameterError(
            f"{canaries} canaries; an audit from one run needs at least 10, and several hundred for a useful bound"
        )
    require_noise(name)
    started = time.monotonic()
    rows = -(-canaries // 2)
    neighbours, (epsilon, delta) = options.neighbours or Neighbours.REPLACE_ONE, options.budget()
    seed, confidence = options.seed, options.confidence
    run = SyntheticRun.of(
        name,
        epsilon=epsilon,
        delta=delta,
        rows=rows,
        dimension=4 * rows,
        neighbours=neighbours,
        rows_per_person=rows_per_person,
    )
    random = np.random.default_rng(seed)
    coins = random.choice([-1, 1], 2 * rows)
    directions = random.standard_normal((2 * rows, 4 * rows))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    # Every other canary of either party is of the one class.
    labels = np.arange(2 * rows) // 2 % 2
    features, of_class = coins[:, None] * directions, labels
    if neighbours is Neighbours.REPLACE_SPECIAL:
        features, of_class = np.where(coins[:, None] == 1, directions, 0.0), np.where(coins == 1, labels, NULL_LABEL)
    each = None if rows_per_person is None else random.integers(1, rows_per_person + 1, 2 * rows)
    scores = run.margins(
        (features, of_class, each), directions, labels, hashlib.sha256(f"one run/{seed}".encode()).digest()
    )
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
