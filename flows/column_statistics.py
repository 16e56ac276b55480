"""Column statistics (descriptions, components, synthetic rows): plan, charge, make the releases, record them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from prefect import flow

from flows.federated_training import begin
from storage.errors import RefusedError
from tasks.datasets.registration import ensure_registered
from tasks.planning.column_statistics import (
    DescriptionPlan,
    DescriptionRequest,
    ReductionPlan,
    ReductionRequest,
    StatisticsPlan,
    StatisticsRequest,
    SynthesisPlan,
    SynthesisRequest,
)
from tasks.planning.graph import materialise
from tasks.planning.rows import Partition
from tasks.preparation.partitions import shards_of
from tasks.records import record_counts, record_reduction, record_synthesis
from tasks.release.descriptions import Description
from tasks.release.drawn_rows import SyntheticRows
from tasks.release.moments import plan_reduction
from tasks.release.pair_descriptions import PairsDescription, plan_description
from tasks.release.single import is_paid
from tasks.release.storing import stored_release
from tasks.release.synthesis import plan_synthesis
from tasks.releases import charge, draw_rows
from tasks.runtime.ending import announcing_failures, refused
from tasks.runtime.events import dataset_resource
from tasks.runtime.steps import Done, inline, threads
from tasks.tracking.artifacts import showing_progress
from tasks.tracking.reductions import Reduction

Request = TypeVar("Request", bound=StatisticsRequest)
Plan = TypeVar("Plan", bound=StatisticsPlan)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Statistics(Generic[Request, Plan, Found]):
    """One kind of column statistics: how it is planned, and how its releases are recorded.

    Parameters
    ----------
    plan : callable
        From a request to its plan; no row is read and nothing is charged.
    found : callable
        From a plan whose releases are stored, its request, and whether all was charged before, to what they say.
    stages : tuple of str
        Steps, as the progress shows them.
    """

    plan: Callable[[Request], Plan]
    found: Callable[[Plan, Request, bool], Found]
    stages: tuple[str, ...]

    def chain(self, plan: Plan, request: Request) -> Found:
        """Charge a plan, make all of it and record it: tasks of the current flow, or plain calls within ``inline()``.

        Raises
        ------
        storage.errors.RefusedError
            If the account's cap would be exceeded; nothing is released then.
        """
        paid = is_paid(plan)
        charge(plan, shards_of(plan.partition))
        before: dict[str, Any] = {plan.dataset.version: plan.dataset} | {
            one.key: Done(stored_release(one), known=True, seconds=0.0) for one in plan.earlier
        }
        made = materialise(plan.nodes, begin, before)
        for node in plan.nodes.values():
            if not isinstance(node, Partition):
                # In order, so that what failed says so itself.
                made[node.key].result()
        return self.found(plan, request, paid)

    def chain_inline(self, plan: Plan, request: Request) -> Found:
        """Carry a plan out in the caller's own thread, without an engine."""
        with inline():
            return self.chain(plan, request)

    def run(self, request: Request) -> Found:
        """Plan and carry out what is asked for, as the body of a flow."""
        try:
            with announcing_failures(dataset_resource(request.dataset)), showing_progress(self.stages):
                ensure_registered(request.dataset)
                return self.chain(self.plan(request), request)
        except RefusedError as refusal:
            # Prefect takes a returned state as the run's own, and raises its exception for who called the flow.
            return cast(Found, refused(refusal))


DESCRIPTION = Statistics[DescriptionRequest, DescriptionPlan, Description | PairsDescription](
    plan=plan_description,
    found=lambda plan, request, paid: record_counts(request, paid),
    stages=("charge", "partition", "record_counts"),
)
"""The command `unitball describe` makes the same release without an engine, which would take longer than describing."""
REDUCTION = Statistics[ReductionRequest, ReductionPlan, Reduction](
    plan=plan_reduction,
    found=lambda plan, request, paid: record_reduction(plan, request.components, paid),
    stages=("charge", "partition", "record_reduction"),
)
DRAWING = Statistics[SynthesisRequest, SynthesisPlan, SyntheticRows](
    plan=plan_synthesis,
    found=lambda plan, request, paid: draw_rows(plan, request),
    stages=("charge", "partition", "draw_rows"),
)
"""A synthesis that MLflow does not log."""
SYNTHESIS = Statistics[SynthesisRequest, SynthesisPlan, SyntheticRows](
    plan=plan_synthesis,
    found=lambda plan, request, paid: record_synthesis(plan, draw_rows(plan, request)),
    stages=(*DRAWING.stages, "record_synthesis"),
)


@flow(
    name="column-descriptions",
    flow_run_name="describe {request.dataset}",
    persist_result=False,
    task_runner=threads(2),
)
def describe(request: DescriptionRequest) -> Description | PairsDescription:
    """Release counts of a table's columns, or of pairs of columns, and log what they say to MLflow.

    Raises
    ------
    storage.errors.RefusedError
        If the account's cap would be exceeded; nothing is released then.
    """
    return DESCRIPTION.run(request)


@flow(
    name="principal-components",
    flow_run_name="reduce {request.dataset}",
    persist_result=False,
    task_runner=threads(2),
)
def reduce(request: ReductionRequest) -> Reduction:
    """Release principal components of a data set's columns, charged as one plan, and log them to MLflow.

    Raises
    ------
    storage.errors.RefusedError
        If the account's cap would be exceeded; nothing is released then.
    storage.errors.InputError
        If no component is above the noise and no number is given.
    """
    return REDUCTION.run(request)


@flow(
    name="synthetic-rows",
    flow_run_name="synthesise {request.dataset}",
    persist_result=False,
    task_runner=threads(2),
)
def synthesise(request: SynthesisRequest) -> SyntheticRows:
    """Release counts of a table's columns and pairs, charged as one plan, draw rows of them, and log both to MLflow.

    Raises
    ------
    storage.errors.RefusedError
        If the account's cap would be exceeded; nothing is released then.
    """
    return SYNTHESIS.run(request)
