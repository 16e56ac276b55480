"""How requests reach parties of their own and answers come back: flow runs of a Prefect server, and their artifacts.

Each party serves its own flow from memory (:func:`serve_party`). Of a flow run it takes the parameters alone, which
its own model validates; pull steps, entry points, job variables and work pools are for workers, and there is none.
"""

from __future__ import annotations

import asyncio
import copyreg
import json
import os
import time
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow
from prefect.runner import Runner

from deployments.runner import READY, by_name
from flows.party import ANSWER, DATASET_VARIABLE, ROSTER_VARIABLE, answer_request, read_roster
from storage.errors import StorageError
from tasks.federation.coordinator import Post
from tasks.federation.messages import Answer, Request
from tasks.federation.party import Party

__all__ = ["posting", "serve_party"]

_TAG = "unitball-party"
_POLL_SECONDS = 1.0


def serve_party(dataset: str, roster: Path) -> None:
    """Serve a party's flow at the Prefect server that ``PREFECT_API_URL`` names, one request at a time; until SIGTERM.

    Raises
    ------
    InputError
        If the data set or the roster is not this party's.
    """
    name = Party(dataset, read_roster(roster)).name
    os.environ |= {DATASET_VARIABLE: dataset, ROSTER_VARIABLE: str(roster.absolute())}
    copyreg.pickle(Flow, by_name)
    runner = Runner(name=f"party {name}", limit=1, query_seconds=_POLL_SECONDS, pause_on_shutdown=False)
    runner.add_flow(answer_request, name=name, tags=[_TAG], description=f"Asked by a coordinator: party {name}.")
    print(READY, name, flush=True)
    asyncio.run(runner.start())


def posting(seconds: float) -> Post:
    """Return what brings requests to parties as flow runs of their deployments.

    Parameters
    ----------
    seconds : float
        How long a party has to answer. A request that was not begun by then is taken back.
    """

    def post(party: str, request: Request) -> Answer | None:
        with get_client(sync_client=True) as client:
            return _asked(client, party, request, time.monotonic() + seconds)

    return post


def _asked(client: SyncPrefectClient, party: str, request: Request, deadline: float) -> Answer | None:
    try:
        deployment = client.read_deployment_by_name(f"{answer_request.name}/{party}")
    except ObjectNotFound:
        return None
    parameters = {"request": request.model_dump(mode="json")}
    run = client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    while time.monotonic() < deadline:
        state = client.read_flow_run(run.id).state
        if state is not None and state.is_final():
            return _answer(client, run.id, party) if state.is_completed() else None
        time.sleep(_POLL_SECONDS)
    # Begun it may end later, which is harmless: what a party has answered it answers again.
    client.delete_flow_run(run.id)
    return None


def _answer(client: SyncPrefectClient, run: object, party: str) -> Answer:
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    found = [one for one in client.read_artifacts(artifact_filter=wanted) if one.type == ANSWER]
    if len(found) != 1:
        raise StorageError(f"party {party} has left {len(found)} answers to one request; ask again")
    answer = Answer.model_validate(json.loads(str(found[0].data)))
    if answer.party != party:
        raise StorageError(f"party {party} has answered as {answer.party!r}")
    return answer
