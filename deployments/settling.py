"""Runs whose process has died without being able to say so: marked crashed while the runner goes on.

A run's process that ends tells the server through the runner. Where the server or its database was down at that
moment, nobody is told: the run would be shown as running until the next start of the runner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.runner import Runner
from prefect.states import Crashed

_SECONDS = 30.0
_UNFINISHED = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


async def settle(
    client: PrefectClient, deployments: Collection[UUID], alive: Collection[UUID], suspects: Collection[UUID]
) -> set[UUID]:
    """Mark runs as crashed that were suspected before and still have no process; return those suspected now.

    Parameters
    ----------
    client : PrefectClient
    deployments : collection of UUID
        Those that this runner alone serves.
    alive : collection of UUID
        Runs whose process this runner has.
    suspects : collection of UUID
        What the last call returned: a run that is just beginning, or just ending, has no process for a moment.
    """
    unfinished = FlowRunFilterState(type=FlowRunFilterStateType(any_=_UNFINISHED))
    ours = FlowRunFilterDeploymentId(any_=list(deployments))
    found = await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=unfinished, deployment_id=ours))
    dead = {run.id for run in found} - set(alive)
    for run in dead & set(suspects):
        message = "The process of this run has ended without saying how."
        await client.set_flow_run_state(run, Crashed(message=message), force=True)
    return dead - set(suspects)


async def keep_settled(runner: Runner, deployments: Collection[UUID]) -> None:
    """Look again and again, until cancelled; a server that does not answer is asked again."""
    suspects: set[UUID] = set()
    async with get_client() as client:
        while True:
            await asyncio.sleep(_SECONDS)
            try:
                alive = runner._process_manager.flow_run_ids()
                suspects = await settle(client, deployments, alive, suspects)
            except Exception as error:
                suspects = set()
                logging.getLogger(__name__).warning("runs are not looked after: %s", type(error).__name__)
