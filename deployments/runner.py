"""The runner: the process that serves the flows, names their runs, and marks runs whose process has died."""

import argparse
import asyncio
import copyreg
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect.client.orchestration import PrefectClient, SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    DeploymentFilterName,
    DeploymentFilterTags,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.runner import Runner
from prefect.states import Crashed

from deployments.alerts import send_alerts
from deployments.serving import SKIPPED
from deployments.specifications import TAG, read_deployments, scheduled_deployments
from flows.asked import Called
from storage.errors import InputError, first_line
from storage.layout import Layout
from storage.ledger.entries import reading
from storage.readers.by_name import BUNDLED
from storage.secrets import root_name
from tasks.datasets.schedules import BrokenSchedule, full_name, sound_schedules
from tasks.host.engine import import_flow, lying_there
from tasks.host.interrupted import UNFINISHED, crash_interrupted_runs
from tasks.runtime.ending import AT_WORK
from tasks.runtime.events import Event, log_event
from tasks.runtime.settings import current_root, keep_private, use_own_temporary_folder
from tasks.runtime.stores import open_catalog, open_ledger_database

_SECONDS = 30.0
# Between two looks at whether the ledger has grown: schedules, data sets and charges are entries of it.
_SECONDS_OF_A_LOOK = 3.0
# A server plans the runs of a deployment that was changed anew within seconds.
_NEAR = timedelta(seconds=20)
_PAGE = 200


def run_name(flow: Flow[Any, Any], parameters: Mapping[str, Any]) -> str | None:
    """Return the name that a flow gives a run with these parameters; None where it gives none, or refuses them."""
    named = flow.flow_run_name
    try:
        given = flow.validate_parameters(dict(parameters))
        if isinstance(named, Called):
            return named.of(given)
        return named.format(**given) if isinstance(named, str) else None
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
    ours = DeploymentFilter(id=DeploymentFilterId(any_=list(served)))
    found: list[FlowRun] = []
    while page := await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=_WAITING_STATE), deployment_filter=ours, limit=_PAGE, offset=len(found)
    ):
        found += page
    for run in found:
        if run.id in known or run.deployment_id is None:
            continue
        known.add(run.id)
        name = run_name(served[run.deployment_id], run.parameters)
        if name is not None and name != run.name:
            try:
                await client.update_flow_run(run.id, name=name)
            except PrefectHTTPStatusError as error:
                # A run that waits goes with its deployment's schedule.
                if error.response.status_code != _GONE:
                    raise


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
            run, Crashed(message="The process of this run ended without a final state."), force=True
        )
    return dead - set(suspects)


def form_shown(schema: Mapping[str, Any], datasets: Sequence[str]) -> dict[str, Any]:
    """Return the form of a deployment as it is shown, from what Prefect makes of the flow's parameters.

    It takes the names that it shows and no other: with another one, a run would be made that fails. Empty fields are
    left out: Prefect's pages send an empty default, which has the wrong type for the field.
    """
    form = deepcopy(dict(schema))
    form["additionalProperties"] = False
    for field in form.get("properties", {}).values():
        if field.get("default", field) is None and {"type": "null"} not in field.get("anyOf", []):
            del field["default"]
    if "dataset" in form.get("required", []):
        form["properties"]["dataset"]["enum"] = list(datasets)
    return form


async def offer(
    client: PrefectClient, deployments: Collection[UUID], datasets: Sequence[str], descriptions: Sequence[str]
) -> bool:
    """List the data sets that there are where a form must be told one; say what now fits for schedules.

    A server that changes a deployment deletes its runs that wait, and
    a moment that has passed is not made anew. So one whose run is due, or late, is left for the next call.

    Parameters
    ----------
    datasets : sequence of str
    descriptions : sequence of str
        Of deployments of schedules, as they are now; each replaces the one that is the same up to its colon.

    Returns
    -------
    bool
        Whether all was said.
    """
    described, whole = {one.partition(":")[0]: one for one in descriptions}, True
    for deployment in deployments:
        found = await client.read_deployment(deployment)
        schema, told = form_shown(found.parameter_openapi_schema or {}, datasets), found.description or ""
        told = described.get(told.partition(":")[0], told)
        if (schema, told) == (found.parameter_openapi_schema, found.description):
            continue
        if await _due(client, deployment):
            whole = False
            continue
        await client.update_deployment(deployment, DeploymentUpdate(parameter_openapi_schema=schema, description=told))
    return whole


_WAITING_STATE = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))


async def _due(client: PrefectClient, deployment: UUID) -> bool:
    """Whether a run of a deployment waits whose moment is near, or has passed."""
    soon = FlowRunFilter(
        state=_WAITING_STATE,
        deployment_id=FlowRunFilterDeploymentId(any_=[deployment]),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=datetime.now(UTC) + _NEAR),
    )
    return bool(await client.read_flow_runs(flow_run_filter=soon, limit=1))


def _grown() -> int:
    """Return how many entries the ledger has: what there is to serve is told by them alone."""
    with reading(open_ledger_database()) as entries:
        return entries.last().sequence


