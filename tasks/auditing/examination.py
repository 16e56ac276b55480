"""One system examined by all audits: its findings, and the record of them."""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
import uuid
from typing import Annotated

from pydantic import BaseModel, Field

from dpalgos.audit.experiment import AuditOptions, AuditReport, Verdict
from dpalgos.guarantees import Neighbours
from tasks.auditing.chain import Chain, ChainReport, audit_chain
from tasks.auditing.figures import draw_trade_offs
from tasks.auditing.one_run import OneRunReport, audit_in_one_run
from tasks.auditing.systems import audit_system
from tasks.planning.configuration import RegisteredName, RelationInForce
from tasks.tracking.audits import AUDIT_TAG, AUDITS, VIOLATION
from tasks.tracking.runs import RunReport


def audit_report(examined: Examined) -> RunReport:
    """Return an audit as MLflow shows it."""
    one = examined.mechanism
    numbers = {
        "epsilon_lower_bound": one.lower_bound,
        "epsilon_ceiling": one.ceiling,
        "epsilon_proved": one.proved_epsilon,
        "epsilon_claimed": one.claimed_epsilon,
        "epsilon_lower_bound_if_gaussian": one.gaussian_bound,
        "mu_lower_bound": one.lower_mu,
        "mu_proved": one.proved_mu,
        "seconds": examined.seconds,
    }
    if examined.one_run is not None:
        numbers |= {
            "one_run_epsilon_lower_bound": examined.one_run.lower_bound,
            "one_run_mu_lower_bound": examined.one_run.lower_mu,
            "one_run_p_value": examined.one_run.p_value,
        }
    if examined.chain is not None:
        numbers |= {
            "chain_epsilon_lower_bound": examined.chain.lower_bound,
            "chain_epsilon_ceiling": examined.chain.ceiling,
            "chain_fields_differing": float(len(examined.chain.differing)),
        }
    reports = (("mechanism", one), ("one_run", examined.one_run), ("chain", examined.chain))
    reports_by_name = {name: report.to_json() for name, report in reports if report is not None}
    return RunReport(
        experiment=AUDITS,
        run_key=f"audit-{uuid.uuid4().hex}",
        name=f"{examined.algorithm}: {examined.outcome}",
        facts={
            "algorithm": examined.algorithm,
            "dataset": "synthetic rows",
            "proved": None if one.proved_epsilon is None else f"({one.proved_epsilon:.6g}, {one.delta:g})-DP",
            "claim": None if one.claimed_epsilon is None else f"({one.claimed_epsilon:.6g}, {one.delta:g})-DP",
            "neighbours": one.neighbours,
        },
        params={"confidence": one.confidence, "trials": one.trials, "seed": one.seed, "pair": one.pair},
        metrics={name: float(value) for name, value in numbers.items() if value is not None},
        # The step is the type I error in thousandths.
        curves={
            "trade_off": {round(1000 * alpha): beta for alpha, beta in one.stated_curve},
            "trade_off_measured": {round(1000 * alpha): beta for alpha, beta in one.curve},
        },
        tags={AUDIT_TAG: examined.outcome},
        files={
            "audit.json": json.dumps(reports_by_name, indent=2, default=str),
            "trade-off.png": draw_trade_offs([one]),
        },
        note=_note(examined),
    )


def _note(examined: Examined) -> str:
    one = examined.mechanism
    stated = one.proved_epsilon if one.proved_epsilon is not None else one.claimed_epsilon
    status = "proved" if one.proved_epsilon is not None else "claimed"
    lines = [
        f"**{examined.algorithm}**: {examined.outcome}.",
        f"ε ≥ {one.lower_bound:.4g} at δ = {one.delta:g}, confidence {one.confidence:.12g}; "
        + (f"{status} ε = {stated:.4g}" if stated is not None else "no guarantee is stated")
        + (f", μ = {one.proved_mu:.4g}." if one.proved_mu is not None else "."),
        *examined.reasons,
    ]
    return "\n\n".join(lines)


WARNING, CONSISTENT = "warning", "consistent"
_SUSPECTS, _CERTAIN = 0.99, 1 - 1e-9
# What leaks beside a release does not depend on its budget, and a small one is refuted by fewer runs.
_CHAIN_EPSILON = 1.0
# As many as refute epsilon 1 at 1 − 10⁻⁹ where one field tells the neighbours apart each time.
_CHAIN_TRIALS_AGAIN = 160
_TRIALS_AGAIN = 400
_MOST_FIELDS = 5


