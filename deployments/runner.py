"""The runner: the process that serves the flows, names their runs, and marks runs whose process has died."""

import argparse
import asyncio
import copyreg
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    DeploymentFilterTags,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import PrefectHTTPStatusError
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.runner import Runner
from prefect.states import Crashed

from deployments.alerts import send_alerts
from deployments.serving import SKIPPED
from deployments.specifications import TAG, read_deployments, scheduled_deployments
from storage.errors import InputError, first_line
from storage.layout import Layout
from storage.readers.by_name import BUNDLED
from storage.secrets import root_name
from tasks.accounts.ledger import open_ledger
from tasks.datasets.schedules import BrokenSchedule, sound_schedules
from tasks.runtime.ending import AT_WORK
from tasks.runtime.events import Event, log_event
from tasks.runtime.interrupted import UNFINISHED, crash_interrupted_runs
from tasks.runtime.settings import current_root, keep_private, use_own_temporary_folder
from tasks.runtime.stores import open_catalog

_SECONDS = 30.0
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


async def reap_orphaned_runs(
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
    ours = FlowRunFilterDeploymentId(any_=list(deployments))
    found = await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=UNFINISHED, deployment_id=ours))
    dead = {run.id for run in found} - set(alive)
    for run in dead & set(suspects):
        await client.set_flow_run_state(
            run, Crashed(message="The process of this run has ended without saying how."), force=True
        )
    return dead - set(suspects)


async def offer(
    client: PrefectClient, deployments: Collection[UUID], datasets: Sequence[str], descriptions: Sequence[str]
) -> None:
    """Name the data sets that there are where a deployment's form asks for one, and say what now fits for schedules.

    In its description: a list to choose from would refuse a set that was registered a moment ago.

    Parameters
    ----------
    descriptions : sequence of str
        Of deployments of schedules, as they are now; each replaces the one that is the same up to its colon.
    """
    described = {one.partition(":")[0]: one for one in descriptions}
    for deployment in deployments:
        found = await client.read_deployment(deployment)
        schema, told = found.parameter_openapi_schema or {}, found.description or ""
        told = described.get(told.partition(":")[0], told)
        for definition in schema.get("definitions", {}).values():
            if "dataset" in definition.get("properties", {}):
                definition["properties"]["dataset"]["description"] = f"A registered data set: {', '.join(datasets)}."
        await client.update_deployment(deployment, DeploymentUpdate(parameter_openapi_schema=schema, description=told))


def _known() -> tuple[list[str], int]:
    """Return the data sets that there are, and how many releases their accounts were charged."""
    ledger = open_ledger()
    charged = sum(len(ledger.charges(account.name)) for account in ledger.accounts())
    return sorted({*BUNDLED, *(one.name for one in open_catalog().datasets())}), charged


READY = "serving"
# Processes for runs that wait for another one of their data set, beside those that work.
_WAITING = 4


def root_tag(root: Path) -> str:
    """Return the tag of a root's deployments, wherever it lies: a server may know those of several roots."""
    return f"{TAG}.root.{root_name(Layout(root))}"


def by_name(flow: Flow[Any, Any]) -> tuple[Any, ...]:
    """Pickle a flow by its place in a module: a process that unpickles it imports what is installed there."""
    return load_flow_from_entrypoint, (f"{flow.fn.__module__}.{flow.fn.__name__}", False)


def skip(broken: BrokenSchedule) -> None:
    """Say that a data set's schedule is not served: here, in the log of events, and so to the webhook."""
    print(f"{SKIPPED} the schedule of {broken.dataset}: {' '.join(broken.problem.split())}", flush=True)
    log_event(str(Event.UNWELL), dataset=broken.dataset, details={"checks": "schedules", "problem": broken.problem})