def known_datasets() -> list[str]:
    """Return the names of the data sets that there are, those bundled among them."""
    return sorted({*BUNDLED, *(one.name for one in open_catalog().datasets())})


READY = "serving"
# Processes for runs that wait for another one of their data set, beside those that work.
_WAITING = 4
# Of HTTP, from which on the fault is the server's.
_SERVER_FAULT = 500
_GONE = 404


def root_tag(root: Path) -> str:
    """Return the tag of a root's deployments, wherever it lies: a server may know those of several roots."""
    return f"{TAG}.root.{root_name(Layout(root))}"


def by_name(flow: Flow[Any, Any]) -> tuple[Any, ...]:
    """Pickle a flow by its place in a module: a process that unpickles it imports what is installed there."""
    return import_flow, (f"{flow.fn.__module__}.{flow.fn.__name__}",)


def skip(broken: BrokenSchedule) -> None:
    """Report that a data set's schedule is not served: here, in the log of events, and so to the webhook."""
    called = full_name(broken.dataset, broken.name)
    print(f"{SKIPPED} the schedule {called}: {' '.join(broken.problem.split())}", flush=True)
    details = {"checks": "schedules", "schedule": called, "problem": broken.problem}
    log_event(str(Event.UNWELL), dataset=broken.dataset, details=details)


def _print_of(spec: Mapping[str, Any]) -> str:
    """Return what of a deployment is applied; what it says of itself is kept up to date by :func:`offer`."""
    timing = [one.model_dump(mode="json") for one in spec["schedules"]]
    # A trigger is named anew each time it is read.
    starting = [one.model_dump(mode="json", exclude={"id"}) for one in spec["triggers"]]
    return repr((spec["parameters"], timing, starting))


def delete(client: SyncPrefectClient, deployment: UUID) -> None:
    """Delete a deployment with what starts it: the server keeps triggers of one that has gone, and they fail."""
    with suppress(ObjectNotFound):
        client.delete_deployment(deployment)
    client.delete_resource_owned_automations(f"prefect.deployment.{deployment}")


class Served:
    """The deployments that a runner serves, and those of schedules as they are now.

    Parameters
    ----------
    runner : Runner
    root : Path
    shared : bool
        Whether the server knows deployments of other roots.
    """

    def __init__(self, runner: Runner, root: Path, *, shared: bool = False) -> None:
        self.flows: dict[UUID, Flow[Any, Any]] = {}
        self._runner, self._root, self._shared = runner, root, shared
        self._applied: dict[tuple[str, str], tuple[UUID, str]] = {}
        self._broken = set[BrokenSchedule]()

    def add(self, spec: Mapping[str, Any]) -> UUID:
        """Apply a deployment and serve it.

        Raises
        ------
        prefect.exceptions.PrefectHTTPStatusError
            If the server refuses it.
        """
        options = {name: value for name, value in spec.items() if name != "entrypoint"}
        options["tags"] = [*spec["tags"], root_tag(self._root)]
        # Not a deployment object: a runner loads the flow of such a one from what the server says.
        flow: Flow[Any, Any] = load_flow_from_entrypoint(spec["entrypoint"], use_placeholder_flow=False)
        added = cast(UUID, self._runner.add_flow(flow, **options))
        self.flows[added] = flow
        with get_client(sync_client=True) as client:
            # From the first moment on: pages send what a form says.
            form = form_shown(client.read_deployment(added).parameter_openapi_schema or {}, known_datasets())
            client.update_deployment(added, DeploymentUpdate(parameter_openapi_schema=form))
            # A deployment that had other schedules under this name keeps them, and runs by them, until they are ended.
            slugs = {one.slug for one in spec["schedules"]}
            for found in client.read_deployment_schedules(added):
                if found.slug not in slugs:
                    client.delete_deployment_schedule(added, found.id)
        return added

    def require_own(self, names: Sequence[str]) -> None:
        """Refuse names of other roots' deployments: runs meant for another root's rows would run on these.

        Raises
        ------
        storage.errors.InputError
            Naming them.
        """
        if not self._shared or not names:
            return
        named = DeploymentFilter(name=DeploymentFilterName(any_=list(names)), tags=DeploymentFilterTags(all_=[TAG]))
        with get_client(sync_client=True) as client:
            found = client.read_deployments(deployment_filter=named)
        if taken := sorted({one.name for one in found if root_tag(self._root) not in one.tags}):
            raise InputError(f"the Prefect server already has deployments {', '.join(taken)} of another root")

    def follow(self) -> list[dict[str, Any]]:
        """Apply the schedules that stand now and end the others; return the deployments of those that stand.

        What cannot be served is said and left out, and stops none of the others.
        """
        kept = sound_schedules()
        broken = list(kept.broken)
        specs = scheduled_deployments(kept.sound)
        wanted = {(spec["entrypoint"], spec["name"]): spec for spec in specs}
        with get_client(sync_client=True) as client:
            for which in self._applied.keys() - wanted.keys():
                ended, _ = self._applied.pop(which)
                self.flows.pop(ended, None)
                delete(client, ended)
        for which, spec in wanted.items():
            print_of = _print_of(spec)
            if which in self._applied and self._applied[which][1] == print_of:
                continue
            dataset, _, name = spec["name"].rpartition(".")
            try:
                self.require_own([spec["name"]])
                self._applied[which] = self.add(spec), print_of
            except PrefectHTTPStatusError as error:
                if error.response.status_code >= _SERVER_FAULT:
                    # The server that takes no other deployment either is another fault than this one's.
                    raise
                broken.append(BrokenSchedule(dataset, name, f"the Prefect server refuses it: {first_line(error)}"))
            except InputError as error:
                broken.append(BrokenSchedule(dataset, name, f"{error}: give the schedule another name (--name)"))
        for one in broken:
            if one not in self._broken:
                skip(one)
        self._broken = set(broken)
        return specs


