"""Serve the flows; beside them name their runs, mark runs whose process has died, and send alerts to the webhook."""

import argparse
import asyncio
import contextlib
import copyreg
import hashlib
import json
import logging
import os
import socket
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, cast
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
from prefect.events import DeploymentTriggerTypes
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.runner import Runner
from prefect.states import Crashed
from pydantic import TypeAdapter, ValidationError

from deployments.serving import SKIPPED, read_webhook
from dpalgos.parameters import ParameterError
from storage.atomic import write_bytes
from storage.documents import read_yaml
from storage.errors import InputError, RefusedError, StorageError, first_line
from storage.layout import Layout
from storage.readers.by_name import BUNDLED
from tasks.accounts.budget import open_ledger
from tasks.datasets.schedules import BrokenSchedule, Schedule, next_dates, sound_schedules
from tasks.release.admission import runs_that_fit
from tasks.release.preflight import require_feasible
from tasks.runtime.ending import AT_WORK
from tasks.runtime.events import Event, LogLine, account_resource, dataset_resource, events_file, log_event
from tasks.runtime.interrupted import UNFINISHED, crash_interrupted_runs
from tasks.runtime.settings import current_root, keep_private, use_own_temporary_folder
from tasks.runtime.stores import open_catalog

_SECONDS = 30.0
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
    if isinstance(cron := timing.get("cron"), str):
        next_dates(cron, str(timing.get("timezone") or "UTC"), 1)
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
        # Here, and not in the midst of serving: what is in the file and cannot run is said before anything starts.
        load_flow_from_entrypoint(spec["entrypoint"], use_placeholder_flow=False)
    except Exception as error:
        raise InputError(
            f"{path}: deployment {spec['name']!r}: {spec['entrypoint']} is no flow ({type(error).__name__}: "
            f"{first_line(error)}); write module.function, as in flows.federated_training.train"
        ) from error
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
    except (ValidationError, TypeError, ParameterError) as error:
        raise InputError(f"{path}: deployment {spec['name']!r}: {' '.join(str(error).split())}") from error


def scheduled_deployments(current: Sequence[Schedule] | None = None) -> list[dict[str, Any]]:
    """Return a deployment for each thing that a data set's owner has set: when it is trained on, what is scored.

    Parameters
    ----------
    current : sequence of Schedule, optional
        All that are sound by default.
    """
    if current is None:
        current = sound_schedules().sound
    trainings = [_training(schedule) for schedule in current if schedule.trains]
    return trainings + [_scoring(schedule) for schedule in current if schedule.scoring_input is not None]


def outlook(schedule: Schedule) -> str:
    """Return how many more of a schedule's trainings fit under the cap, and the day of the first that is refused.

    Empty where nothing is charged run by run: for public rows, for a horizon, and where nothing is trained.
    """
    if not schedule.trains or schedule.config.horizon is not None:
        return ""
    try:
        plan = require_feasible(schedule.config).plan
        left = None if plan is None else runs_that_fit(plan)
    except (InputError, ParameterError, RefusedError) as refusal:
        return f"The next run is refused: {refusal}"
    except StorageError as error:
        return f"The next run would fail: {error}"
    if left is None:
        return ""
    told = f"{left} more run{'s' * (left != 1)} on new versions fit{'s' * (left == 1)} under the cap"
    if schedule.cron is None or left >= _MOST_DATES:
        return f"{told}."
    last = schedule.next_dates(left + 1)[-1]
    return f"{told}; if every run finds a new version, the first refusal is on {last:%Y-%m-%d}."


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
    # Of this root, and of other roots or of an earlier version, which named no root.
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


# What an earlier version kept on the server, where whoever has the server's password reads the address.
_EARLIER_AUTOMATION, _EARLIER_BLOCK = "unitball alerts", ("webhook", "unitball-alerts")
_ALERT_SECONDS, _TIMEOUT, _PAUSES = 1.0, 20.0, (0.0, 2.0, 10.0)


