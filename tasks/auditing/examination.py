"""One algorithm examined by all audits: mechanism, one run, whole chain; what is suspected is audited again."""

from __future__ import annotations

import secrets
import time
from functools import partial
from typing import Annotated

from pydantic import BaseModel, Field

from dpalgos.audit.report import AuditReport, Verdict
from dpalgos.guarantees import Neighbours
from tasks.auditing.chain import Chain, ChainReport, audit_chain
from tasks.auditing.one_run import OneRunReport, audit_in_one_run
from tasks.auditing.systems import audit_system
from tasks.planning.configuration import RegisteredName
from tasks.planning.relations import RelationInForce
from tasks.tracking.promotion import VIOLATION

WARNING, CONSISTENT = "warning", "consistent"
_SUSPECTS, _CERTAIN = 0.99, 1 - 1e-9
# What leaks beside a release does not depend on its budget, and a small one is refuted by fewer runs.
_CHAIN_EPSILON = 1.0
# As many as refute epsilon 1 at 1 − 10⁻⁹ where one field tells the neighbours apart each time.
_CHAIN_TRIALS_AGAIN = 160
_TRIALS_AGAIN = 400
_MOST_FIELDS = 5


class AuditRequest(BaseModel, frozen=True, extra="forbid"):
    """What a scheduled audit examines; rows are synthetic, so nothing is charged."""

    algorithm: Annotated[
        Annotated[str, RegisteredName("systems")] | None,
        Field(description="A system; those of the registered models if left out."),
    ] = None
    epsilon: Annotated[float | None, Field(gt=0, description="Budget; that of the newest model if left out.")] = None
    delta: Annotated[float | None, Field(gt=0, lt=1, description="That of the newest model if left out.")] = None
    neighbours: Annotated[
        RelationInForce | None,
        Field(title="Neighbours", description="Neighbouring relation; that of the newest model if left out."),
    ] = None
    trials: Annotated[int, Field(ge=8, description="Runs of the mechanism on each neighbour.")] = 1000
    canaries: Annotated[int, Field(ge=0, description="Canaries of the audit from one run; 0 leaves it out.")] = 200
    chain_trials: Annotated[
        int, Field(ge=0, description="Whole runs on each neighbour of a pair; 0 leaves them out.")
    ] = 24
    seed: Annotated[int | None, Field(ge=0, description="Of rows and noise; drawn anew if left out.")] = None


class Examined(BaseModel, frozen=True, arbitrary_types_allowed=True):
    """What the audits of one algorithm say together.

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
    10⁻⁹: the repetition is an experiment of its own, and the p-value of the audit from one run holds at every level.
    """
    started = time.monotonic()
    seed = secrets.randbelow(2**31) if request.seed is None else request.seed
    of_mechanism = partial(audit_system, name, epsilon=epsilon, delta=delta, neighbours=neighbours)
    findings: list[tuple[bool, str]] = []
    mechanism = of_mechanism(trials=request.trials, confidence=_SUSPECTS, seed=seed)
    if mechanism.verdict is Verdict.VIOLATES:
        again = of_mechanism(trials=max(request.trials, _TRIALS_AGAIN), confidence=_CERTAIN, seed=seed + 1)
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
        one_run = audit_in_one_run(
            name, epsilon=epsilon, delta=delta, neighbours=neighbours, canaries=request.canaries, seed=seed
        )
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
        of_chain = partial(
            audit_chain, name, chain=chain, epsilon=min(epsilon, _CHAIN_EPSILON), delta=delta, neighbours=neighbours
        )
        whole = of_chain(trials=request.chain_trials, confidence=_SUSPECTS)
        if whole.verdict is Verdict.VIOLATES or whole.differing:
            whole = of_chain(trials=_CHAIN_TRIALS_AGAIN, confidence=_CERTAIN)
            fields = ", ".join(whole.differing[:_MOST_FIELDS]) or whole.event
            findings.append((whole.verdict is Verdict.VIOLATES, f"beside the releases neighbours differ: {fields}"))
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
