"""Transport between a coordinator and parties: flow runs of a Prefect server, and their artifacts.

Each party runs its own flow in its own process (:func:`serve_party`). Of a flow run it takes the parameters alone,
which its own model validates; pull steps, entry points, job variables and work pools are for workers; there is none.
"""

import logging
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import cast
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import (
    Abort,
    ObjectNotFound,
    ParameterBindError,
    ParameterTypeError,
    PrefectException,
    SignatureMismatchError,
)
from prefect.flow_engine import run_flow
from prefect.states import Failed, Pending
from prefect.utilities.engine import propose_state_sync
from pydantic import ValidationError

from deployments.runner import READY
from flows.party import ANSWER, DATASET_VARIABLE, ROSTER_VARIABLE, answer_request, read_roster
from storage.documents import parse_json
from storage.errors import StorageError
from tasks.federation.coordinator import Transport
from tasks.federation.messages import Answer, Request
from tasks.federation.party import Party

_TAG = "unitball-party"
_POLL_SECONDS = 0.3
_LOG = logging.getLogger(__name__)


def serve_party(dataset: str, roster: Path) -> None:
    """Answer the runs of a party's flow at the Prefect server of ``PREFECT_API_URL``, one by one, until SIGTERM.

    In this process: a run decides nothing but the request, and no process has to be started for each of the many
    requests of a run.

    Raises
    ------
    InputError
        If the data set or the roster is not this party's.
    """
    name = Party(dataset, read_roster(roster)).name
    os.environ |= {DATASET_VARIABLE: dataset, ROSTER_VARIABLE: str(roster.absolute())}
    # The engine says of a run that is under way that it has crashed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    deployment = registered(name)
    print(READY, name, flush=True)
    gone = False
    with get_client(sync_client=True) as client:
        while True:
            try:
                busy = answered(client, deployment)
            except HTTPError as error:
                if not gone:
                    _LOG.warning(
                        "the coordinator's server at %s does not answer (%s); retrying until it answers or Ctrl-C",
                        os.environ.get("PREFECT_API_URL"),
                        type(error).__name__,
                    )
                busy, gone = False, True
            else:
                if gone:
                    _LOG.warning("the coordinator's server answers again")
                gone = False
            if not busy:
                time.sleep(_POLL_SECONDS)


def registered(party: str) -> UUID:
    """Register a party's flow with the server, under its name, and return the deployment's identifier."""
    described = f"Asked by a coordinator: party {party}."
    deployment = cast(RunnerDeployment, answer_request.to_deployment(party, tags=[_TAG], description=described))
    return cast(UUID, deployment.apply())


def answered(client: SyncPrefectClient, deployment: UUID) -> bool:
    """Answer the oldest request that waits, if there is one; what goes wrong is logged, and the next one comes.

    Raises
    ------
    httpx.HTTPError
        If the server does not answer.
    """
    try:
        waiting = client.get_scheduled_flow_runs_for_deployments([deployment], datetime.now(UTC), limit=1)
        for run in waiting:
            if propose_state_sync(client, Pending(), run.id).is_pending():
                _run(client, run.id)
    except (Abort, PrefectException, ValidationError) as error:
        # In a line: this is the coordinator's doing, and nobody here can mend it.
        _LOG.warning(
            "this party could not answer a request: %s: %s", type(error).__name__, " ".join(str(error).split())[:500]
        )
        time.sleep(_POLL_SECONDS)
        return False
    return bool(waiting)


def _run(client: SyncPrefectClient, run: UUID) -> None:
    # No code that the server names: this process's own flow, which validates the run's parameters.
    try:
        run_flow(answer_request, client.read_flow_run(run), return_type="state")
    except (ParameterBindError, ParameterTypeError, SignatureMismatchError) as error:
        _LOG.warning("the parameters of a run are not a request: %s", error)
        propose_state_sync(client, Failed(message="its parameters are not a request"), run)


def posting(seconds: float) -> Transport:
    """Return what brings requests to parties as flow runs of their deployments.

    Parameters
    ----------
    seconds : float
        How long a party has to answer. A request that was not begun by then is withdrawn.
    """

    def transport(party: str, request: Request) -> Answer | None:
        deadline = time.monotonic() + seconds
        with get_client(sync_client=True) as client:
            try:
                deployment = client.read_deployment_by_name(f"{answer_request.name}/{party}")
            except ObjectNotFound:
                return None
            # By the names of fields that parties of all versions know.
            run = client.create_flow_run_from_deployment(
                deployment.id, parameters={"request": request.model_dump(mode="json")}
            )
            while time.monotonic() < deadline:
                state = client.read_flow_run(run.id).state
                if state is not None and state.is_final():
                    return _answer(client, run.id, party) if state.is_completed() else None
                time.sleep(_POLL_SECONDS)
            # Begun it may end later, which is harmless: what a party has answered it answers again.
            client.delete_flow_run(run.id)
        return None

    return transport


def _answer(client: SyncPrefectClient, run: object, party: str) -> Answer:
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    answers = [one for one in client.read_artifacts(artifact_filter=wanted) if one.type == ANSWER]
    if len(answers) != 1:
        raise StorageError(f"party {party} gave {len(answers)} answers to one request; repeat the command")
    answer = Answer.model_validate(parse_json(str(answers[0].data), f"the answer of party {party}"))
    if answer.party != party:
        raise StorageError(f"party {party} answered under the name {answer.party!r}; check the roster")
    return answer