def remove_earlier(client: SyncPrefectClient) -> None:
    """Remove the automation of an earlier version, and the address that it kept on the server."""
    for automation in client.read_automations_by_name(_EARLIER_AUTOMATION):
        client.delete_automation(automation.id)
    kind, name = _EARLIER_BLOCK
    for block in client.request("GET", "/block_types/slug/{slug}/block_documents", path_params={"slug": kind}).json():
        if block["name"] == name:
            client.request("DELETE", "/block_documents/{id}", path_params={"id": block["id"]})


def new_alerts(root: Path) -> Iterator[LogLine | None]:
    """Yield what somebody has to look at as the root's log of events gets it, and None where nothing is new.

    It goes on where it was when it was asked the last time, by another process, too; the first time at the log's end.
    Nobody but the root's user writes there, so that a holder of a server's password forges no alert.
    """
    path, place = events_file(root), Layout(root).prefect / ".webhook-read"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    file = _opened(path, place)
    kept = -1
    while True:
        # Looked at before reading: what another process put aside after that is read to its end the next time.
        moved = path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino
        while (line := file.readline()).endswith(b"\n"):
            if (alert := _alert(line)) is not None:
                yield alert
        file.seek(-len(line), os.SEEK_CUR)
        if moved:
            file.close()
            file, kept = path.open("rb"), -1
            continue
        if kept != file.tell():
            kept = file.tell()
            write_bytes(place, json.dumps([os.fstat(file.fileno()).st_ino, kept]).encode())
        yield None


def _opened(path: Path, place: Path) -> IO[bytes]:
    """Open the file that was read last where it was left, perhaps put aside since; without one, the end of the log."""
    try:
        known, offset = map(int, json.loads(place.read_bytes()))
    except (FileNotFoundError, ValueError):
        known, offset = 0, 0
    for candidate in (path, path.with_name("events.1.jsonl")):
        if candidate.exists() and candidate.stat().st_ino == known:
            break
    else:
        candidate, offset = path, 0 if known else path.stat().st_size
    file = candidate.open("rb")
    file.seek(offset)
    return file


def _alert(line: bytes) -> LogLine | None:
    try:
        record = LogLine.model_validate_json(line)
    except ValueError:
        return None
    return record if record.event in {str(event) for event in Event.alerts()} else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        # It might lead away from https.
        return None


def send(address: str, alert: LogLine) -> None:
    """Send an alert once.

    Raises
    ------
    OSError, http.client.HTTPException
        If the address does not take it.
    """
    details = dict(alert.details)
    about = details.pop("about", "unitball.root")
    if alert.dataset is not None:
        about = dataset_resource(alert.dataset)
    elif alert.account is not None:
        about = account_resource(alert.account)
    payload = details | alert.model_dump(include={"dataset", "account"}, exclude_none=True)
    body = {"event": alert.event, "about": about, "at": alert.time.isoformat(), "payload": payload}
    request = urllib.request.Request(
        address, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT).close()


async def send_alerts(root: Path, deliver: Callable[[str, LogLine], None] = send) -> None:
    """Send each new alert of a root, until cancelled; one that is not taken three times is given up, and said."""
    log = logging.getLogger(__name__)
    while True:
        try:
            for alert in new_alerts(root):
                if alert is None:
                    await asyncio.sleep(_ALERT_SECONDS)
                elif address := read_webhook(root):
                    await _delivered(address, alert, deliver, log)
        except (OSError, StorageError, InputError) as error:
            # What was read and not sent is read again once that is mended.
            log.warning("alerts cannot be sent: %s", error)
            await asyncio.sleep(_PAUSES[-1])


async def _delivered(
    address: str, alert: LogLine, deliver: Callable[[str, LogLine], None], log: logging.Logger
) -> None:
    for pause in _PAUSES:
        await asyncio.sleep(pause)
        try:
            await asyncio.to_thread(deliver, address, alert)
        except (OSError, HTTPException, ValueError) as error:
            # Its text may hold the address.
            log.warning("the webhook did not take %s: %s", alert.event, type(error).__name__)
        else:
            return


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
