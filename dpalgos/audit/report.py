"""What an audit says: a lower bound beside what is claimed and proved, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from scipy.special import ndtri

from dpalgos.accounting.composition import compose
from dpalgos.accounting.trade_off import TYPE_I_ERRORS, gaussian_mu, trade_off
from dpalgos.audit.clopper_pearson import epsilon_lower_bound
from dpalgos.audit.experiment import Findings
from dpalgos.guarantees import ApproximateDP, Loss, Neighbours, PureEpsilon
from dpalgos.mechanisms.gaussian import epsilon_of_mu

__all__ = ["TIGHT", "AuditReport", "Curve", "Verdict", "make_report", "mu_of_errors", "verdict_of"]

Curve = list[tuple[float, float]]
"""Type I and type II errors of tests of one neighbour against the other."""

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
class AuditReport:
    """The outcome of one audit; everything in it is about made-up or public rows.

    Parameters
    ----------
    algorithm : str
    kind : str
        ``systems``, ``projections``, ``trainers`` or ``evaluators``.
    claimed_epsilon : float or None
        What the paper says at delta; None where no paper does.
    proved_epsilon : float or None
        What is proved at delta; None where nothing is.
    proved_mu : float or None
        The same as Gaussian DP; None where nothing is proved or the loss is of another type.
    delta : float
    lower_bound : float
        On epsilon at delta: it is exceeded or met, at the given confidence, whatever the noise's law.
    lower_mu : float
        On mu, if the release is Gaussian DP, from the measured curve; no law of the noise is assumed.
    ceiling : float
        What ``lower_bound`` would be, had the event happened always on one neighbour and never on the other: about
        ln(trials/5.3) at 99 %.
    gaussian_mu, gaussian_bound : float or None
        The bounds of a Gaussian-DP fit, where every noisy number is a Gaussian sum: mu, and epsilon at delta. It
        assumes the shape, and is for tightness.
    confidence : float
    verdict : Verdict
    trials : int
        Runs on each neighbour that the bound was counted on.
    seconds : float
    pair, event : str
        Which neighbours and which event showed it.
    neighbours : str
        The relation.
    seed : int
        Of the public noise: the same call with the same seed repeats every run.
    curve : list of (float, float)
        Type I and type II errors of the best tests found, all at the confidence together: the trade-off curve lies
        below.
    stated_curve : list of (float, float)
        The trade-off curve that follows from what is proved, or, where nothing is, claimed: no test is to lie below.
    """

    algorithm: str
    kind: str
    claimed_epsilon: float | None
    proved_epsilon: float | None
    proved_mu: float | None
    delta: float
    lower_bound: float
    lower_mu: float
    ceiling: float
    gaussian_mu: float | None
    gaussian_bound: float | None
    confidence: float
    verdict: Verdict
    trials: int
    seconds: float
    pair: str
    event: str
    neighbours: str
    seed: int
    curve: Curve
    stated_curve: Curve

    def to_json(self) -> dict[str, object]:
        """Return the report in plain values."""
        return {**asdict(self), "verdict": str(self.verdict)}


def mu_of_errors(curve: Sequence[tuple[float, float]]) -> float:
    """Return the largest mu that tests with these errors need: β ≥ Φ(Φ⁻¹(1 − α) − mu) under mu-Gaussian DP."""
    return max((float(ndtri(1.0 - alpha) - ndtri(beta)) for alpha, beta in curve if alpha < 1 and beta < 1), default=0)


def make_report(
    found: Findings,
    *,
    algorithm: str,
    kind: str,
    claimed_epsilon: float | None,
    bills: Sequence[Sequence[Loss]] | None,
    delta: float,
    confidence: float,
    neighbours: Neighbours,
    seed: int,
    seconds: float = 0.0,
) -> AuditReport:
    """Return the report on what an experiment found.

    Parameters
    ----------
    found : Findings
    algorithm, kind : str
    claimed_epsilon : float or None
        What a paper says at delta.
    bills : sequence of sequences of Loss, or None
        What is proved that each party pays; None where nothing is proved.
    delta, confidence, neighbours, seed, seconds
        See :class:`AuditReport`.
    """
    proved = None if bills is None else max((compose(bill).epsilon(delta) for bill in bills), default=0.0)
    mus = [] if bills is None else [gaussian_mu(bill) for bill in bills]
    proved_mu = max((mu for mu in mus if mu is not None), default=None) if None not in mus else None
    stated = [list(bill) for bill in bills] if bills is not None else _claimed(claimed_epsilon, delta)
    epsilon = proved if proved is not None else math.inf if claimed_epsilon is None else claimed_epsilon
    errors = trade_off(stated).tolist() if stated else [0.0] * len(TYPE_I_ERRORS)
    fit = None if found.gaussian_mu is None else (epsilon_of_mu(found.gaussian_mu, delta) if delta > 0 else None)
    return AuditReport(
        algorithm=algorithm,
        kind=kind,
        claimed_epsilon=claimed_epsilon,
        proved_epsilon=proved,
        proved_mu=proved_mu,
        delta=delta,
        lower_bound=found.lower_bound,
        lower_mu=max(0.0, mu_of_errors(found.curve)),
        ceiling=epsilon_lower_bound(found.trials, found.trials, 0, found.trials, delta, confidence),
        gaussian_mu=found.gaussian_mu,
        gaussian_bound=fit,
        confidence=confidence,
        verdict=verdict_of(found.lower_bound, fit, epsilon),
        trials=found.trials,
        seconds=round(seconds, 2),
        pair=found.pair,
        event=found.event,
        neighbours=str(neighbours),
        seed=seed,
        curve=found.curve,
        stated_curve=list(zip(TYPE_I_ERRORS, errors, strict=True)),
    )


def _claimed(epsilon: float | None, delta: float) -> list[list[Loss]]:
    if epsilon is None:
        return []
    return [[ApproximateDP(epsilon, delta) if delta > 0 else PureEpsilon(epsilon)]]
