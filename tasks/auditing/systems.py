"""Systems under audit: the catalogue of what is audited, and each as a function of neighbours."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from threadpoolctl import threadpool_limits

from dpalgos.algorithms import Algorithm
from dpalgos.audit.experiment import QUICK, AuditReport, Effort, Experiment, audit_experiments
from dpalgos.audit.releases import USUAL_BUDGET, audit_parameters, audit_release, audited, experiments_on, shape_of
from dpalgos.errors import ParameterError, UnknownNameError
from dpalgos.guarantees import Neighbours
from dpalgos.registry import lookup, names
from storage.atomic import write_bytes
from tasks.auditing.synthetic import ONE_COORDINATE, SyntheticRun, canary_pairs, neighbouring_rows, public_sample
from tasks.planning.configuration import Json
from tasks.planning.identity import identity, package_digest
from tasks.planning.plans import PlannedRelease
from tasks.runtime.progress import say_runs

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
) -> AuditReport:
    """Run a registered system on synthetic neighbours many times, and bound its epsilon from below.

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
        Of the noise, which is public: the rows are synthetic.
    effort : Effort, optional

    Raises
    ------
    UnknownNameError, ParameterError
        For a name that is not registered, numbers out of range, or a system that draws no noise.
    """
    started, usual = time.monotonic(), USUAL_BUDGET
    epsilon, delta = usual[0] if epsilon is None else epsilon, usual[1] if delta is None else delta
    neighbours = neighbours or _parts(name)[0].relations[0]
    require_noise(name)
    experiments: list[Experiment] = []
    runs = []
    for dimension, classes, run in _runs_of(name, epsilon, delta, neighbours):
        runs.append(run)
        salt = f"{seed}/{name}"
        for pair in neighbouring_rows(run, _ROWS, dimension, neighbours):
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
        algorithm=name,
        kind="systems",
        trials=trials,
        confidence=confidence,
        neighbours=neighbours,
        seed=seed,
        effort=effort,
        progress=say_runs,
    )
    return replace(report, seconds=round(time.monotonic() - started, 2))


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
) -> AuditReport:
    """Run a registered system on public rows with and without a canary, and bound its epsilon from below.

    Which canary shows most is chosen on runs of its own; see :func:`~tasks.auditing.synthetic.canary_pairs`. It is
    mostly a weaker test than the worst pairs of :func:`audit_system`: what it tells is how much
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

    Raises
    ------
    RefusedError
        If the data set is private.
    InputError, UnknownNameError, ParameterError
        For a set or system that does not fit, or numbers out of range.
    """
    require_noise(name)
    if rows < 4 or rows % 2:
        raise ParameterError(f"rows is {rows}; give an even number of at least 4, partitioned over two parties")
    started = time.monotonic()
    sample = public_sample(dataset, rows, seed)
    dimension = sample.features.shape[1]
    run = SyntheticRun.of(
        name, epsilon=epsilon, delta=delta, rows=rows // 2, dimension=dimension, neighbours=neighbours
    )
    report = audit_experiments(
        [run.experiment(pair, pair.name, str(seed)) for pair in canary_pairs(sample, neighbours)],
        run.stated,
        algorithm=name,
        kind="systems",
        trials=trials,
        confidence=confidence,
        neighbours=neighbours,
        seed=seed,
        effort=Effort(pilot=48),
        progress=say_runs,
    )
    return replace(report, seconds=round(time.monotonic() - started, 2))


def require_noise(name: str) -> None:
    """Refuse a system that draws no noise."""
    if not draws_noise(name):
        raise ParameterError(f"{name} draws no noise and claims nothing: there is nothing to audit")


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


def _runs_of(
    name: str, epsilon: float, delta: float, neighbours: Neighbours
) -> Iterator[tuple[int, int, SyntheticRun]]:
    """Yield runs of a system on rows of several shapes."""
    # What an audit of a trainer sets beside its budget.
    found = audit_parameters(_parts(name)[0], 0)
    parameters = {f"trainer.{field}": value for field, value in found.items() if field != "components"}

    def planned(dimension: int, classes: int) -> SyntheticRun:
        return SyntheticRun.of(
            name,
            epsilon=epsilon,
            delta=delta,
            rows=_ROWS,
            dimension=dimension,
            classes=classes,
            neighbours=neighbours,
            parameters=parameters,
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


def _alone(run: SyntheticRun) -> Iterable[PlannedRelease]:
    """Return the releases that read rows as they are, one of each kind."""
    first = {release.name: release for release in reversed(run.plan.releases) if not release.upstream}
    return [one for one in reversed(first.values()) if one.reads_rows and one.budget is not None]


KINDS = ("systems", "projections", "trainers", "evaluators")
"""The kinds of what can be audited; of a name that several have, the first is meant."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is audited.

    Parameters
    ----------
    kind, name : str
    """

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """How audits are made; see :func:`~tasks.auditing.systems.audit_system`."""

    epsilon: float | None = None
    delta: float | None = None
    trials: int | None = None
    confidence: float = 0.99
    neighbours: Neighbours | None = None
    seed: int = 0
    quick: bool = False


def subjects() -> list[Subject]:
    """Return all that draws noise: systems first, then the releases that they are made of.

    Aggregators are not among them: they read releases, not rows, and cost nothing whatever they do; what they make is
    an observable of each system's audit.
    """
    releases = [Subject(kind, name) for kind in KINDS[1:] for name in names(kind) if audited(kind, name)]
    return [Subject("systems", name) for name in names("systems") if draws_noise(name)] + releases


def find_subject(name: str, kind: str | None = None) -> Subject:
    """Return what a name means: a system, or else a release.

    Raises
    ------
    UnknownNameError
        Naming what is registered.
    ParameterError
        For a kind, or a name, that cannot be audited.
    """
    if kind is not None and kind not in KINDS:
        raise ParameterError(f"kind is {kind!r}; what can be audited are {', '.join(KINDS)}")
    for one in [kind] if kind else KINDS:
        if name in names(one):
            return Subject(one, name)
    if name in names("aggregators"):
        raise ParameterError(
            f"{name} is an aggregator: it reads releases, not rows, and costs nothing; audit a system that has it"
        )
    raise UnknownNameError(f"nothing that can be audited is called {name!r}; see unitball algorithms")


def audit_subject(subject: Subject, arguments: Arguments) -> AuditReport:
    """Audit one system or release.

    Raises
    ------
    ParameterError
        For numbers out of range, or where no noise is drawn.
    """
    started = time.monotonic()
    values = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(arguments)}
    effort = QUICK if values.pop("quick") else Effort()
    if subject.kind == "systems":
        return audit_system(subject.name, effort=effort, **values)
    report = audit_release(subject.kind, subject.name, effort=effort, progress=say_runs, **values)
    return dataclasses.replace(report, seconds=round(time.monotonic() - started, 2))


def audit_all(
    wanted: Sequence[Subject], arguments: Arguments, folder: Path, *, processes: int
) -> Iterator[tuple[Subject, Json]]:
    """Audit many, some at a time, and yield each report in JSON as soon as it is there.

    A report is kept in ``folder`` under a digest of what was audited, how, and of our whole source; where one is found
    it is not made again, so that an audit of everything that was interrupted goes on where it stopped. An audit that
    fails is yielded with the verdict ``not audited`` and the reason.

    Parameters
    ----------
    wanted : sequence of Subject
    arguments : Arguments
    folder : Path
        Made where there is none.
    processes : int
        How many at a time.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    request = {"code": package_digest("dpalgos", "tasks"), "arguments": dataclasses.asdict(arguments)}
    places = {one: folder / f"{identity(subject=dataclasses.asdict(one), **request)}.json" for one in wanted}
    missing = []
    for subject, place in places.items():
        kept = _read(place)
        if kept is None:
            missing.append(subject)
        else:
            yield subject, kept
    # The linear algebra of one process is not to slow the others down.
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=threadpool_limits, initargs=(1,)) as pool:
        waiting: Mapping[Future[AuditReport], Subject] = {
            pool.submit(audit_subject, subject, arguments): subject for subject in missing
        }
        try:
            for done in as_completed(waiting):
                subject, failure = waiting[done], done.exception()
                if failure is not None:
                    # One that cannot be audited must not end the others; nothing is kept, so it is tried again.
                    yield subject, _failed(subject, failure)
                    continue
                report = done.result().to_json()
                write_bytes(places[subject], json.dumps(report).encode())
                yield subject, json.loads(json.dumps(report))
        finally:
            pool.shutdown(cancel_futures=True)


def _failed(subject: Subject, failure: BaseException) -> Json:
    reason = f"{type(failure).__name__}: {' '.join(str(failure).split())}"
    numbers = ("delta", "claimed_epsilon", "proved_epsilon", "lower_bound", "gaussian_bound", "seconds")
    verdict = {"kind": subject.kind, "algorithm": subject.name, "verdict": f"not audited ({reason})", "trials": 0}
    return verdict | dict.fromkeys(numbers)


def _read(place: Path) -> Json | None:
    """Return a kept report; None where there is none that can be read."""
    try:
        report: Json = json.loads(place.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return report
