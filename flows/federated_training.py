"""The main flow: ingest, normalise, partition, reduce, train, aggregate, evaluate, log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from prefect import Task, flow
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.chain import follow
from flows.secure_rounds import in_rounds
from storage.errors import RefusedError
from storage.refs import DatasetRef, ReleaseRef
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import PlannedCombination, PlannedRelease
from tasks.recording import record
from tasks.release.door import is_stored
from tasks.runtime.caching import checked, served_from_cache, submit
from tasks.runtime.concurrency import one_run_a_dataset, refused
from tasks.tracking.artifacts import Progress, show_budget, show_result
from tasks.tracking.results import Evaluation, RunResult

__all__ = ["train"]

_R = TypeVar("_R")


class _AsTasks:
    """Every step a Prefect task, releases side by side, with a progress artifact."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._futures: dict[str, PrefectFuture[Any]] = {}
        self._steps: list[PrefectFuture[Any]] = []

    def reached(self, stage: str) -> None:
        self._progress.reached(stage)

    def prepare(self, task: Task[..., _R], arguments: Sequence[Any], is_whole: Callable[[_R], bool]) -> _R:
        return checked(task, arguments, is_whole)

    def pay(self, dataset: DatasetRef, charge: Task[..., dict[str, Any]], *arguments: Any) -> None:
        show_budget(dataset, charge(*arguments))

    def make(self, task: Task[..., ReleaseRef], planned: PlannedRelease | PlannedCombination, *arguments: Any) -> None:
        if isinstance(planned, PlannedRelease) and planned.runs_in_rounds:
            shards, *upstream = arguments
            steps = in_rounds(planned, shards, upstream)
        else:
            steps = [submit(task, [planned, *arguments], stored=is_stored(planned.key))]
        self._steps += steps
        self._futures[planned.key] = steps[-1]

    def made(self, keys: Sequence[str]) -> list[PrefectFuture[Any]]:
        return [self._futures[key] for key in keys]

    def references(self) -> dict[str, ReleaseRef]:
        for step in self._steps:
            # In order, so that what failed says so itself; the steps after it only say that they never began.
            step.result()
        return {key: future.result() for key, future in self._futures.items()}

    def measure(self, task: Task[..., Evaluation], *arguments: Any) -> Evaluation:
        self._futures["evaluation"] = future = task.submit(*arguments)
        return future.result()

    def notes(self) -> dict[str, Any]:
        return {
            "prefect_flow_run_id": str(flow_run.id),
            "cached": all(served_from_cache(future) for future in self._futures.values()),
        }


@flow(
    name="federated-training",
    flow_run_name="{config.algorithm} on {config.dataset}",
    task_runner=cast(TaskRunner[PrefectFuture[Any]], ThreadPoolTaskRunner(max_workers=4)),
)
def train(config: TrainingConfig) -> RunResult:
    """Train a model over the parties' rows, charge what it costs, evaluate it and log it.

    Parameters
    ----------
    config : TrainingConfig

    Returns
    -------
    RunResult
        Also logged to MLflow and appended to the results.

    Raises
    ------
    storage.errors.RefusedError
        If something unproved would read private rows, or a cap would be exceeded; nothing is released then.
    """
    run = _AsTasks()
    with one_run_a_dataset(config.dataset):
        try:
            dataset, plan, result, models = follow(config, run)
        except RefusedError as refusal:
            # Prefect takes a returned state as the run's own, and raises its exception for who called the flow.
            return cast(RunResult, refused(refusal))
        logged = record(config, dataset, plan, result, models)
    run.reached("log")
    show_result(logged)
    return logged
