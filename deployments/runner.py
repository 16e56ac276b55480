"""Serve the flows, name their runs, and mark runs whose process has died."""

import argparse
import asyncio
import contextlib
import copyreg
import hashlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect.client.orchestration import PrefectClient, SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
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
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events import DeploymentTriggerTypes
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.runner import Runner
from prefect.states import Crashed
from pydantic import TypeAdapter, ValidationError

from deployments.webhook import remove_earlier, send_alerts
from dpalgos.errors import ParameterError
from storage.documents import read_yaml
from storage.errors import InputError, RefusedError
from storage.layout import Layout
from storage.readers.by_name import BUNDLED
from tasks.accounts.budget import open_ledger
from tasks.datasets.schedules import Schedule, schedules
from tasks.release.admission import runs_that_fit
from tasks.release.preflight import require_feasible
from tasks.runtime.ending import AT_WORK
from tasks.runtime.events import Event, dataset_resource
from tasks.runtime.interrupted import UNFINISHED, crash_interrupted_runs
from tasks.runtime.settings import current_root, keep_private, use_own_temporary_folder
from tasks.runtime.stores import open_catalog

_NAMING_SECONDS = 20.0
_PAGE = 200
# Prefect looks no farther.
_MOST_DATES = 1000


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


_SECONDS = 30.0


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
        message = "The process of this run has ended without saying how."
        await client.set_flow_run_state(run, Crashed(message=message), force=True)
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
TAG = "unitball"
_SCHEDULE_OPTIONS = ("active", "max_scheduled_runs", "parameters", "slug")
_KEYS = frozenset(
    ("name", "description", "tags", "entrypoint", "parameters", "schedules", "triggers", "concurrency_limit", "version")
)
# Processes for runs that wait for another one of their data set, beside those that work.
_WAITING = 4
# The pool that a worker served in earlier versions; its template let runs choose their command.
_EARLIER_POOL = "unitball"


def _schedule(spec: Mapping[str, Any]) -> DeploymentScheduleCreate:
    options = {name: spec[name] for name in _SCHEDULE_OPTIONS if name in spec}
    timing = {name: value for name, value in spec.items() if name not in options}
    return DeploymentScheduleCreate.model_validate({"schedule": timing, **options})


def read_deployments(path: Path) -> list[dict[str, Any]]:
    """Return what a ``prefect.yaml`` says of each deployment, schedules and triggers validated.

    Raises
    ------
    storage.errors.InputError
        If the file is not of that form, or asks for code, pools or infrastructure: flows are served from here, so
        there is no worker that would follow.
    """
    content = read_yaml(path)
    specs = content.get("deployments") if isinstance(content, dict) else None
    if not isinstance(specs, list) or not all(isinstance(spec, dict) for spec in specs):
        raise InputError(f"{path} has no list 'deployments'; see deployments/prefect.yaml for an example")
    if foreign := sorted(set(content) - {"name", "prefect-version", "deployments"}):
        raise InputError(f"{path}: {', '.join(foreign)} cannot be used: flows are served with the code installed here")
    return [_deployment(path, spec) for spec in specs]


def _deployment(path: Path, spec: dict[str, Any]) -> dict[str, Any]:
    if missing := [name for name in ("name", "entrypoint") if not isinstance(spec.get(name), str)]:
        raise InputError(f"{path}: a deployment has no {' and no '.join(missing)}")
    if foreign := sorted(set(spec) - _KEYS):
        raise InputError(
            f"{path}: deployment {spec['name']!r} sets {', '.join(foreign)}, which cannot be used: flows are served "
            f"with the code installed here; known are {', '.join(sorted(_KEYS))}"
        )
    try:
        triggers = [
            {"name": f"{spec['name']} {number}"} | each for number, each in enumerate(spec.get("triggers") or [])
        ]
        return {
            **spec,
            "tags": sorted({TAG, *spec.get("tags", [])}),
            "schedules": [_schedule(schedule) for schedule in spec.get("schedules") or []],
            "triggers": TypeAdapter(list[DeploymentTriggerTypes]).validate_python(triggers),
        }
    except (ValidationError, TypeError) as error:
        raise InputError(f"{path}: deployment {spec['name']!r}: {' '.join(str(error).split())}") from error