def _serve(deployments: Sequence[dict[str, Any]], runs: int, *, shared: bool) -> None:
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
    # A run's process imports the flow, as this one did. By value, which is how functions under a decorator are pickled,
    # it would lose the types that its annotations name.
    copyreg.pickle(Flow, by_name)
    runner = _Runner(name="unitball", limit=runs if shared else runs + _WAITING, pause_on_shutdown=False)
    served = Served(runner, root, shared=shared)
    try:
        served.require_own([spec["name"] for spec in deployments])
    except InputError as error:
        raise InputError(f"{error}: rename yours in your own deployments file (--prefect-file)") from None
    for spec in deployments:
        try:
            served.add(spec)
        except PrefectHTTPStatusError as error:
            if error.response.status_code < _SERVER_FAULT:
                raise InputError(
                    f"the Prefect server refuses deployment {spec['name']!r}: {first_line(error)}"
                ) from error
            raise
    served.follow()
    with get_client(sync_client=True) as client:
        # Before any is deleted, since its runs would no longer say whose they were.
        crash_interrupted_runs(client, root, {*served.flows, *(one.id for one in known)})
        for deployment in known:
            if deployment.id not in served.flows:
                delete(client, deployment.id)
        if not shared:
            client.upsert_global_concurrency_limit_by_name(AT_WORK, runs)
    print(READY, flush=True)
    with lying_there(root) as there:
        asyncio.run(_run(runner, served, there))


class _Runner(Runner):
    """A runner that ends at once on SIGTERM, its runs with it; who ended it, or starts it again, marks them."""

    # Prefect's own handler makes a coroutine that would cancel the runs, and exits before anything awaits it. Unwinding
    # instead takes seconds, in which nothing is done that the next start does not do.
    def handle_sigterm(self, *_: object, **__: object) -> None:
        os._exit(0)


async def _look_after(runner: Runner, served: Served) -> None:
    """Reap orphaned runs and name those that wait, again and again, until cancelled.

    A server that does not answer is asked again.
    """
    named, suspects = set[UUID](), set[UUID]()
    async with get_client() as client:
        while True:
            try:
                # Where this fails nobody is suspected.
                before, suspects = suspects, set[UUID]()
                alive = runner._process_manager.flow_run_ids()
                suspects = await reap_orphaned_runs(client, [*served.flows], alive, before)
                await name_waiting_runs(client, dict(served.flows), named)
            except Exception as error:
                logging.getLogger(__name__).warning("orphaned runs cannot be cleaned up: %s", type(error).__name__)
            await asyncio.sleep(_SECONDS)


async def _follow(served: Served, there: Callable[[], bool]) -> None:
    """Serve the schedules that are set, changed and ended meanwhile, and list new data sets, until cancelled.

    Where the root has been moved this process ends: looking would make another one, which has no schedule.
    """
    seen, told, datasets, descriptions = -1, True, list[str](), list[str]()
    async with get_client() as client:
        while True:
            if not there():
                os._exit(1)
            try:
                if (grown := await asyncio.to_thread(_grown)) != seen:
                    descriptions = [one["description"] for one in await asyncio.to_thread(served.follow)]
                    datasets = await asyncio.to_thread(known_datasets)
                    seen, told = grown, False
                if not told:
                    told = await offer(client, [*served.flows], datasets, descriptions)
            except Exception as error:
                logging.getLogger(__name__).warning("changes of schedules cannot be applied: %s", type(error).__name__)
            await asyncio.sleep(_SECONDS_OF_A_LOOK)


async def _run(runner: Runner, served: Served, there: Callable[[], bool]) -> None:
    tended = (_look_after(runner, served), _follow(served, there), send_alerts(current_root()))
    beside = [asyncio.create_task(one) for one in tended]
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
    parser.add_argument("--shared", action="store_true", help="the server belongs to another root")
    arguments = parser.parse_args()
    _serve(read_deployments(arguments.prefect_file), arguments.runs, shared=arguments.shared)


if __name__ == "__main__":
    main()
