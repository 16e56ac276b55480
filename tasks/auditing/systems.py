"""The audit of one system: neighbours, experiment, verdict."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from dpalgos.audit.events import Outputs
from dpalgos.audit.experiment import Experiment, best_pair, examine
from dpalgos.audit.report import AuditReport, make_report
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Neighbours
from dpalgos.registry import lookup
from dpalgos.systems.system import System
from tasks.auditing.made_up import ONE_COORDINATE, MadeUpRun, Neighbouring, neighbouring_rows

__all__ = ["audit_system"]

_ROWS = 8
# Each step of a descent is the same mechanism at a share of the budget: a few are as telling as many, and quicker.
_STEPS = 3
# Few features make strong tests of most releases; noise a coordinate shows itself in many.
_DIMENSIONS = (4, 40)
_PILOT = 50


def audit_system(
    name: str,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    trials: int = 2000,
    confidence: float = 0.99,
    neighbours: Neighbours = Neighbours.REPLACE_ONE,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> AuditReport:
    """Run a registered system on made-up neighbours many times, and bound its epsilon from below.

    Parameters
    ----------
    name : str
        Of a registered system; one that draws no noise has nothing to audit.
    epsilon, delta : float
        What it is asked to cost.
    trials : int
        Runs on each neighbour; half of them choose the event, half are counted. No bound exceeds ln(trials/2/5.3) at
        99 %.
    confidence : float
        Of the bound: it exceeds the true epsilon in at most a share 1 − confidence of audits.
    neighbours : Neighbours
    seed : int
        Of the noise, which is public: the rows are made up.
    progress : callable, optional
        Told how many of how many runs are done.

    Raises
    ------
    UnknownNameError, ParameterError
        For a name that is not registered, numbers out of range, or a system that draws no noise.
    """
    if trials < 4:
        raise ParameterError(
            f"trials is {trials}; an audit needs four at the least, and some hundreds to show anything"
        )
    system = lookup("systems", name)
    started = time.monotonic()
    experiments, plan = [], None
    for dimension in _DIMENSIONS:
        run = MadeUpRun.of(
            name,
            epsilon=epsilon,
            delta=delta,
            rows=_ROWS,
            dimension=dimension,
            neighbours=neighbours,
            parameters=_few_steps(system),
        )
        plan = plan or run.plan
        pairs = neighbouring_rows(run, _ROWS, dimension, neighbours)
        for pair in pairs:
            # Of many features those pairs are of interest that move all of them.
            if dimension != _DIMENSIONS[0] and pair.name in ONE_COORDINATE:
                continue
            label = f"{pair.name}, {dimension} features"
            secret = hashlib.sha256(f"{seed}/{label}".encode()).digest()
            experiments.append(Experiment(label, partial(_runs, run, pair, secret)))
    assert plan is not None
    if all(release.budget is None for release in plan.releases):
        raise ParameterError(f"{name} draws no noise and claims nothing: there is nothing to audit")
    chosen = best_pair(experiments, trials=_PILOT, delta=delta)
    found = examine(chosen, trials=trials, delta=delta, confidence=confidence, progress=progress)
    return make_report(
        found,
        algorithm=name,
        kind="systems",
        claimed_epsilon=epsilon if system.claim is not None else None,
        bills=list(set(plan.bills().values())) if plan.proved else None,
        delta=delta,
        confidence=confidence,
        neighbours=neighbours,
        seed=seed,
        seconds=time.monotonic() - started,
    )


def _few_steps(system: System) -> dict[str, int]:
    """Return parameters that shorten a descent."""
    trainer = next(iter(system.supported().values())).trainer
    fields = {field.name for field in dataclasses.fields(lookup("trainers", trainer.name))}
    return {"trainer.iterations": _STEPS} if "iterations" in fields else {}


def _runs(run: MadeUpRun, pair: Neighbouring, secret: bytes, world: bool, first: int, count: int) -> Outputs:
    outputs = [run.outputs(pair, world, secret, trial) for trial in range(first, first + count)]
    return {name: np.stack([one[name] for one in outputs]) for name in outputs[0]}