class AuditRequest(BaseModel, frozen=True, extra="forbid"):
    """The request of a scheduled audit. It is free, because its rows are synthetic."""

    algorithm: Annotated[
        Annotated[str, RegisteredName("systems")] | None,
        Field(description="Algorithm to audit. Default: those of the registered models."),
    ] = None
    epsilon: Annotated[float | None, Field(gt=0, description="Epsilon. Default: that of the newest model.")] = None
    delta: Annotated[float | None, Field(gt=0, lt=1, description="Delta. Default: that of the newest model.")] = None
    neighbours: Annotated[
        RelationInForce | None,
        Field(title="Neighbours", description="Neighbouring relation. Default: that of the newest model."),
    ] = None
    trials: Annotated[int, Field(ge=8, description="Runs of the mechanism on each neighbour.")] = 1000
    canaries: Annotated[int, Field(ge=0, description="Canaries of the audit from one run; 0: no such audit.")] = 200
    chain_trials: Annotated[int, Field(ge=0, description="Whole runs on each neighbour of a pair; 0: none.")] = 24
    seed: Annotated[int | None, Field(ge=0, description="Seed of rows and noise. Default: a random seed.")] = None


class Examined(BaseModel, frozen=True, arbitrary_types_allowed=True):
    """The joint result of the audits of one algorithm.

    Attributes
    ----------
    outcome : str
        ``"violation"`` at confidence 1 − 10⁻⁹, ``"warning"`` at 99 %, or ``"consistent"``.
    reasons : tuple of str
        One a finding.
    mechanism, one_run, chain
        The reports that the outcome rests on; None where an audit was left out.
    mlflow_run_id : str or None
        Where it is on record.
    """

    algorithm: str
    outcome: str
    reasons: tuple[str, ...]
    seconds: float
    mechanism: AuditReport
    one_run: OneRunReport | None = None
    chain: ChainReport | None = None
    mlflow_run_id: str | None = None


def examine_system(
    name: str, request: AuditRequest, *, epsilon: float, delta: float, neighbours: Neighbours, chain: Chain
) -> Examined:
    """Audit a system at 99 % confidence, and what is suspected then once more on fresh noise at 1 − 10⁻⁹.

    Guarantee
    ---------
    Of a sound system, each audit warns with probability at most 1 %, and finds a violation with probability at most
    10⁻⁹: the repetition is a separate experiment, and the p-value of the audit from one run holds at every level.
    """
    started = time.monotonic()
    seed = secrets.randbelow(2**31) if request.seed is None else request.seed
    options = AuditOptions(epsilon=epsilon, delta=delta, neighbours=neighbours, confidence=_SUSPECTS, seed=seed)
    findings: list[tuple[bool, str]] = []
    mechanism = audit_system(name, dataclasses.replace(options, trials=request.trials))
    if mechanism.verdict is Verdict.VIOLATES:
        trials = max(request.trials, _TRIALS_AGAIN)
        again = audit_system(name, dataclasses.replace(options, trials=trials, confidence=_CERTAIN, seed=seed + 1))
        certain = again.verdict is Verdict.VIOLATES
        mechanism = again if certain else mechanism
        findings.append(
            (
                certain,
                f"epsilon is {mechanism.lower_bound:.4g} at least, at confidence {mechanism.confidence:.12g} "
                f"({mechanism.pair}; {mechanism.event})",
            )
        )
    one_run = None
    if request.canaries:
        one_run = audit_in_one_run(name, options, canaries=request.canaries)
        if one_run.verdict is Verdict.VIOLATES:
            findings.append(
                (
                    one_run.p_value < 1.0 - _CERTAIN,
                    f"{one_run.correct} of {one_run.guesses} canaries were guessed in one run, which has probability "
                    f"{one_run.p_value:.2g} at most",
                )
            )
    whole = None
    if request.chain_trials and mechanism.proved_epsilon is not None:
        smaller = dataclasses.replace(options, epsilon=min(epsilon, _CHAIN_EPSILON), trials=request.chain_trials)
        whole = audit_chain(name, smaller, chain=chain)
        if whole.verdict is Verdict.VIOLATES or whole.differing:
            again_options = dataclasses.replace(smaller, trials=_CHAIN_TRIALS_AGAIN, confidence=_CERTAIN)
            whole = audit_chain(name, again_options, chain=chain)
            fields = ", ".join(whole.differing[:_MOST_FIELDS]) or whole.event
            findings.append((whole.verdict is Verdict.VIOLATES, f"neighbours differ outside the releases: {fields}"))
    suspicion = VIOLATION if any(certain for certain, _ in findings) else WARNING
    return Examined(
        algorithm=name,
        outcome=suspicion if findings else CONSISTENT,
        reasons=tuple(reason for _, reason in findings),
        seconds=round(time.monotonic() - started, 1),
        mechanism=mechanism,
        one_run=one_run,
        chain=whole,
    )