def _serve(
    deployments: Sequence[dict[str, Any]], scheduled: Sequence[dict[str, Any]], runs: int, *, shared: bool
) -> None:
    root = current_root()
    use_own_temporary_folder(Layout(root))
    # Of this root, and of other roots.
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    with get_client(sync_client=True) as client:
        found = client.read_deployments(deployment_filter=tagged)
    known, others = ([one for one in found if (root_tag(root) in one.tags) is ours] for ours in (True, False))
    if not shared:
        # The server is the root's own.
        known += others
    elif taken := sorted({one.name for one in others} & {spec["name"] for spec in (*deployments, *scheduled)}):
        # Runs meant for another root's rows would run on these.
        raise InputError(
            f"the Prefect server has deployments of another root named {', '.join(taken)}: give these other names in a "
            "file of your own (--prefect-file)"
        )
    # A run's process imports the flow, as this one did. By value, which is how functions under a decorator are pickled,
    # it would lose the types that its annotations name.
    copyreg.pickle(Flow, by_name)
    runner = _Runner(name="unitball", limit=runs if shared else runs + _WAITING, pause_on_shutdown=False)
    served: dict[UUID, Flow[Any, Any]] = {}
    for spec in (*deployments, *scheduled):
        options = {name: value for name, value in spec.items() if name != "entrypoint"}
        options["tags"] = [*spec["tags"], root_tag(root)]
        # Not a deployment object: a runner loads the flow of such a one from what the server says.
        flow: Flow[Any, Any] = load_flow_from_entrypoint(spec["entrypoint"], use_placeholder_flow=False)
        try:
            served[cast(UUID, runner.add_flow(flow, **options))] = flow
        except PrefectHTTPStatusError as error:
            # The server that takes no other deployment either is another fault than this one's.
            if error.response.status_code < 500 and spec not in scheduled:
                raise InputError(
                    f"the Prefect server refuses deployment {spec['name']!r}: {first_line(error)}"
                ) from error
            if spec not in scheduled:
                raise
            skip(BrokenSchedule(spec["name"], f"the Prefect server refuses it: {first_line(error)}"))
    with get_client(sync_client=True) as client:
        # Before any is deleted, since its runs would no longer say whose they were.
        crash_interrupted_runs(client, root, {*served, *(one.id for one in known)})
        for deployment in known:
            if deployment.id not in served:
                client.delete_deployment(deployment.id)
        if not shared:
            client.upsert_global_concurrency_limit_by_name(AT_WORK, runs)
    print(READY, flush=True)
    asyncio.run(_run(runner, served))


class _Runner(Runner):
    """A runner that ends at once on SIGTERM, its runs with it; who ended it, or starts it again, marks them."""

    # Prefect's own handler makes a coroutine that would cancel the runs, and exits before anything awaits it. Unwinding
    # instead takes seconds, in which nothing is done that the next start does not do.
    def handle_sigterm(self, *_: object, **__: object) -> None:
        os._exit(0)


async def _look_after(runner: Runner, served: Mapping[UUID, Flow[Any, Any]]) -> None:
    """Reap orphaned runs, name those that wait and offer data sets, again and again, until cancelled.

    A server that does not answer is asked again.
    """
    named, suspects, offered = set[UUID](), set[UUID](), None
    async with get_client() as client:
        while True:
            try:
                # Where this fails nobody is suspected.
                before, suspects = suspects, set[UUID]()
                suspects = await reap_orphaned_runs(client, served, runner._process_manager.flow_run_ids(), before)
                await name_waiting_runs(client, served, named)
                if (known := await asyncio.to_thread(_known)) != offered:
                    current = await asyncio.to_thread(scheduled_deployments)
                    await offer(client, served, known[0], [one["description"] for one in current])
                    offered = known
            except Exception as error:
                logging.getLogger(__name__).warning("runs are not looked after: %s", type(error).__name__)
            await asyncio.sleep(_SECONDS)


async def _run(runner: Runner, served: Mapping[UUID, Flow[Any, Any]]) -> None:
    beside = [asyncio.create_task(one) for one in (_look_after(runner, served), send_alerts(current_root()))]
    try:
        await runner.start()
    finally:
        for task in beside:
            task.cancel()


def main() -> None:
    """Serve until SIGTERM."""
    keep_private()
    parser = argparse.ArgumentParser(prog="python -m deployments.runner", description=__doc__)
    parser.add_argument("--prefect-file", type=Path, required=True, help="deployments to serve")
    parser.add_argument("--runs", type=int, required=True, help="flow runs at once")
    parser.add_argument("--shared", action="store_true", help="the server is not the root's own")
    arguments = parser.parse_args()
    deployments, kept = read_deployments(arguments.prefect_file), sound_schedules()
    for broken in kept.broken:
        skip(broken)
    _serve(deployments, scheduled_deployments(kept.sound), arguments.runs, shared=arguments.shared)


if __name__ == "__main__":
    main()
