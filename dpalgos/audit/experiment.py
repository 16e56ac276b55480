"""One experiment on two neighbours: run both many times, learn an event on some runs, count it on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpalgos.audit.events import (
    Event,
    Outputs,
    bound_of_event,
    fisher_score,
    gaussian_lower_bound,
    learn_event,
    part_of,
    probability_upper_bound,
)
from dpalgos.rows import Floats

RATIO = "log likelihood ratio of the sums"
"""The observable that holds what is known of noisy sums."""
GAUSSIAN_RATIO = "log likelihood ratio of the Gaussian sums"
"""The same where all noise is Gaussian, so that a Gaussian-DP fit may be made."""

Runs = Callable[[bool, int, int], Outputs]
"""Run one neighbour (True: the left) for trials ``first`` … ``first + count − 1``; every trial has noise of its own."""

_LEAST_PILOT = 20
# Of so many runs a fifth are enough to learn an event on.
_MANY = 20_000
# Runs by themselves between two reports of progress, and random numbers of runs drawn together.
_BATCH, _NUMBERS = 500, 2_000_000
_PILOT_NUMBERS = 500_000
# Runs that take more random numbers than this are too few to show anything that runs of fewer do not.
_SLOW = 10_000
# Experiments that tell neighbours apart by this share of what the best does count as equally good.
_AS_GOOD = 0.9
# Standard deviations beyond which nothing is told apart better.
_FAR = 10.0


@dataclass(frozen=True, slots=True)
class Experiment:
    """Two neighbours and how to run them.

    Parameters
    ----------
    pair : str
        The neighbours, for people.
    runs : Runs
    numbers : int
        How many random numbers a run draws, where many runs are drawn together; 0 where each is carried out by itself.
    gaussian : bool
        Whether all noise is that of Gaussian sums, so that a Gaussian-DP fit may be made.
    fitted : bool
        Whether that fit takes a linear score learnt for it: the one observable is an exact vector plus Gaussian noise.
    """

    pair: str
    runs: Runs
    numbers: int = 0
    gaussian: bool = False
    fitted: bool = False


Curve = list[tuple[float, float]]
"""Type I and type II errors of tests of one neighbour against the other."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What an experiment shows.

    Parameters
    ----------
    pair, event : str
        Which neighbours, and which event of their outputs.
    lower_bound : float
        On epsilon at delta, at the given confidence, whatever the noise's distribution.
    gaussian_mu : float or None
        The bound of a Gaussian-DP fit, where every noisy number is a Gaussian sum. It assumes the shape, and is for
        tightness.
    trials : int
        Runs on each neighbour that the bound was counted on.
    curve : list of (float, float)
        Type I and type II errors of the best tests found, all at the confidence together: the trade-off curve lies
        below.
    """

    pair: str
    event: str
    lower_bound: float
    gaussian_mu: float | None
    trials: int
    curve: Curve


def one_by_one(run: Callable[[bool, int], Outputs]) -> Runs:
    """Return runs that are carried out each by itself: ``run`` is told the neighbour (True: the left) and the trial."""

    def runs(world: bool, first: int, count: int) -> Outputs:
        outputs = [run(world, trial) for trial in range(first, first + count)]
        return {name: np.stack([one[name] for one in outputs]) for name in outputs[0]}

    return runs


@dataclass(frozen=True, slots=True)
class Effort:
    """How many runs an audit makes where it is not told.

    Parameters
    ----------
    runs : int
        Runs on each neighbour where each is carried out by itself.
    gaussian_runs : int
        The same where a Gaussian-DP fit may be made, which is tight at epsilon = 1 from some 15,000 runs on.
    numbers : int
        Random numbers drawn for each neighbour where many runs are drawn together.
    most : int
        Runs drawn together at most.
    pilot : int
        Runs on each neighbour of every experiment, by which one is chosen.
    """

    runs: int = 4000
    gaussian_runs: int = 16_000
    numbers: int = 40_000_000
    most: int = 3_000_000
    pilot: int = 120

    def trials(self, experiment: Experiment) -> int:
        """Return the runs on each neighbour."""
        if experiment.numbers:
            return min(self.most, self.numbers // experiment.numbers)
        return self.gaussian_runs if experiment.gaussian else self.runs

    def pilot_of(self, trials: int | None) -> int:
        """Return how many runs choose the experiment: no more than a quarter of those asked for, if any are."""
        return self.pilot if trials is None else max(_LEAST_PILOT, min(self.pilot, trials // 4))


QUICK = Effort(runs=1000, gaussian_runs=1000, numbers=9_000_000, pilot=60)
"""A quarter of the usual effort, or less: what a table of everything takes in some minutes."""


def best_pair(experiments: Sequence[Experiment], *, trials: int, delta: float) -> Experiment:
    """Return the experiment that a few runs of each show most of; these runs are not used again.

    Parameters
    ----------
    experiments : sequence of Experiment
    trials : int
        Runs on each neighbour; a hundred times as many where they are drawn together.
    delta : float
    """
    experiments = [each for each in experiments if each.numbers <= _SLOW] or experiments
    if len(experiments) == 1:
        return experiments[0]

    def shown(experiment: Experiment) -> float:
        """Return how far an event learnt on one half of the runs tells neighbours apart on the other, from below."""
        count = max(trials, min(100 * trials, _PILOT_NUMBERS // experiment.numbers)) if experiment.numbers else trials
        half = count // 2
        left, right = (experiment.runs(world, 0, count) for world in (True, False))
        event = learn_event(part_of(left, 0, half), part_of(right, 0, half), delta, 0.9)
        counted = [part_of(of, half, count) for of in (left, right)]
        ours, theirs = (event.score(of) for of in counted)
        if GAUSSIAN_RATIO in left:
            # The ratio's standard deviation is mu, of which as many runs tell far more than the distance of its means.
            ours, theirs = left[GAUSSIAN_RATIO], right[GAUSSIAN_RATIO]
            apart = float(np.sqrt(0.5 * (ours.var() + theirs.var())))
        else:
            spread = float(np.sqrt(0.5 * (ours.var() + theirs.var())))
            # In standard deviations, of which few runs tell little.
            apart = abs(float(ours.mean() - theirs.mean())) / max(spread, 1e-9) - np.sqrt(2.0 / half)
        return bound_of_event(event, counted[0], counted[1], delta, 0.9) + float(np.clip(apart, 0.0, _FAR))

    apart = [shown(experiment) for experiment in experiments]
    # What a few runs hardly tell apart is told apart by many cheap ones.
    good = [each for each, by in zip(experiments, apart, strict=True) if by >= _AS_GOOD * max(apart)]
    return min(good, key=lambda each: each.numbers)


def examine(
    experiment: Experiment,
    *,
    trials: int,
    delta: float,
    confidence: float,
    progress: Callable[[int, int], None] | None = None,
) -> Findings:
    """Run both neighbours, some runs to learn an event on, the others to count it on.

    Parameters
    ----------
    experiment : Experiment
    trials : int
        Runs on each neighbour; half of them are counted, of more than 20,000 four fifths.
    delta : float
    confidence : float
        Of either bound.
    progress : callable, optional
        Called with the number of runs that are done and that of all.
    """
    # Numbers that best_pair used name other noise.
    start, worlds = 10**9, []
    batch = max(_BATCH, _NUMBERS // experiment.numbers) if experiment.numbers else _BATCH
    for index, world in enumerate((True, False)):
        parts = []
        for first in range(0, trials, batch):
            parts.append(experiment.runs(world, start + first, min(batch, trials - first)))
            if progress is not None:
                progress(index * trials + min(first + batch, trials), 2 * trials)
        worlds.append({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    left, right = worlds
    learnt = trials // 2 if trials <= _MANY else trials // 5
    event = learn_event(part_of(left, 0, learnt), part_of(right, 0, learnt), delta, confidence)
    counted = part_of(left, learnt, trials), part_of(right, learnt, trials)
    # Of runs that the score was not fitted to, so that they are spread as those that are counted.
    tried = np.concatenate([event.score(part_of(world, learnt // 2, learnt)) for world in (left, right)])
    mu = None
    if GAUSSIAN_RATIO in left:
        # All runs: nothing was learnt for this score.
        mu = gaussian_lower_bound(left[GAUSSIAN_RATIO][:, 0], right[GAUSSIAN_RATIO][:, 0], confidence)
    elif experiment.fitted:
        (name,) = left
        score = fisher_score(left[name][:learnt], right[name][:learnt])
        mu = gaussian_lower_bound(score(counted[0][name]), score(counted[1][name]), confidence)
    return Findings(
        pair=experiment.pair,
        event=event.name,
        lower_bound=bound_of_event(event, *counted, delta, confidence),
        gaussian_mu=mu,
        trials=trials - learnt,
        curve=trade_off_bound(event, tried, *counted, confidence=confidence),
    )


def trade_off_bound(
    event: Event, tried: Floats, left: Outputs, right: Outputs, *, confidence: float, points: int = 25
) -> list[tuple[float, float]]:
    """Return (type I error, type II error) of tests by the event's score, both bounded from above.

    Guarantee
    ---------
    With probability at least ``confidence`` the trade-off curve of the two neighbours, the least type II error of any
    test at each type I error, lies below all points. Proof: score and thresholds are made of runs that are not counted,
    which are independent of those that are. Given them, each of the ``points`` tests is fixed, its two numbers of
    errors are binomial, and each Clopper-Pearson bound fails with probability at most (1 − confidence) / (2 points); by
    the union bound all hold together with the confidence. Where they do, each test has errors no larger than its
    point's, and the curve is the least of all tests and does not increase.

    Parameters
    ----------
    event : Event
        Learnt on other runs.
    tried : array (T,)
        Scores of other runs, of which thresholds are the quantiles.
    left, right : mapping of str to array
        The runs that are counted.
    """
    ours, theirs = event.score(left), event.score(right)
    error = (1.0 - confidence) / (2 * points)
    curve = []
    for threshold in np.quantile(tried, np.linspace(0.02, 0.98, points)):
        # A test decides for the left or for the right in every run, whatever its score.
        for_left, for_left_wrongly = ((scores > threshold) != event.left_is_rarer for scores in (ours, theirs))
        curve.append(
            (
                probability_upper_bound(int(for_left_wrongly.sum()), len(theirs), error),
                probability_upper_bound(int((~for_left).sum()), len(ours), error),
            )
        )
    return sorted(set(curve))
