"""The main flow: ingest, normalise, partition, reduce, train, aggregate, evaluate, log."""

from __future__ import annotations

import time
from typing import Any, cast

from prefect import Task, flow
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from storage.refs import ReleaseRef
from tasks.aggregation import aggregate
from tasks.artifacts import Progress, show_budget, show_result
from tasks.caching import checked, served_from_cache, submit
from tasks.charging import charge
from tasks.config import TrainingConfig
from tasks.door import is_stored
from tasks.evaluation import evaluate
from tasks.ingestion import default_normalisation, find_dataset
from tasks.normalisation import is_stored_whole, normalise
from tasks.partitioning import are_stored_whole, partition
from tasks.planning import plan_run
from tasks.plans import PlannedCombination, PlannedRelease
from tasks.releasing import reduce_dimension, train_model
from tasks.reporting import RunResult, report, summarise
from tasks.resolution import resolve_normalisation

__all__ = ["train"]


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
    started = time.monotonic()
    progress = Progress()
    ingested = find_dataset(config.dataset)
    progress.reached("ingest")
    normalisation = resolve_normalisation(config, default_normalisation(config.dataset))
    dataset = checked(normalise, [ingested, normalisation], is_stored_whole)
    shards = checked(partition, [dataset, config], are_stored_whole)
    progress.reached("partition")
    plan = plan_run(config, shards.training, shards.held_out)
    show_budget(dataset, charge(plan, shards))
    progress.reached("charge")

    futures: dict[str, PrefectFuture[Any]] = {}

    def run(task: Task[..., ReleaseRef], planned: PlannedRelease | PlannedCombination, *arguments: object) -> None:
        futures[planned.key] = submit(task, [planned, *arguments], stored=is_stored(planned.key))

    for release in plan.projections:
        run(reduce_dimension, release, shards.of(release.parties))
    if plan.basis is not None:
        run(aggregate, plan.basis, [futures[key] for key in plan.basis.upstream])
    for release in plan.models:
        run(train_model, release, shards.of(release.parties), *(futures[key] for key in release.upstream))
    if plan.model is not None:
        run(aggregate, plan.model, [futures[key] for key in plan.model.upstream])
    references = {key: future.result() for key, future in futures.items()}
    progress.reached("aggregate")

    models = {name: [references[key] for key in path] for name, path in plan.paths().items()}
    measured = evaluate.submit(plan, models, shards)
    futures["evaluation"] = measured
    result = summarise(plan, dataset, measured.result(), list(references.values())).model_copy(
        update={
            "prefect_flow_run_id": str(flow_run.id),
            "cached": all(served_from_cache(future) for future in futures.values()),
            "seconds": None if dataset.private else round(time.monotonic() - started, 3),
        }
    )
    logged = report(config, dataset, plan, result, models)
    progress.reached("log")
    show_result(logged)
    return logged
