"""The main flow: ingest, normalise, partition, plan, charge, reduce, aggregate, train, aggregate, evaluate, record."""

from __future__ import annotations

import time
from typing import Any, cast

from prefect import flow
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.nightly import chain_nights
from flows.releasing import Chained, submit, timed
from storage.errors import RefusedError
from storage.refs import ReleaseRef
from tasks.accounts.budget import relation_of
from tasks.aggregation import aggregate
from tasks.charging import charge
from tasks.datasets.description import default_normalisation
from tasks.evaluation import evaluate
from tasks.features import extract_features
from tasks.ingestion import ingest
from tasks.normalisation import normalise
from tasks.partitioning import partition
from tasks.planning.configuration import TrainingConfig
from tasks.planning.planner import plan_run
from tasks.planning.resolution import resolve_normalisation
from tasks.preparation.features import plan_features
from tasks.recording import record
from tasks.reduction import reduce_dimension
from tasks.runtime.concurrency import one_run_a_dataset
from tasks.runtime.end_states import announcing_failures, refused
from tasks.runtime.events import dataset_resource
from tasks.runtime.progress import say
from tasks.runtime.steps import Future, inline
from tasks.tracking.announcements import announce_trained
from tasks.tracking.artifacts import show_result, showing_progress
from tasks.tracking.results import Evaluation, RunResult, summarise
from tasks.training import train_model

__all__ = ["Chained", "chain", "chain_inline", "train"]


def chain(config: TrainingConfig) -> Chained:
    """Run the steps from ingestion to evaluation: tasks of the current flow, or plain calls within ``inline()``.

    Raises
    ------
    storage.errors.RefusedError
        If something unproved would read private rows, or a cap would be exceeded; nothing is released then.
    """
    if config.horizon is not None:
        return chain_nights(config)
    started = time.monotonic()
    ingested = ingest(config.dataset)
    dataset = normalise(ingested, resolve_normalisation(config, default_normalisation(config.dataset)))
    features = plan_features(dataset, config)
    if features:
        dataset = extract_features(dataset, features)
    shards = partition(dataset, config)
    relation = relation_of(config.dataset)
    plan = plan_run(config, shards.training, shards.held_out, relation=relation, features=features)
    charge(plan, shards)
    made: dict[str, Future[ReleaseRef]] = {}
    for release in plan.projections:
        made[release.key] = submit(reduce_dimension, release, shards.of(release.parties))
    if plan.basis is not None:
        made[plan.basis.key] = aggregate.submit(plan.basis, [made[key] for key in plan.basis.upstream])
    for release in plan.models:
        upstream = [made[key] for key in release.upstream]
        made[release.key] = submit(train_model, release, shards.of(release.parties), upstream)
    if plan.model is not None:
        made[plan.model.key] = aggregate.submit(plan.model, [made[key] for key in plan.model.upstream])
    # In order, so that what failed says so itself; the steps after it only say that they never began.
    references = {}
    for key, future in made.items():
        references[key] = future.result()
        say("releases", f"{len(references)} of {len(made)}", len(references) / len(made))
    models = {name: [references[key] for key in path] for name, path in plan.paths().items()}
    measured = evaluate(plan, models, shards) if config.evaluation else Evaluation()
    result = summarise(plan, dataset, measured, list(references.values()))
    return Chained(dataset, plan, timed(result, dataset, started, list(made.values())), models)


def chain_inline(config: TrainingConfig) -> Chained:
    """Run the chain in the caller's own thread, without an engine: a point of a sweep."""
    with inline():
        return chain(config)


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
    try:
        with (
            announcing_failures(dataset_resource(config.dataset)),
            one_run_a_dataset(config.dataset),
            showing_progress(),
        ):
            dataset, plan, result, models = chain(config)
            recorded = record(config, dataset, plan, result, models)
    except RefusedError as refusal:
        # Prefect takes a returned state as the run's own, and raises its exception for who called the flow.
        return cast(RunResult, refused(refusal))
    show_result(recorded)
    announce_trained(recorded)
    return recorded
