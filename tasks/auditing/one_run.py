"""The audit of a whole training run, from one run: made-up canaries, each flipped by a coin of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import time

import numpy as np

from dpalgos.audit.one_run import (
    TypeIError,
    curve_of,
    epsilon_lower_bound_of_guesses,
    guess,
    mu_lower_bound_of_guesses,
    tail_under_approximate_dp,
    tail_under_curve,
)
from dpalgos.audit.report import Verdict
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Neighbours
from dpalgos.registry import lookup
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats, Ints
from tasks.auditing.made_up import MadeUpRun, Neighbouring
from tasks.tracking.results import proved_of

__all__ = ["OneRunReport", "audit_in_one_run", "weights_of"]

_PARTIES = ("0", "1")
# Of the coins, those that the output says most of; more guesses are worse ones.
_GUESSED = 0.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OneRunReport:
    """The outcome of an audit from one run.

    Parameters
    ----------
    algorithm : str
    claimed_epsilon, proved_epsilon, proved_mu : float or None
        At delta; None where nothing is claimed, or proved.
    delta : float
    canaries, guesses, correct : int
        Coins, how many were guessed, and how many rightly.
    lower_bound : float
        On epsilon at delta, at the confidence.
    lower_mu : float
        That the run is Gaussian-DP with any smaller mu is refuted at the confidence.
    p_value : float
        The largest probability of so many right guesses or more under what is proved, or, where nothing is, claimed.
    confidence : float
    verdict : Verdict
    seconds : float
    neighbours : str
    seed : int
    """

    algorithm: str
    claimed_epsilon: float | None
    proved_epsilon: float | None
    proved_mu: float | None
    delta: float
    canaries: int
    guesses: int
    correct: int
    lower_bound: float
    lower_mu: float
    p_value: float
    confidence: float
    verdict: Verdict
    seconds: float
    neighbours: str
    seed: int

    def to_json(self) -> dict[str, object]:
        """Return the report in plain values."""
        return {**dataclasses.asdict(self), "verdict": str(self.verdict)}


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

    A canary is a made-up row of norm 1 in a random direction. Its coin says, under ``replace-one``, whether it is that
    row or its opposite, with the same label; under ``replace-special``, whether it is there or a null record. Its
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
        Of rows, coins and noise: all are made up.

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
    started = time.monotonic()
    rows = -(-canaries // len(_PARTIES))
    dimension = 4 * rows
    run = MadeUpRun.of(name, epsilon=epsilon, delta=delta, rows=rows, dimension=dimension, neighbours=neighbours)
    if all(release.budget is None for release in run.plan.releases):
        raise ParameterError(f"{name} draws no noise and claims nothing: there is nothing to audit")
    random = np.random.default_rng(seed)
    coins = {party: random.choice([-1, 1], rows) for party in _PARTIES}
    directions = {party: _directions(rows, dimension, random) for party in _PARTIES}
    labels = np.arange(rows) % 2
    held = {party: _flipped(directions[party], labels, coins[party], neighbours) for party in _PARTIES}
    secret = hashlib.sha256(f"one run/{seed}".encode()).digest()
    seen = run.outputs(Neighbouring("canaries", held, held), True, secret, 0)
    signs = 2.0 * labels - 1.0
    scores = np.concatenate(
        [signs * (directions[party] @ weights_of(seen, party, dimension, name)) for party in _PARTIES]
    )
    made = guess(scores, max(1, round(_GUESSED * len(scores))))
    guesses = int(np.abs(made).sum())
    correct = int((made == np.concatenate([coins[party] for party in _PARTIES])).sum())
    proved = proved_of(run.plan)
    claimed = epsilon if lookup("systems", name).claim is not None else None
    counts = (correct, guesses, len(scores))
    if proved is not None:
        p_value = max(tail_under_curve(*counts, curve) for curve in _curves(run))
    else:
        p_value = 1.0 if claimed is None else tail_under_approximate_dp(*counts, claimed, delta)
    return OneRunReport(
        algorithm=name,
        claimed_epsilon=claimed,
        proved_epsilon=None if proved is None else proved.epsilon,
        proved_mu=None if proved is None else proved.mu,
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


def _curves(run: MadeUpRun) -> list[TypeIError]:
    return [curve_of(bill) for bill in set(run.plan.bills().values())]


def _directions(rows: int, dimension: int, random: np.random.Generator) -> Floats:
    drawn = random.standard_normal((rows, dimension))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def _flipped(directions: Floats, labels: Ints, coins: Ints, neighbours: Neighbours) -> ArrayRows:
    """Return the canaries in the states that their coins say."""
    if neighbours is Neighbours.REPLACE_SPECIAL:
        there = coins == 1
        return ArrayRows(np.where(there[:, None], directions, 0.0), np.where(there, labels, NULL_LABEL))
    return ArrayRows(coins[:, None] * directions, labels)


def weights_of(seen: dict[str, Floats], party: str, dimension: int, name: str) -> Floats:
    """Return the direction of the model that stands for a party's rows, (d,)."""
    for owner in (party, "all"):
        found = seen.get(f"weights of {owner} before the map")
        if found is not None and len(found) == dimension:
            return found
    models = [
        vector for field, vector in seen.items() if field.startswith("linear-model") and field.endswith("weights")
    ]
    own = models[int(party)] if len(models) == len(_PARTIES) else [*models, np.zeros(0)][0]
    if len(own) != dimension:
        raise ParameterError(f"the model of {name} is not linear in a row's {dimension} features: audit its releases")
    return own
