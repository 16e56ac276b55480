"""What an audit says: a lower bound beside what is claimed and proved, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from scipy.special import ndtri

from dpalgos.accounting.composition import compose
from dpalgos.accounting.trade_off import TYPE_I_ERRORS, gaussian_mu, trade_off
from dpalgos.audit.events import epsilon_lower_bound
from dpalgos.audit.experiment import Curve, Effort, Experiment, Findings, best_pair, examine
from dpalgos.errors import ParameterError
from dpalgos.guarantees import ApproximateDP, Loss, Neighbours, PureEpsilon
from dpalgos.mechanisms.gaussian import epsilon_of_mu

TIGHT = 0.8
"""A lower bound of at least this share of what is stated is called tight."""


class Verdict(StrEnum):
    """What follows from a lower bound."""

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
    """What is said of a release or of a whole run at delta.

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
        """What is proved; None where nothing is."""
        if self.costs is None:
            return None
        return max((compose(cost).epsilon(self.delta) for cost in self.costs), default=0.0)

    @property
    def proved_mu(self) -> float | None:
        """The same as Gaussian DP; None where nothing is proved or a loss is of another type."""
        mus = [gaussian_mu(cost) for cost in self.costs or ()]
        return max((mu for mu in mus if mu is not None), default=None) if None not in mus else None

    @property
    def losses(self) -> Sequence[Sequence[Loss]]:
        """What is proved, or, where nothing is, claimed, as losses; empty where neither."""
        if self.costs is not None or self.claimed_epsilon is None:
            return self.costs or ()
        epsilon, delta = self.claimed_epsilon, self.delta
        return [[ApproximateDP(epsilon, delta) if delta > 0 else PureEpsilon(epsilon)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What every audit reports; all of it is about synthetic or public rows.

    Parameters
    ----------
    algorithm : str
    claimed_epsilon : float or None
        What the paper says at delta; None where no paper does.
    proved_epsilon : float or None
        What is proved at delta; None where nothing is.
    proved_mu : float or None
        The same as Gaussian DP; None where nothing is proved or the loss is of another type.
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
        On epsilon at delta: it is exceeded or met, at the given confidence, whatever the noise's distribution.
    confidence : float
    verdict : Verdict
    """

    lower_bound: float
    confidence: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport(BoundReport, Findings):
    """The outcome of an audit by many runs on two neighbours: what was found, beside what is stated.

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
    *,
    algorithm: str,
    kind: str,
    neighbours: Neighbours,
    trials: int | None = None,
    confidence: float = 0.99,
    seed: int = 0,
    effort: Effort | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AuditReport:
    """Choose the experiment that a few runs of each show most of, run it many times, and report what it shows.

    Parameters
    ----------
    experiments : sequence of Experiment
    stated : Stated
    algorithm, kind, neighbours, seed
        For the report.
    trials : int, optional
        Runs on each neighbour, some to choose the event and the others counted; by ``effort`` where left out.
    confidence : float
        Of the bound: it exceeds the true epsilon in at most a share 1 − confidence of audits.
    effort : Effort, optional
    progress : callable, optional
        Called with the number of runs that are done and that of all.

    Raises
    ------
    ParameterError
        For fewer than eight trials.
    """
    if trials is not None and trials < 8:
        raise ParameterError(
            f"trials is {trials}; an audit needs eight at the least, and some hundreds to show anything"
        )
    effort, delta = effort or Effort(), stated.delta
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
        seed=seed,
        stated_curve=list(zip(TYPE_I_ERRORS, errors, strict=True)),
    )
