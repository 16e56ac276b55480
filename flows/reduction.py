"""Principal components: release second moments, and counts of scores where asked, and log what they say."""

from typing import Any, cast

from prefect import flow

from flows.federated_training import begin
from storage.errors import RefusedError
from tasks.datasets.registration import ensure_registered
from tasks.planning.graph import materialise
from tasks.planning.reduction import ReductionPlan, ReductionRequest
from tasks.preparation.partitions import shards_of
from tasks.records import record_reduction
from tasks.release.moments import is_paid, plan_reduction
from tasks.releases import charge
from tasks.runtime.ending import announcing_failures, refused
from tasks.runtime.events import dataset_resource
from tasks.runtime.steps import inline, threads
from tasks.tracking.artifacts import showing_progress
from tasks.tracking.reductions import Reduction

STAGES = ("charge", "partition", "record_reduction")
"""Steps of a reduction, as its progress shows them."""


def chain(plan: ReductionPlan, components: int | None) -> Reduction:
    """Charge a plan and make all of it: tasks of the current flow, or plain calls within ``inline()``.

    Raises
    ------
    storage.errors.RefusedError
        If the account's cap would be exceeded; nothing is released then.
    storage.errors.InputError
        If no component is above the noise and no number is given.
    """
    paid = is_paid(plan)
    charge(plan, shards_of(plan.partition))
    before: dict[str, Any] = {plan.dataset.version: plan.dataset}
    made = materialise(plan.nodes, begin, before)
    for one in plan.releases:
        made[one.key].result()
    return record_reduction(plan, components, paid)


def chain_inline(plan: ReductionPlan, components: int | None) -> Reduction:
    """Charge a plan and make all of it in the caller's own thread, without an engine."""
    with inline():
        return chain(plan, components)


@flow(
    name="principal-components",
    flow_run_name="reduce {request.dataset}",
    persist_result=False,
    task_runner=threads(2),
)
def reduce(request: ReductionRequest) -> Reduction:
    """Release principal components of a data set's columns, charged as one plan.

    Parameters
    ----------
    request : ReductionRequest

    Returns
    -------
    Reduction
        Also logged to MLflow.

    Raises
    ------
    storage.errors.RefusedError
        If the account's cap would be exceeded; nothing is released then.
    """
    try:
        with announcing_failures(dataset_resource(request.dataset)), showing_progress(STAGES):
            ensure_registered(request.dataset)
            return chain(plan_reduction(request), request.components)
    except RefusedError as refusal:
        # Prefect takes a returned state as the run's own, and raises its exception for who called the flow.
        return cast(Reduction, refused(refusal))
