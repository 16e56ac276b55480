"""A sweep: many training runs under one engine, side by side, each finished once; a frontier of accuracy among them."""

import logging
import time
from collections.abc import Sequence, Set

from prefect import flow, task
from prefect.futures import as_completed
from pydantic import BaseModel

from dpalgos.registry import lookup
from flows import federated_training
from storage.errors import InputError
from tasks.datasets.registration import ensure_registered, find_dataset
from tasks.experiments.point_results import PointResult, point_result
from tasks.experiments.specifications import Plot, Point, SweepBlock, SweepSpec
from tasks.host.cluster import over_cluster, task_runner
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import code_version, identity
from tasks.release.admission import charging_only
from tasks.runtime.progress import report_progress
from tasks.runtime.settings import current_layout, current_root
from tasks.runtime.standing import AGAIN, note_elsewhere
from tasks.runtime.steps import RETRIES, ByContent, inline, threads
from tasks.tracking.artifacts import show_sweep
from tasks.tracking.reporting import report_without_model
from tasks.tracking.results import RunResult, append_result
from tasks.tracking.runs import Entries, SweepTracker

FRONTIER_PLOT = Plot(x="epsilon", log_x=True)
"""What is drawn of it: a line an algorithm, with the spread over the seeds."""


def frontier_sweep(
    config: TrainingConfig, algorithms: Sequence[str], epsilons: Sequence[float], seeds: int
) -> SweepSpec:
    """Return the runs of a frontier: every algorithm at every budget and seed, those without noise once a seed.

    Parameters
    ----------
    config : TrainingConfig
        What all runs have in common: data set, parties, trust, relation, delta. Algorithm, epsilon and seeds in it are
        ignored; a trust model is asked of the algorithms that run under it, what is declared of mirror images of those
        that look at images; the others keep their own.
    algorithms : sequence of str
        Named systems.
    epsilons : sequence of float
    seeds : int
        Of noise and partition, from 0.

    Raises
    ------
    UnknownNameError
        For an algorithm that is not registered.
    """
    left_out = {"algorithm", "epsilon", "seed", "partition_seed", "parameters", "trust", "secure", "dataset", "mirror"}
    shared = config.model_dump(mode="json", exclude=left_out, exclude_defaults=True)
    blocks = []
    for name in algorithms:
        supported = lookup("systems", name).supported()
        arrangement = next(iter(supported.values()))
        parts = [part for part in (arrangement.projection, arrangement.trainer) if part is not None]
        noisy = any(lookup(part.kind, part.name).budgets for part in parts)
        settings: dict[str, object] = {"trust": str(config.trust)} if config.trust in supported else {}
        if config.mirror is not None and any(hasattr(lookup(part.kind, part.name), "mirror") for part in parts):
            settings["mirror"] = config.mirror
        # Without noise the partition alone differs; a private run's lines are drawn over the same budgets.
        budget = {"grid": {"epsilon": list(epsilons)}} if noisy else {"set": {"epsilon": None}}
        blocks.append(
            SweepBlock(set={"algorithm": name, **settings, **budget.get("set", {})}, grid=budget.get("grid", {}))
        )
    return SweepSpec(
        name=f"frontier-{config.dataset}",
        title=f"Accuracy against the privacy budget: {config.dataset}",
        question="Which accuracy does a budget buy, and how far is it from training without privacy?",
        set={"dataset": config.dataset, **shared},
        grid={"seeds": list(range(seeds))},
        blocks=blocks,
    )


class Outcome(BaseModel, frozen=True):
    """Outcome of a point."""

    point: Point
    result: RunResult | None = None
    error: str | None = None


