"""What an audit says: a lower bound beside what is claimed and proved, and a verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum

__all__ = ["TIGHT", "AuditReport", "Verdict", "verdict_of"]

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
    """The outcome of one audit; everything in it is about made-up rows.

    Parameters
    ----------
    algorithm : str
    kind : str
        ``systems``, ``projections``, ``trainers`` or ``evaluators``.
    claimed_epsilon : float or None
        What the paper says at delta; None where no paper does.
    proved_epsilon : float or None
        What is proved at delta; None where nothing is.
    delta : float
    lower_bound : float
        On epsilon at delta: it is exceeded or met, at the given confidence, whatever the noise's law.
    gaussian_mu, gaussian_bound : float or None
        The same of a Gaussian-DP fit, where every noisy number is a Gaussian sum: mu, and epsilon at delta. It assumes
        the shape, and is for tightness.
    confidence : float
    verdict : Verdict
    trials : int
        Runs on each neighbour that the bound was counted on.
    seconds : float
    pair, event : str
        Which neighbours and which event showed it.
    neighbours : str
        The relation.
    curve : list of (float, float)
        Type I and type II errors of the best tests found, at the confidence: a bound on the trade-off curve from above.
    """

    algorithm: str
    kind: str
    claimed_epsilon: float | None
    proved_epsilon: float | None
    delta: float
    lower_bound: float
    gaussian_mu: float | None
    gaussian_bound: float | None
    confidence: float
    verdict: Verdict
    trials: int
    seconds: float
    pair: str
    event: str
    neighbours: str
    curve: list[tuple[float, float]] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Return the report in plain values."""
        return {**asdict(self), "verdict": str(self.verdict)}
