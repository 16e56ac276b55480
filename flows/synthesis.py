"""Synthetic rows: count columns and pairs in three stages charged as one, and draw rows from what was released."""

from typing import Any, cast

from prefect import flow

from flows.federated_training import begin
from storage.errors import RefusedError
from storage.refs import ReleaseRef
from tasks.datasets.registration import ensure_registered
from tasks.planning.graph import materialise
from tasks.planning.synthesis import SynthesisPlan, SynthesisRequest
from tasks.preparation.partitions import shards_of
from tasks.records import record_synthesis
from tasks.release.drawn_rows import SyntheticRows, require_output
from tasks.release.synthesis import plan_synthesis, references_before
from tasks.releases import charge, draw_rows
from tasks.runtime.ending import announcing_failures, refused
from tasks.runtime.events import dataset_resource
from tasks.runtime.steps import Done, inline, threads
from tasks.tracking.artifacts import showing_progress

STAGES = ("charge", "partition", "draw_rows", "record_synthesis")
"""Steps of a synthesis, as its progress shows them."""


def rows_of(plan: SynthesisPlan, request: SynthesisRequest) -> SyntheticRows:
    """Charge a plan, make all of it and draw rows: tasks of the current flow, or plain calls within ``inline()``.

    Raises
    ------
    storage.errors.RefusedError
        If the account's cap would be exceeded; nothing is released then.
    """
    require_output(request.output)
    charge(plan, shards_of(plan.partition))
    before: dict[str, Any] = {plan.dataset.version: plan.dataset} | {
        key: Done(reference, known=True, seconds=0.0) for key, reference in references_before(plan).items()
    }
    made = materialise(plan.nodes, begin, before)
    reference = cast(ReleaseRef, made[plan.synthesis.key].result())
    return draw_rows(plan, request, reference)


def chain(plan: SynthesisPlan, request: SynthesisRequest) -> SyntheticRows:
    """Draw rows, and log them to MLflow with the released tables that they are compared with."""
    return record_synthesis(plan, rows_of(plan, request))


def chain_inline(plan: SynthesisPlan, request: SynthesisRequest) -> SyntheticRows:
    """Draw rows and log them in the caller's own thread, without an engine."""
    with inline():
        return chain(plan, request)


def rows_inline(plan: SynthesisPlan, request: SynthesisRequest) -> SyntheticRows:
    """Draw rows in the caller's own thread, without an engine and MLflow."""
    with inline():
        return rows_of(plan, request)


@flow(
    name="synthetic-rows",
    flow_run_name="synthesise {request.dataset}",
    persist_result=False,
    task_runner=threads(2),
)
def synthesise(request: SynthesisRequest) -> SyntheticRows:
    """Release counts of a table's columns and pairs, charged as one plan, and draw rows of them.

    Parameters
    ----------
    request : SynthesisRequest

    Returns
    -------
    SyntheticRows
        Also logged to MLflow.

    Raises
    ------
    storage.errors.RefusedError
        If the account's cap would be exceeded; nothing is released then.
    """
    try:
        with announcing_failures(dataset_resource(request.dataset)), showing_progress(STAGES):
            ensure_registered(request.dataset)
            return chain(plan_synthesis(request), request)
    except RefusedError as refusal:
        # Prefect takes a returned state as the run's own, and raises its exception for who called the flow.
        return cast(SyntheticRows, refused(refusal))