class SweepResult(BaseModel, frozen=True):
    """All points of a sweep, in the order of the specification."""

    name: str
    outcomes: tuple[Outcome, ...]
    mlflow_run_id: str
    reused: int
    seconds: float | None

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The points that failed."""
        return tuple(outcome for outcome in self.outcomes if outcome.error is not None)

    def errors(self) -> list[str]:
        """Return one line a failed point."""
        return [f"{one.point.description}: {one.error}" for one in self.failed]

    def finished(self) -> list[PointResult]:
        """Return the results of the points that did not fail."""
        return [point_result(one.point, one.result) for one in self.outcomes if one.result is not None]


@task(task_run_name="{name}", cache_policy=ByContent(without=("agreed",)), persist_result=True, **RETRIES)
def finish_point(
    config: TrainingConfig, name: str, root: str, agreed: list[str] | None = None
) -> tuple[RunResult, Entries]:
    """Run one point from ingestion to results; return its result, and what MLflow shows of it.

    ``agreed``: keys of the releases that private accounts may be charged for; None for all.
    """
    if str(current_root()) != root:
        raise InputError(f"this worker's root is {current_root()}, the sweep's is {root}: start it with --root {root}")
    with inline(), charging_only(None if agreed is None else set(agreed)):
        prepared = federated_training.plan(config)
        config, (dataset, plan, result, _) = prepared.config, federated_training.chain(prepared)
    append_result(config, result)
    report = report_without_model(config, dataset, plan, result)
    facts = report.all_facts()
    return result, Entries(name=name, facts=facts, params=report.params, metrics=report.metrics, tags=report.tags)


def _all_public(datasets: Set[str]) -> bool:
    """Whether none of these sets is private; one that cannot be found counts as private."""
    try:
        return not any(find_dataset(name).private for name in datasets)
    except InputError:
        return False


def _seconds(started: float, *, timed: bool) -> float | None:
    """Return how long it took; None where a point reads private rows, of which durations tell."""
    return round(time.monotonic() - started, 3) if timed else None


def _progress(points: int, done: int, failed: int, reused: int, seconds: float | None) -> str:
    """Return points done, failed and left, and, where durations tell nothing, how long the rest will take."""
    left, run = points - done - failed, done + failed - reused
    text = f"{done} done, {failed} failed, {left} left"
    if not left or not run or seconds is None:
        return text
    rest = seconds / run * left
    return f"{text}, about " + (f"{rest:.0f} s" if rest < 100 else f"{rest / 60:.0f} min")


@flow(
    name="sweep",
    flow_run_name="sweep {spec.name}",
    persist_result=False,
    # A deployed one takes this; Prefect's own has no bound.
    task_runner=threads(),
)
def sweep(spec: SweepSpec, agreed: list[str] | None = None) -> SweepResult:
    """Run every point of a grid; what is finished is taken from the cache, what fails is recorded.

    Parameters
    ----------
    spec : SweepSpec
    agreed : list of str, optional
        Keys of the releases whose price was agreed to on the command line. Default: all may be charged.

    Returns
    -------
    SweepResult
    """
    points = spec.points()
    # Before the points: many that run at once would each bring the same set in.
    used = [(one.config.dataset, one.config.public_dataset, one.config.tuned_on) for one in points]
    ensure_registered(*{name for names in used for name in names})
    root = str(current_root())
    tracker = SweepTracker(
        current_root(),
        experiment=spec.name,
        key=identity(sweep=spec, code=code_version()),
        name=spec.title or spec.name,
        tags={"paper": spec.paper or "none", "figure": spec.figure or "none", "sweep": spec.name},
        axes=spec.varied(),
    )
    started, timed = time.monotonic(), _all_public({point.config.dataset for point in points})
    futures = {
        finish_point.submit(point.config, point.description, root, agreed): number
        for number, point in enumerate(points)
    }
    outcomes: dict[int, Outcome] = {}
    failed = reused = 0
    for future in as_completed(list(futures)):
        point = points[futures[future]]
        finished: tuple[RunResult, Entries] | BaseException = future.result(raise_on_failure=False)
        if isinstance(finished, BaseException):
            error = " ".join(f"{type(finished).__name__}: {finished}".split())
            outcome, entries = Outcome(point=point, error=error), Entries(name=point.description, params=point.axes)
        else:
            outcome, entries = Outcome(point=point, result=finished[0]), finished[1]
        outcomes[futures[future]] = outcome
        failed += outcome.error is not None
        reused += future.state.name == "Cached"
        done = len(outcomes) - failed
        report_progress("points", _progress(len(points), done, failed, reused, _seconds(started, timed=timed)))
        tracker.write(point.key, entries, outcome.error)
    result = SweepResult(
        name=spec.name,
        outcomes=tuple(outcomes[number] for number in range(len(points))),
        mlflow_run_id=tracker.run_id,
        reused=reused,
        seconds=_seconds(started, timed=timed),
    )
    counts = {"points": len(points), "points_done": len(points) - failed, "points_failed": failed}
    tracker.close(metrics=counts, files={"sweep.json": spec.model_dump_json(indent=2)}, note=spec.question)
    show_sweep(spec.name, [(outcome.point.description, outcome.result, outcome.error) for outcome in result.outcomes])
    return result


def run_sweep(
    spec: SweepSpec, *, workers: int | None = None, dask: str | None = None, agreed: list[str] | None = None
) -> SweepResult:
    """Run a sweep over threads or Dask.

    Parameters
    ----------
    spec : SweepSpec
    workers : int, optional
        Points at once; the specification's, or by the machine.
    dask : str, optional
        ``"local"``, or ``tls://HOST:PORT`` of a scheduler whose workers see the same root.
    agreed : list of str, optional
        See :func:`sweep`.
    """
    runner = task_runner(current_layout(), workers or spec.workers, dask)
    if dask is not None:
        note_elsewhere("workers", f"the charges of its points remain: {AGAIN}")
    # The sweep counts and lists the points that fail; the engine's pages hold the details, and no console.
    logger = logging.getLogger("prefect.task_runs")
    before, logger.propagate = logger.propagate, False
    try:
        with over_cluster(dask):
            return sweep.with_options(task_runner=runner)(spec, agreed)
    finally:
        logger.propagate = before
