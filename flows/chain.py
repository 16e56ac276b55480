"""The chain of a training run, described once: which steps there are and what each is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from prefect import Task

from storage.refs import DatasetRef, ReleaseRef
from tasks.aggregation import aggregate
from tasks.charging import charge
from tasks.evaluation import evaluate
from tasks.ingestion import default_normalisation, find_dataset
from tasks.normalisation import is_stored_whole, normalise
from tasks.partitioning import are_stored_whole, partition
from tasks.planning.configuration import TrainingConfig
from tasks.planning.planner import plan_run
from tasks.planning.plans import PlannedCombination, PlannedRelease, RunPlan
from tasks.planning.resolution import resolve_normalisation
from tasks.releasing import reduce_dimension, train_model
from tasks.tracking.results import Evaluation, RunResult, summarise

__all__ = ["Execution", "follow"]

_R = TypeVar("_R")


class Execution(Protocol):
    """Who runs the steps: Prefect, a task each, or the caller itself, one after another."""

    def reached(self, stage: str) -> None:
        """Say that a stage is done."""

    def prepare(self, task: Task[..., _R], arguments: Sequence[Any], is_whole: Callable[[_R], bool]) -> _R:
        """Run a step whose result refers to stored rows; again where those are gone."""

    def pay(self, dataset: DatasetRef, charge: Task[..., dict[str, Any]], *arguments: Any) -> None:
        """Run the step that charges."""

    def make(self, task: Task[..., ReleaseRef], planned: PlannedRelease | PlannedCombination, *arguments: Any) -> None:
        """Begin a step that makes a planned release, its upstream given as :meth:`made` returned it."""

    def made(self, keys: Sequence[str]) -> list[Any]:
        """Return what stands for releases that were begun."""

    def references(self) -> dict[str, ReleaseRef]:
        """Wait for all releases that were begun."""

    def measure(self, task: Task[..., Evaluation], *arguments: Any) -> Evaluation:
        """Run the step that evaluates."""

    def notes(self) -> dict[str, Any]:
        """Return what the execution itself has to say in the result: where it ran, whether it was cached."""


def follow(
    config: TrainingConfig, run: Execution
) -> tuple[DatasetRef, RunPlan, RunResult, dict[str, list[ReleaseRef]]]:
    """Ingest, normalise, partition, plan, charge, reduce, train, aggregate, evaluate, summarise.

    Returns
    -------
    DatasetRef
    RunPlan
    RunResult
    dict
        For each released model what rows pass through, the model last.

    Raises
    ------
    storage.errors.RefusedError
        If something unproved would read private rows, or a cap would be exceeded; nothing is released then.
    """
    started = time.monotonic()
    ingested = find_dataset(config.dataset)
    run.reached("ingest")
    normalisation = resolve_normalisation(config, default_normalisation(config.dataset))
    dataset = run.prepare(normalise, [ingested, normalisation], is_stored_whole)
    shards = run.prepare(partition, [dataset, config], are_stored_whole)
    run.reached("partition")
    plan = plan_run(config, shards.training, shards.held_out)
    run.pay(dataset, charge, plan, shards)
    run.reached("charge")
    for release in plan.projections:
        run.make(reduce_dimension, release, shards.of(release.parties))
    if plan.basis is not None:
        run.make(aggregate, plan.basis, run.made(plan.basis.upstream))
    for release in plan.models:
        run.make(train_model, release, shards.of(release.parties), *run.made(release.upstream))
    if plan.model is not None:
        run.make(aggregate, plan.model, run.made(plan.model.upstream))
    references = run.references()
    run.reached("aggregate")
    models = {name: [references[key] for key in path] for name, path in plan.paths().items()}
    evaluation = run.measure(evaluate, plan, models, shards)
    result = summarise(plan, dataset, evaluation, list(references.values()))
    # Time is a side channel of private rows.
    seconds = None if dataset.private else round(time.monotonic() - started, 3)
    return dataset, plan, result.model_copy(update={"seconds": seconds, **run.notes()}), models
