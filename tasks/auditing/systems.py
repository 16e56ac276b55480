"""The audit of a registered system: many runs on synthetic neighbours, and a lower bound of its epsilon."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from dpalgos.algorithms import Algorithm
from dpalgos.audit.experiment import USUAL, AuditOptions, AuditReport, Experiment, audit_experiments
from dpalgos.audit.releases import audit_parameters, experiments_on, shape_of
from dpalgos.columns import Column
from dpalgos.guarantees import Neighbours
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup
from tasks.auditing.synthetic_runs import ONE_COORDINATE, ROWS, SyntheticRun, neighbouring_rows
from tasks.planning.releases import PlannedRelease
from tasks.runtime.progress import report_runs

# (features, classes): few numbers make strong tests, noise a coordinate shows in many, and ten classes show whether
# their classifiers are composed. A map of images needs as many features as an image of 8 x 8 pixels has.
_SHAPES = ((2, 2), (40, 2), (2, 10))
_IMAGE_SHAPES = ((64, 2),)
# Rows of each party of a table, of which so many numbers are learnt, and bins of each: few, so that runs are quick.
_TABLE_ROWS, _TABLE_NUMBERS, _BINS = 200, 1, 32


def audit_system(name: str, options: AuditOptions = USUAL) -> AuditReport:
    """Run a registered system on synthetic neighbours many times, and bound its epsilon from below.

    Experiments are the whole system, planned as any run is, and each of its releases that reads rows first.

    Parameters
    ----------
    name : str
        Of a registered system; one that draws no noise has nothing to audit.
    options : AuditOptions
        Of more than 20,000 trials four fifths are counted, else half. No bound exceeds ln(counted/5.3) at 99 %.

    Raises
    ------
    UnknownNameError, ParameterError
        For a name that is not registered, numbers out of range, or a system that draws no noise.
    """
    started, (epsilon, delta) = time.monotonic(), options.budget()
    neighbours = options.neighbours or parts_of(name)[0].relations[0]
    require_noise(name)
    experiments: list[Experiment] = []
    runs = []
    for dimension, classes, run in _runs_of(name, epsilon, delta, neighbours):
        runs.append(run)
        salt = f"{options.seed}/{name}"
        for pair in neighbouring_rows(run, dimension, neighbours):
            # Of many features those pairs are of interest that move all of them.
            if dimension == _SHAPES[0][0] or pair.name not in ONE_COORDINATE:
                experiments.append(run.experiment(pair, f"{pair.name}, {shape_of(dimension, classes)}", salt))
        for release in _alone(run):
            alone = experiments_on(release.build(), release.setting, salt=f"{salt}/{release.name}")
            experiments += [replace(each, pair=f"{release.name} alone, {each.pair}") for each in alone if each.numbers]
    costs = [cost for run in runs for cost in run.plan.losses_by_party().values()]
    report = audit_experiments(
        experiments,
        replace(runs[0].stated, costs=list(set(costs)) if all(run.plan.proved for run in runs) else None),
        options,
        algorithm=name,
        kind="systems",
        neighbours=neighbours,
        progress=report_runs,
    )
    return replace(report, seconds=round(time.monotonic() - started, 2))


def require_noise(name: str) -> None:
    """Refuse a system that draws no noise."""
    if not draws_noise(name):
        raise ParameterError(f"{name} draws no noise and claims nothing: there is nothing to audit")


def draws_noise(name: str) -> bool:
    """Whether any part of a registered system draws noise."""
    return any(part.budgets for part in parts_of(name))


def parts_of(name: str) -> list[type[Algorithm]]:
    """Return a system's trainer, and its projection if it has one."""
    arrangement = next(iter(lookup("systems", name).supported().values()))
    parts = [lookup("trainers", arrangement.trainer.name)]
    if arrangement.projection is not None:
        parts.append(lookup("projections", arrangement.projection.name))
    return parts


def _runs_of(
    name: str, epsilon: float, delta: float, neighbours: Neighbours
) -> Iterator[tuple[int, int, SyntheticRun]]:
    """Yield runs of a system on rows of several shapes."""
    # What an audit of a trainer sets beside its budget.
    found = audit_parameters(parts_of(name)[0], 0)
    parameters = {f"trainer.{field}": value for field, value in found.items() if field != "components"}
    planned = partial(SyntheticRun.of, name, epsilon=epsilon, delta=delta, neighbours=neighbours)
    of_rows = partial(planned, rows=ROWS, parameters=parameters)
    shapes: tuple[tuple[int, int], ...] = _SHAPES
    try:
        of_rows(dimension=shapes[0][0], classes=shapes[0][1])
    except ParameterError:
        # What else is wrong with the arguments is said again here.
        shapes = _IMAGE_SHAPES
    for dimension, classes in shapes:
        yield dimension, classes, of_rows(dimension=dimension, classes=classes)
    columns = [Column(at=place, low=-1.0, high=1.0) for place in range(_TABLE_NUMBERS)]
    of_table = partial(planned, rows=_TABLE_ROWS, dimension=_TABLE_NUMBERS, classes=2, columns=columns)
    # A system that counts no columns has no other runs on a table than on any rows.
    if lookup("systems", name).table_normalisation is not None and of_table(parameters=parameters).plan.counts:
        yield _TABLE_NUMBERS, 2, of_table(parameters={**parameters, "counts.bins": _BINS})


def _alone(run: SyntheticRun) -> Iterable[PlannedRelease]:
    """Return the releases that read rows as they are, one of each kind."""
    first = {release.name: release for release in reversed(run.plan.releases) if not release.upstream}
    return [one for one in reversed(first.values()) if one.reads_rows and one.budget is not None]
