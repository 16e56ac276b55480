"""One experiment on two neighbours: run both many times, learn an event on some runs, count it on others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpalgos.audit.clopper_pearson import probability_upper_bound
from dpalgos.audit.events import Event, Outputs, bound_of_event, joined, learn_event
from dpalgos.audit.gaussian import gaussian_lower_bound
from dpalgos.rows import Floats

__all__ = ["RATIO", "Experiment", "Findings", "Runs", "best_pair", "examine"]

RATIO = "log likelihood ratio of the sums"
"""The observable that holds what is known of Gaussian sums."""

Runs = Callable[[bool, int, int], Outputs]
"""Run one neighbour (True: the left) for trials ``first`` … ``first + count − 1``; every trial has noise of its own."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """Two neighbours and how to run them.

    Parameters
    ----------
    pair : str
        The neighbours, for people.
    runs : Runs
    """

    pair: str
    runs: Runs


@dataclass(frozen=True, slots=True)
class Findings:
    """What an experiment shows; see :class:`~dpalgos.audit.report.AuditReport`."""

    pair: str
    event: str
    lower_bound: float
    gaussian_mu: float | None
    trials: int
    curve: list[tuple[float, float]]


def best_pair(experiments: Sequence[Experiment], *, trials: int, delta: float) -> Experiment:
    """Return the experiment that a few runs of each show most of; these runs are not used again."""
    if len(experiments) == 1:
        return experiments[0]

    def shown(experiment: Experiment) -> float:
        """Return how many standard deviations apart the neighbours are, by a score learnt on the other half."""
        half = trials // 2
        left, right = (experiment.runs(world, 0, trials) for world in (True, False))
        event = learn_event(_part(left, 0, half), _part(right, 0, half), delta, 0.9)
        ours, theirs = (event.score(_part(of, half, trials)) for of in (left, right))
        spread = float(np.sqrt(0.5 * (ours.var() + theirs.var())))
        return abs(float(ours.mean() - theirs.mean())) / max(spread, 1e-9)

    return max(experiments, key=shown)


def examine(
    experiment: Experiment,
    *,
    trials: int,
    delta: float,
    confidence: float,
    progress: Callable[[int, int], None] | None = None,
    batch: int = 500,
) -> Findings:
    """Run both neighbours, half of the runs to learn an event on, the other half to count it on.

    Parameters
    ----------
    experiment : Experiment
    trials : int
        Runs on each neighbour, both halves together.
    delta : float
    confidence : float
        Of either bound.
    progress : callable, optional
        Told how many of how many runs are done.
    batch : int
        Runs between two reports of progress.
    """
    # Numbers that best_pair used name other noise.
    start, worlds = 10**9, []
    for index, world in enumerate((True, False)):
        parts = []
        for first in range(0, trials, batch):
            parts.append(experiment.runs(world, start + first, min(batch, trials - first)))
            if progress is not None:
                progress(index * trials + min(first + batch, trials), 2 * trials)
        worlds.append(joined(parts))
    left, right = worlds
    half = trials // 2
    event = learn_event(_part(left, 0, half), _part(right, 0, half), delta, confidence)
    counted = _part(left, half, trials), _part(right, half, trials)
    mu = None
    if RATIO in left:
        # All runs: nothing was learnt for this score.
        scores = [of[RATIO][:, 0] for of in (left, right)]
        mu = gaussian_lower_bound(scores[0], scores[1], confidence)
    return Findings(
        pair=experiment.pair,
        event=event.name,
        lower_bound=bound_of_event(event, *counted, delta, confidence),
        gaussian_mu=mu,
        trials=trials - half,
        curve=trade_off_bound(event, *counted, confidence=confidence),
    )


def trade_off_bound(
    event: Event, left: Outputs, right: Outputs, *, confidence: float, points: int = 25
) -> list[tuple[float, float]]:
    """Return (type I error, type II error) of tests by the event's score, both bounded from above.

    All points hold together at the confidence (Bonferroni): the mechanism's trade-off curve lies below them.
    """
    ours, theirs = event.score(left), event.score(right)
    error = (1.0 - confidence) / (2 * points)
    curve = []
    for threshold in np.quantile(np.concatenate([ours, theirs]), np.linspace(0.02, 0.98, points)):
        false_alarms, misses = int((theirs > threshold).sum()), int((ours <= threshold).sum())
        if event.left_is_rarer:
            false_alarms, misses = int((theirs <= threshold).sum()), int((ours > threshold).sum())
        curve.append(
            (
                probability_upper_bound(false_alarms, len(theirs), error),
                probability_upper_bound(misses, len(ours), error),
            )
        )
    return sorted(set(curve))


def _part(outputs: Mapping[str, Floats], start: int, stop: int) -> dict[str, Floats]:
    return {name: values[start:stop] for name, values in outputs.items()}
