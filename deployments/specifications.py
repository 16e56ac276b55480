"""Deployments to serve, as a prefect.yaml or a data set's schedule specifies them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.events import DeploymentTriggerTypes
from prefect.flows import load_flow_from_entrypoint
from pydantic import TypeAdapter, ValidationError

from dpalgos.parameters import ParameterError
from storage.documents import read_yaml
from storage.errors import InputError, RefusedError, StorageError, first_line
from tasks.datasets.schedules import Schedule, next_dates, sound_schedules
from tasks.release.admission import runs_that_fit
from tasks.release.preflight import require_feasible
from tasks.runtime.events import Event, dataset_resource

# Prefect looks no farther.
_MOST_DATES = 1000
TAG = "unitball"
_SCHEDULE_OPTIONS = ("active", "max_scheduled_runs", "parameters", "slug")
_KEYS = frozenset(
    ("name", "description", "tags", "entrypoint", "parameters", "schedules", "triggers", "concurrency_limit", "version")
)


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


def forecast(schedule: Schedule) -> str:
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
        "description": f"Train on {name}, as its owner has set it: `unitball schedule {name}`. {forecast(schedule)}",
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
