"""The audit of one system: neighbours, experiment, verdict."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from functools import partial

from dpalgos.algorithms import Algorithm
from dpalgos.audit.experiment import Experiment, best_pair, examine
from dpalgos.audit.releases import USUAL_BUDGET, Effort, audit_parameters, experiments_on, shape_of
from dpalgos.audit.report import AuditReport, make_report
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Neighbours
from dpalgos.registry import lookup
from tasks.auditing.made_up import ONE_COORDINATE, MadeUpRun, neighbouring_rows
from tasks.planning.plans import PlannedRelease

__all__ = ["audit_system", "draws_noise"]

_ROWS = 8
# (features, classes): few numbers make strong tests, noise a coordinate shows in many, and ten classes show whether
# their classifiers are composed. A map of images needs as many features as an image of 8 x 8 pixels has.
_SHAPES = ((2, 2), (40, 2), (2, 10))
_IMAGE_SHAPES = ((64, 2),)


def audit_system(
    name: str,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    trials: int | None = None,
    confidence: float = 0.99,
    neighbours: Neighbours | None = None,
    seed: int = 0,
    effort: Effort | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AuditReport:
    """Run a registered system on made-up neighbours many times, and bound its epsilon from below.

    Experiments are the whole system, planned as any run is, and each of its releases that reads rows first.

    Parameters
    ----------
    name : str
        Of a registered system; one that draws no noise has nothing to audit.
    epsilon, delta : float, optional
        What it is asked to cost; (1, 10⁻⁵) where left out.
    trials : int, optional
        Runs on each neighbour; half of them choose the event, half are counted (of more than 20,000 four fifths). By
        ``effort`` where left out. No bound exceeds ln(counted/5.3) at 99 %.
    confidence : float
        Of the bound: it exceeds the true epsilon in at most a share 1 − confidence of audits.
    neighbours : Neighbours, optional
        By default the first relation that its trainer's guarantee is derived for.
    seed : int
        Of the noise, which is public: the rows are made up.
    effort : Effort, optional
    progress : callable, optional
        Called with the number of runs that are done and that of all.

    Raises
    ------
    UnknownNameError, ParameterError
        For a name that is not registered, numbers out of range, or a system that draws no noise.
    """
    if trials is not None and trials < 8:
        raise ParameterError(
            f"trials is {trials}; an audit needs eight at the least, and some hundreds to show anything"
        )
    started = time.monotonic()
    usual = USUAL_BUDGET
    epsilon, delta = usual[0] if epsilon is None else epsilon, usual[1] if delta is None else delta
    neighbours = neighbours or _parts(name)[0].relations[0]
    if not draws_noise(name):
        raise ParameterError(f"{name} draws no noise and claims nothing: there is nothing to audit")
    experiments: list[Experiment] = []
    plans = []
    for dimension, classes, run in _runs_of(name, epsilon, delta, neighbours):
        plans.append(run.plan)
        salt = f"{seed}/{name}"
        for pair in neighbouring_rows(run, _ROWS, dimension, neighbours):
            # Of many features those pairs are of interest that move all of them.
            if dimension == _SHAPES[0][0] or pair.name not in ONE_COORDINATE:
                label = f"{pair.name}, {shape_of(dimension, classes)}"
                secret = hashlib.sha256(f"{salt}/{label}".encode()).digest()
                experiments.append(Experiment(label, partial(run.stacked, pair, secret)))
        for release in _alone(run):
            alone = experiments_on(release.build(), release.setting, salt=f"{salt}/{release.name}")
            experiments += [each.named(f"{release.name} alone, {each.pair}") for each in alone if each.numbers]
    effort = effort or Effort()
    chosen = best_pair(experiments, trials=effort.pilot_of(trials), delta=delta)
    found = examine(
        chosen, trials=trials or effort.trials(chosen), delta=delta, confidence=confidence, progress=progress
    )
    proved = all(plan.proved for plan in plans)
    return make_report(
        found,
        algorithm=name,
        kind="systems",
        claimed_epsilon=epsilon if lookup("systems", name).claim is not None else None,
        bills=list({bill for plan in plans for bill in plan.bills().values()}) if proved else None,
        delta=delta,
        confidence=confidence,
        neighbours=neighbours,
        seed=seed,
        seconds=time.monotonic() - started,
    )


def draws_noise(name: str) -> bool:
    """Whether any part of a registered system draws noise."""
    return any(part.budgets for part in _parts(name))


def _parts(name: str) -> list[type[Algorithm]]:
    """Return a system's trainer, and its projection if it has one."""
    arrangement = next(iter(lookup("systems", name).supported().values()))
    parts = [lookup("trainers", arrangement.trainer.name)]
    if arrangement.projection is not None:
        parts.append(lookup("projections", arrangement.projection.name))
    return parts


def _runs_of(name: str, epsilon: float, delta: float, neighbours: Neighbours) -> Iterator[tuple[int, int, MadeUpRun]]:
    """Yield runs of a system on rows of several shapes."""

    def planned(dimension: int, classes: int) -> MadeUpRun:
        return MadeUpRun.of(
            name,
            epsilon=epsilon,
            delta=delta,
            rows=_ROWS,
            dimension=dimension,
            classes=classes,
            neighbours=neighbours,
            parameters=_parameters(name),
        )

    try:
        planned(*_SHAPES[0])
    except ParameterError:
        # What else is wrong with the arguments is said again here.
        shapes: tuple[tuple[int, int], ...] = _IMAGE_SHAPES
    else:
        shapes = _SHAPES
    for dimension, classes in shapes:
        yield dimension, classes, planned(dimension, classes)


def _parameters(name: str) -> dict[str, object]:
    """Return what an audit of a trainer sets beside its budget."""
    found = audit_parameters(_parts(name)[0], 0)
    return {f"trainer.{field}": value for field, value in found.items() if field != "components"}


def _alone(run: MadeUpRun) -> Iterator[PlannedRelease]:
    """Yield the releases that read rows as they are, one of each kind."""
    seen = set()
    for release in run.plan.releases:
        if release.reads_rows and not release.upstream and release.budget is not None and release.name not in seen:
            seen.add(release.name)
            yield release
