"""One experiment on two neighbours: run both, learn an event on some runs, count it on others, and give a verdict."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np
from scipy.special import ndtri

from dpalgos.accounting.composition import TYPE_I_ERRORS, compose, gaussian_mu, trade_off
from dpalgos.accounting.profiles import epsilon_of_mu
from dpalgos.audit.bounds import (
    Event,
    Outputs,
    bound_of_event,
    epsilon_lower_bound,
    fisher_score,
    gaussian_lower_bound,
    learn_event,
    part_of,
    probability_upper_bound,
)
from dpalgos.guarantees import ApproximateDP, Loss, Neighbours, PureEpsilon
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats

RATIO = "log likelihood ratio of the sums"
"""The observable that holds what is known of noisy sums."""
GAUSSIAN_RATIO = "log likelihood ratio of the Gaussian sums"
"""The same where all noise is Gaussian, so that a Gaussian-DP fit may be made."""

Runs = Callable[[bool, int, int], Outputs]
"""Run one neighbour (True: the left) for trials ``first`` … ``first + count − 1``; every trial has independent
noise."""

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
    """Findings of an experiment.

    Parameters
    ----------
    pair, event : str
        Which neighbours, and which event of their outputs.
    lower_bound : float
        On epsilon at delta, at the given confidence for any distribution of the noise.
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
    """Default number of runs of an audit.

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

USUAL_BUDGET = (1.0, 1e-5)
"""The (epsilon, delta) at which audits are made where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Options of an audit.

    Parameters
    ----------
    epsilon, delta : float, optional
        What is audited is asked to cost; :data:`USUAL_BUDGET`, or where its flaw shows.
    trials : int, optional
        Runs on each neighbour, some to choose the event and the others counted; by ``effort`` where left out.
    confidence : float
        Of the bound: it exceeds the true epsilon in at most a share 1 − confidence of audits.
    neighbours : Neighbours, optional
        By default the first relation that the guarantee is derived for.
    seed : int
        Of the noise, which is public: the rows are synthetic or public.
    effort : Effort
    """

    epsilon: float | None = None
    delta: float | None = None
    trials: int | None = None
    confidence: float = 0.99
    neighbours: Neighbours | None = None
    seed: int = 0
    effort: Effort = Effort()

    def budget(self, usual: tuple[float, float] | None = None) -> tuple[float, float]:
        """Return (epsilon, delta), each the usual one where it is left out."""
        epsilon, delta = usual or USUAL_BUDGET
        return epsilon if self.epsilon is None else self.epsilon, delta if self.delta is None else self.delta


USUAL = AuditOptions()


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


_POINTS = 25
"""Tests of a trade-off curve."""


def trade_off_bound(
    event: Event, tried: Floats, left: Outputs, right: Outputs, *, confidence: float
) -> list[tuple[float, float]]:
    """Return (type I error, type II error) of tests by the event's score, both bounded from above.

    Guarantee
    ---------
    With probability at least ``confidence`` the trade-off curve of the two neighbours, the least type II error of any
    test at each type I error, lies below all points. Proof: score and thresholds are made of runs that are not counted,
    which are independent of those that are. Given them, each of the k tests is fixed, its two numbers of
    errors are binomial, and each Clopper-Pearson bound fails with probability at most (1 − confidence) / (2 k); by
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
    error = (1.0 - confidence) / (2 * _POINTS)
    curve = []
    for threshold in np.quantile(tried, np.linspace(0.02, 0.98, _POINTS)):
        # A test decides for the left or for the right in every run, at any score.
        for_left, for_left_wrongly = ((scores > threshold) != event.left_is_rarer for scores in (ours, theirs))
        curve.append(
            (
                probability_upper_bound(int(for_left_wrongly.sum()), len(theirs), error),
                probability_upper_bound(int((~for_left).sum()), len(ours), error),
            )
        )
    return sorted(set(curve))


TIGHT = 0.8
"""A lower bound of at least this share of what is stated is called tight."""


class Verdict(StrEnum):
    """Conclusion from a lower bound."""

    VIOLATES = "violates its claim"
    CONSISTENT = "consistent"
    TIGHT = "tight"


