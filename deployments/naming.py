"""Names of runs before they start: what a run will do, instead of two words at random until its first step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.flows import Flow

_SECONDS = 20.0
_PAGE = 200


def run_name(flow: Flow[Any, Any], parameters: Mapping[str, Any]) -> str | None:
    """Return the name that a flow gives a run with these parameters; None where it gives none, or refuses them."""
    if not isinstance(flow.flow_run_name, str):
        return None
    try:
        return flow.flow_run_name.format(**flow.validate_parameters(dict(parameters)))
    except Exception:
        # The run itself says what is wrong with its parameters.
        return None


async def name_waiting_runs(client: PrefectClient, served: Mapping[UUID, Flow[Any, Any]], known: set[UUID]) -> None:
    """Rename the scheduled runs of our deployments that were not looked at before.

    Parameters
    ----------
    client : PrefectClient
    served : mapping of deployment to flow
    known : set of UUID
        Runs that were looked at; those found now are added.
    """
    waiting = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
    ours = DeploymentFilter(id=DeploymentFilterId(any_=list(served)))
    found: list[FlowRun] = []
    while page := await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=waiting), deployment_filter=ours, limit=_PAGE, offset=len(found)
    ):
        found += page
    for run in found:
        if run.id in known or run.deployment_id is None:
            continue
        known.add(run.id)
        name = run_name(served[run.deployment_id], run.parameters)
        if name is not None and name != run.name:
            await client.update_flow_run(run.id, name=name)


async def keep_named(served: Mapping[UUID, Flow[Any, Any]]) -> None:
    """Name runs as they are scheduled, until cancelled; a server that does not answer is asked again."""
    known: set[UUID] = set()
    async with get_client() as client:
        while True:
            try:
                await name_waiting_runs(client, served, known)
            except Exception as error:
                logging.getLogger(__name__).warning("runs are not named: %s", type(error).__name__)
            await asyncio.sleep(_SECONDS)