def scheduled_deployments() -> list[dict[str, Any]]:
    """Return a deployment for each thing that a data set's owner has set: when it is trained on, what is scored."""
    current = schedules()
    trainings = [_training(schedule) for schedule in current if schedule.trains]
    return trainings + [_scoring(schedule) for schedule in current if schedule.scoring_input is not None]


def outlook(schedule: Schedule) -> str:
    """Return how many more of a schedule's trainings fit under the cap, and the day of the first that is refused.

    Empty where nothing is charged run by run: for public rows, for a horizon, and where nothing is trained.
    """
    if not schedule.trains or schedule.config.horizon is not None:
        return ""
    try:
        plan = require_feasible(schedule.config)
        left = None if plan is None else runs_that_fit(plan)
    except (InputError, ParameterError, RefusedError) as refusal:
        return f"The next run is refused: {refusal}"
    if left is None:
        return ""
    told = f"{left} more run{'s' * (left != 1)} on new versions fit{'s' * (left == 1)} under the cap"
    if schedule.cron is None or left >= _MOST_DATES:
        return f"{told}."
    # The client's schedules do not count their days.
    from prefect.server.schemas.schedules import CronSchedule

    dates = CronSchedule(cron=schedule.cron, timezone=schedule.timezone).get_dates(left + 1)
    return f"{told}; if every run finds a new version, the first refusal is on {asyncio.run(dates)[-1]:%Y-%m-%d}."


def _training(schedule: Schedule) -> dict[str, Any]:
    name = schedule.dataset
    config = schedule.config.model_dump(mode="json")
    spec: dict[str, Any] = {
        "name": name,
        "description": f"Train on {name}, as its owner has set it: `unitball schedule {name}`. {outlook(schedule)}",
        "entrypoint": "flows.federated_training.train",
        "parameters": {"config": config},
    }
    if schedule.cron is not None:
        spec["schedules"] = [{"cron": schedule.cron, "timezone": schedule.timezone, "slug": "schedule"}]
    if schedule.on_new_version:
        resource = {"prefect.resource.id": dataset_resource(name)}
        spec["triggers"] = [
            {"type": "event", "expect": [str(Event.REGISTERED)], "match": resource, "parameters": {"config": config}}
        ]
    return _deployment(Path(f"schedule of {name}"), spec)


def _scoring(schedule: Schedule) -> dict[str, Any]:
    request = {
        "model": "{{ event.payload.model }}",
        "input": schedule.scoring_input,
        "id_column": schedule.scoring_id,
        "prefer_champion": True,
    }
    trained = {
        "type": "event",
        "expect": [str(Event.TRAINED)],
        "match": {"prefect.resource.id": dataset_resource(schedule.dataset)},
        "parameters": {"request": request},
    }
    spec = {
        "name": schedule.dataset,
        "description": f"Score {schedule.scoring_input} after each training on {schedule.dataset}, as its owner has "
        f"set it: `unitball schedule {schedule.dataset} --score-input …`.",
        "entrypoint": "flows.batch_scoring.batch_scoring",
        # For runs by hand.
        "parameters": {"request": {**request, "model": f"{schedule.dataset}.{schedule.config.system}"}},
        "triggers": [trained],
    }
    return _deployment(Path(f"schedule of {schedule.dataset}"), spec)


def root_tag(root: Path) -> str:
    """Return the tag of a root's deployments: a server may know those of several roots and machines."""
    return f"{TAG}.root.{hashlib.sha256(f'{socket.gethostname()} {root}'.encode()).hexdigest()[:16]}"


def _tagged(client: SyncPrefectClient, root: Path) -> tuple[list[DeploymentResponse], list[DeploymentResponse]]:
    """Return the deployments of this root, and those of other roots or of an earlier version, which named no root."""
    tagged = client.read_deployments(deployment_filter=DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG])))
    mine = root_tag(root)
    return [one for one in tagged if mine in one.tags], [one for one in tagged if mine not in one.tags]