def verdict_of(lower_bound: float, gaussian_bound: float | None, stated: float) -> Verdict:
    """Return the verdict on a stated epsilon; only the bound without assumptions can refute it.

    Parameters
    ----------
    lower_bound : float
        On epsilon, at the audit's confidence, without assumptions.
    gaussian_bound : float or None
        The bound of a Gaussian-DP fit, which assumes the shape.
    stated : float
        What is proved, or, where nothing is, claimed; infinite where neither.
    """
    if lower_bound > stated:
        return Verdict.VIOLATES
    return Verdict.TIGHT if max(lower_bound, gaussian_bound or 0.0) >= TIGHT * stated else Verdict.CONSISTENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Stated guarantee of a release or of a whole run at delta.

    Parameters
    ----------
    delta : float
    claimed_epsilon : float or None
        What a paper says; None where none does.
    costs : sequence of sequences of Loss, or None
        What is proved that it costs each party; None where nothing is proved.
    """

    delta: float
    claimed_epsilon: float | None
    costs: Sequence[Sequence[Loss]] | None

    @property
    def proved_epsilon(self) -> float | None:
        """The proved epsilon; None where nothing is proved."""
        if self.costs is None:
            return None
        return max((compose(cost).epsilon(self.delta) for cost in self.costs), default=0.0)

    @property
    def proved_mu(self) -> float | None:
        """The same as Gaussian DP; None where nothing is proved or a loss has another type."""
        mus = [gaussian_mu(cost) for cost in self.costs or ()]
        return max((mu for mu in mus if mu is not None), default=None) if None not in mus else None

    @property
    def losses(self) -> Sequence[Sequence[Loss]]:
        """The proved losses; where nothing is proved, the claimed ones; empty without either."""
        if self.costs is not None or self.claimed_epsilon is None:
            return self.costs or ()
        epsilon, delta = self.claimed_epsilon, self.delta
        return [[ApproximateDP(epsilon, delta) if delta > 0 else PureEpsilon(epsilon)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report of an audit; everything in it is about synthetic or public rows.

    Parameters
    ----------
    algorithm : str
    claimed_epsilon : float or None
        What the paper says at delta; None where no paper does.
    proved_epsilon : float or None
        What is proved at delta; None where nothing is.
    proved_mu : float or None
        The same as Gaussian DP; None where nothing is proved or the loss has another type.
    delta : float
    neighbours : str
        The relation.
    seconds : float
    seed : int or None
        Of everything that is drawn: the same call with the same seed repeats every run. None: noise is secret.
    """

    algorithm: str
    claimed_epsilon: float | None
    proved_epsilon: float | None
    proved_mu: float | None
    delta: float
    neighbours: str
    seconds: float = 0.0
    seed: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the report in plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundReport(Report):
    """A report that bounds epsilon from below.

    Parameters
    ----------
    lower_bound : float
        On epsilon at delta: it is exceeded or met, at the given confidence for any distribution of the noise.
    confidence : float
    verdict : Verdict
    """

    lower_bound: float
    confidence: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport(BoundReport, Findings):
    """The outcome of an audit by many runs on two neighbours: the measured values next to the stated ones.

    Parameters
    ----------
    kind : str
        ``systems``, ``projections``, ``trainers`` or ``evaluators``.
    lower_mu : float
        On mu, if the release is Gaussian DP, from the measured curve; no distribution of the noise is assumed.
    ceiling : float
        What ``lower_bound`` would be, had the event happened always on one neighbour and never on the other: about
        ln(trials/5.3) at 99 %.
    gaussian_bound : float or None
        Epsilon at delta of the Gaussian-DP fit.
    stated_curve : list of (float, float)
        The trade-off curve that follows from what is proved, or, where nothing is, claimed: no test is to lie below.
    """

    kind: str
    lower_mu: float
    ceiling: float
    gaussian_bound: float | None
    stated_curve: Curve


def audit_experiments(
    experiments: Sequence[Experiment],
    stated: Stated,
    options: AuditOptions,
    *,
    algorithm: str,
    kind: str,
    neighbours: Neighbours,
    progress: Callable[[int, int], None] | None = None,
) -> AuditReport:
    """Choose the experiment that a few runs of each show most of, run it many times, and report what it shows.

    Parameters
    ----------
    experiments : sequence of Experiment
    stated : Stated
    options : AuditOptions
    algorithm, kind, neighbours
        For the report.
    progress : callable, optional
        Called with the number of runs that are done and that of all.

    Raises
    ------
    ParameterError
        For fewer than eight trials.
    """
    trials, confidence, effort, delta = options.trials, options.confidence, options.effort, stated.delta
    if trials is not None and trials < 8:
        raise ParameterError(f"trials is {trials}; an audit needs at least 8, and several hundred for a useful bound")
    chosen = best_pair(experiments, trials=effort.pilot_of(trials), delta=delta)
    events = examine(
        chosen, trials=trials or effort.trials(chosen), delta=delta, confidence=confidence, progress=progress
    )
    proved, claimed = stated.proved_epsilon, stated.claimed_epsilon
    epsilon = proved if proved is not None else math.inf if claimed is None else claimed
    errors = trade_off(stated.losses).tolist() if stated.losses else [0.0] * len(TYPE_I_ERRORS)
    fit = None if events.gaussian_mu is None or delta == 0 else epsilon_of_mu(events.gaussian_mu, delta)
    return AuditReport(
        **vars(events),
        algorithm=algorithm,
        kind=kind,
        claimed_epsilon=claimed,
        proved_epsilon=proved,
        proved_mu=stated.proved_mu,
        delta=delta,
        # β ≥ Φ(Φ⁻¹(1 − α) − mu) under mu-Gaussian DP, for the errors of every test.
        lower_mu=max(
            (0.0, *(float(ndtri(1.0 - alpha) - ndtri(beta)) for alpha, beta in events.curve if max(alpha, beta) < 1))
        ),
        ceiling=epsilon_lower_bound(events.trials, events.trials, 0, events.trials, delta, confidence),
        gaussian_bound=fit,
        confidence=confidence,
        verdict=verdict_of(events.lower_bound, fit, epsilon),
        neighbours=str(neighbours),
        seed=options.seed,
        stated_curve=list(zip(TYPE_I_ERRORS, errors, strict=True)),
    )
