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
from storage.errors import InputError, first_line
from tasks.datasets.schedules import Schedule, next_dates, sound_schedules
from tasks.planning.asked import asked_of
from tasks.release.forecasts import Forecast, forecast
from tasks.runtime.events import Event, dataset_resource

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
            f"{path}: deployment {spec['name']!r}: {spec['entrypoint']} is not a flow ({type(error).__name__}: "
            f"{first_line(error)}); write module.function, as in flows.asked.train"
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

    Of a schedule that is paused there is one, too, which nothing starts but a hand.

    Parameters
    ----------
    current : sequence of Schedule, optional
        All that are sound by default.
    """
    if current is None:
        current = sound_schedules().sound
    expected, _ = forecast(current)
    trainings = [_training(one, told(one, expected[one.full_name])) for one in current if one.trains]
    # What several of a data set's schedules score alike is scored once after each training.
    scored: dict[tuple[object, ...], Schedule] = {}
    for one in current:
        if one.scoring_input is not None:
            key = (one.dataset, one.scoring_input, one.scoring_id, one.scoring_coverage)
            scored[key] = one if key not in scored or scored[key].paused else scored[key]
    return trainings + [_scoring(one) for one in scored.values()]


def told(schedule: Schedule, expected: Forecast) -> str:
    """Return, for people, how many more of a schedule's trainings fit, and the day of the first that is refused.

    Empty where nothing is charged run by run: for public rows, for a horizon, and where nothing is trained.
    """
    if expected.problem or expected.runs is None:
        return expected.problem
    runs = expected.runs
    fit = f"{runs} more run{'s' * (runs != 1)} on new versions fit{'s' * (runs == 1)} under the cap"
    if schedule.cron is None or schedule.paused or expected.refused is None:
        return f"{fit}."
    # As many as fit by themselves come before a refusal only where nothing else of the account runs.
    beside = "" if expected.admitted >= runs else " of all schedules of its account"
    return f"{fit}; if every run{beside} finds a new version, the first refusal is on {expected.refused:%Y-%m-%d}."


def _training(schedule: Schedule, outlook: str) -> dict[str, Any]:
    name, paused = schedule.dataset, " Paused: starts only by hand." if schedule.paused else ""
    parameters = asked_of(schedule.config)
    spec: dict[str, Any] = {
        "name": schedule.full_name,
        "description": f"Train on {name} by the owner's schedule ({schedule.name}): `unitball schedule {name} --name "
        f"{schedule.name}`.{paused} {outlook}".rstrip(),
        "entrypoint": "flows.asked.train",
        "parameters": parameters,
    }
    if schedule.cron is not None:
        timing = {"cron": schedule.cron, "timezone": schedule.timezone, "slug": schedule.name}
        spec["schedules"] = [{**timing, "active": not schedule.paused}]
    if schedule.on_new_version and not schedule.paused:
        resource = {"prefect.resource.id": dataset_resource(name)}
        spec["triggers"] = [
            {"type": "event", "expect": [str(Event.REGISTERED)], "match": resource, "parameters": parameters}
        ]
    return _deployment(Path(f"schedule {schedule.full_name}"), spec)


def _scoring(schedule: Schedule) -> dict[str, Any]:
    request: dict[str, Any] = {"input": schedule.scoring_input, "prefer_champion": True}
    for name, value in (("id_column", schedule.scoring_id), ("coverage", schedule.scoring_coverage)):
        request |= {} if value is None else {name: value}
    trained = {
        "type": "event",
        "expect": [str(Event.TRAINED)],
        "match": {"prefect.resource.id": dataset_resource(schedule.dataset)},
        "parameters": {"model": "{{ event.payload.model }}", **request},
    }
    spec = {
        "name": schedule.full_name,
        "description": f"Score {schedule.scoring_input} after each training on {schedule.dataset}, as its owner has "
        f"set it ({schedule.name}): `unitball schedule {schedule.dataset} --name {schedule.name} --score-input …`.",
        "entrypoint": "flows.asked.score",
        # For runs by hand.
        "parameters": {"model": f"{schedule.dataset}.{schedule.config.system}", **request},
        "triggers": [] if schedule.paused else [trained],
    }
    return _deployment(Path(f"schedule {schedule.full_name}"), spec)