def by_name(flow: Flow[Any, Any]) -> tuple[Any, ...]:
    """Pickle a flow by its place in a module: a process that unpickles it imports what is installed there."""
    return load_flow_from_entrypoint, (f"{flow.fn.__module__}.{flow.fn.__name__}", False)


def _serve(deployments: Sequence[dict[str, Any]], runs: int, *, shared: bool) -> None:
    root = current_root()
    use_own_temporary_folder(Layout(root))
    with get_client(sync_client=True) as client:
        known, others = _tagged(client, root)
    if not shared:
        # The server is the root's own.
        known += others
    elif taken := sorted({one.name for one in others} & {spec["name"] for spec in deployments}):
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
    for spec in deployments:
        options = {name: value for name, value in spec.items() if name != "entrypoint"}
        options["tags"] = [*spec["tags"], root_tag(root)]
        # Not a deployment object: a runner loads the flow of such a one from what the server says.
        flow: Flow[Any, Any] = load_flow_from_entrypoint(spec["entrypoint"], use_placeholder_flow=False)
        served[cast(UUID, runner.add_flow(flow, **options))] = flow
    with get_client(sync_client=True) as client:
        # Before any is deleted, since its runs would no longer say whose they were.
        crash_interrupted_runs(client, root, {*served, *(one.id for one in known)})
        for deployment in known:
            if deployment.id not in served:
                client.delete_deployment(deployment.id)
        if not shared:
            with contextlib.suppress(ObjectNotFound):
                client.delete_work_pool(_EARLIER_POOL)
            remove_earlier(client)
            client.upsert_global_concurrency_limit_by_name(AT_WORK, runs)
    print(READY, flush=True)
    asyncio.run(_run(runner, served))


class _Runner(Runner):
    """A runner that ends at once on SIGTERM, its runs with it; who ended it, or starts it again, marks them."""

    # Prefect's own handler makes a coroutine that would cancel the runs, and exits before anything awaits it. Unwinding
    # instead takes seconds, in which nothing is done that the next start does not do.
    def handle_sigterm(self, *_: object, **__: object) -> None:
        os._exit(0)


async def _keep(doing: Callable[[PrefectClient], Awaitable[None]], seconds: float, complaint: str) -> None:
    """Do something again and again, until cancelled; a server that does not answer is asked again."""
    async with get_client() as client:
        while True:
            try:
                await doing(client)
            except Exception as error:
                logging.getLogger(__name__).warning("%s: %s", complaint, type(error).__name__)
            await asyncio.sleep(seconds)


async def _run(runner: Runner, served: Mapping[UUID, Flow[Any, Any]]) -> None:
    named: set[UUID] = set()
    suspects: set[UUID] = set()
    offered: object = None

    async def reap(client: PrefectClient) -> None:
        nonlocal suspects
        before, suspects = suspects, set()
        suspects = await reap_orphaned_runs(client, list(served), runner._process_manager.flow_run_ids(), before)

    async def offer_known(client: PrefectClient) -> None:
        nonlocal offered
        known = await asyncio.to_thread(_known)
        if known != offered:
            current = await asyncio.to_thread(scheduled_deployments)
            await offer(client, list(served), known[0], [one["description"] for one in current])
            offered = known

    beside = [
        asyncio.create_task(one)
        for one in (
            _keep(partial(name_waiting_runs, served=served, known=named), _NAMING_SECONDS, "runs are not named"),
            _keep(reap, _SECONDS, "runs are not looked after"),
            _keep(offer_known, _SECONDS, "data sets are not offered"),
            send_alerts(current_root()),
        )
    ]
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
    deployments = [*read_deployments(arguments.prefect_file), *scheduled_deployments()]
    _serve(deployments, arguments.runs, shared=arguments.shared)


if __name__ == "__main__":
    main()
