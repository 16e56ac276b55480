"""The audit of one system on real public rows that differ in a canary."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import partial

from dpalgos.audit.experiment import Experiment, best_pair, examine
from dpalgos.audit.report import AuditReport, make_report
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Neighbours
from dpalgos.registry import lookup
from tasks.auditing.made_up import MadeUpRun
from tasks.auditing.public_rows import canary_pairs, public_sample

__all__ = ["audit_on_public_rows"]

_PILOT = 48


def audit_on_public_rows(
    name: str,
    dataset: str,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    trials: int = 400,
    confidence: float = 0.99,
    neighbours: Neighbours = Neighbours.REPLACE_ONE,
    rows: int = 40,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> AuditReport:
    """Run a registered system on public rows with and without a canary, and bound its epsilon from below.

    Which canary shows most is chosen on runs of its own; see :func:`~tasks.auditing.public_rows.canary_pairs`. It is
    mostly a weaker test than the worst pairs of :func:`~tasks.auditing.systems.audit_system`: what it tells is how much
    of a row such as there are leaks.

    Parameters
    ----------
    name : str
        Of a registered system.
    dataset : str
        Public; rows of its first two classes are taken.
    epsilon, delta : float
        What the system is asked to cost.
    trials : int
        Runs on each neighbour, half of them to choose an event; at least 8.
    confidence : float
    neighbours : Neighbours
    rows : int
        Even; as many again are held back.
    seed : int
        Of sample and noise.
    progress : callable, optional
        Called with the number of runs that are done and that of all.

    Raises
    ------
    RefusedError
        If the data set is private.
    InputError, UnknownNameError, ParameterError
        For a set or system that does not fit, or numbers out of range.
    """
    if trials < 8 or rows < 4 or rows % 2:
        raise ParameterError(f"trials is {trials} and rows {rows}; give at least 8 trials and an even number of rows")
    started = time.monotonic()
    sample = public_sample(dataset, rows, seed)
    run = MadeUpRun.of(
        name,
        epsilon=epsilon,
        delta=delta,
        rows=rows // 2,
        dimension=sample.features.shape[1],
        neighbours=neighbours,
    )
    if all(release.budget is None for release in run.plan.releases):
        raise ParameterError(f"{name} draws no noise and claims nothing: there is nothing to audit")
    experiments = [
        Experiment(pair.name, partial(run.stacked, pair, hashlib.sha256(f"{seed}/{pair.name}".encode()).digest()))
        for pair in canary_pairs(sample, neighbours)
    ]
    found = examine(
        best_pair(experiments, trials=_PILOT, delta=delta),
        trials=trials,
        delta=delta,
        confidence=confidence,
        progress=progress,
    )
    return make_report(
        found,
        algorithm=name,
        kind="systems",
        claimed_epsilon=epsilon if lookup("systems", name).claim is not None else None,
        bills=list(set(run.plan.bills().values())) if run.plan.proved else None,
        delta=delta,
        confidence=confidence,
        neighbours=neighbours,
        seed=seed,
        seconds=time.monotonic() - started,
    )
