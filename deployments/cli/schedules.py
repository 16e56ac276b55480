"""``unitball schedule`` and ``unitball schedules``: when data sets are trained on without being asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deployments.cli.common import Answer, answered, require_readable, table
from deployments.cli.entry_point import app
from deployments.cli.options import options_of
from dpalgos.errors import ParameterError
from tasks.planning.configuration import TrainingConfig

if TYPE_CHECKING:
    from tasks.datasets.schedules import Schedule


@app.command(epilog="Example: unitball schedule digits --nightly --epsilon 0.05")
@options_of(TrainingConfig, without=["dataset"], named={"parameters": "--param"})
@answered
def schedule(
    config: TrainingConfig,
    dataset: Annotated[str, typer.Argument(help="A registered data set.")],
    nightly: Annotated[bool, typer.Option("--nightly", help="Every night at 03:00.")] = False,
    cron: Annotated[str | None, typer.Option(help="When, as five fields of cron.")] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of --nightly and --cron.")] = "UTC",
    on_new_version: Annotated[
        bool, typer.Option("--on-new-version", help="Whenever a new version of the data set is registered.")
    ] = False,
    score_input: Annotated[
        Path | None, typer.Option(help="Score these rows after each training, by the champion where there is one.")
    ] = None,
    score_id: Annotated[str | None, typer.Option(help="A column of --score-input that is kept.")] = None,
    compare_epsilon: Annotated[
        float | None,
        typer.Option(help="Charge this to held-out rows, to compare a trained model with the champion."),
    ] = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="A trained model that is better is made champion.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="End the data set's schedule.")] = False,
) -> Answer:
    """Set a schedule or a trigger for training on a data set; `unitball serve` applies it when it starts."""
    from deployments.runner import outlook
    from tasks.accounts.budget import settled
    from tasks.datasets.schedules import NIGHTLY, Schedule, remove_schedule, set_schedule
    from tasks.release.preflight import require_feasible

    timing = None
    if remove:
        if nightly or cron or on_new_version or score_input:
            raise ParameterError("--remove ends the schedule: give it alone, or leave it out to set another")
        remove_schedule(dataset)
    else:
        if nightly and cron:
            raise ParameterError(f"--nightly is --cron '{NIGHTLY}': give one of them")
        require_timing(cron or NIGHTLY, timezone)
        timing = Schedule(
            config=config,
            cron=NIGHTLY if nightly else cron,
            timezone=timezone,
            on_new_version=on_new_version,
            scoring_input=None
            if score_input is None
            else str(require_readable(score_input, "--score-input").absolute()),
            scoring_id=score_id,
            comparison_epsilon=compare_epsilon,
            promote=promote,
        )
        require_feasible(config)
        set_schedule(timing)
    return Answer(
        {"dataset": dataset, "schedule": None if timing is None else timing.model_dump(mode="json")},
        [
            f"{dataset} has no schedule now"
            if timing is None
            else f"federated-training/{dataset}: {_when(timing)}; {_price(config)} (epsilon {config.epsilon}, "
            f"delta {settled(config).stated_delta:g})",
            *([] if timing is None or not (told := outlook(timing)) else [told]),
            "takes effect when `unitball serve` next starts",
        ],
    )


@app.command(epilog="Example: unitball schedules")
@answered
def schedules() -> Answer:
    """List the schedules and triggers of all data sets."""
    from tasks.datasets.schedules import schedules as current_schedules

    entries = current_schedules()
    rows = ((one.dataset, _when(one), one.config.system, one.config.epsilon, one.config.delta) for one in entries)
    shown = table(("data set", "when", "algorithm", "epsilon", "delta"), rows, title="Schedules")
    return Answer(
        {"schedules": [one.model_dump(mode="json") for one in entries]},
        [shown if entries else "no data set has a schedule: unitball schedule NAME --nightly --epsilon …"],
    )


def _price(config: TrainingConfig) -> str:
    if config.horizon is None:
        return "the same rows cost nothing again; each new version is charged"
    return f"one charge for {config.horizon} nights, made in the first night, whatever rows arrive"


def require_timing(cron: str, timezone: str) -> None:
    """Raise where a time zone or the fields of cron are none.

    Raises
    ------
    ParameterError
    """
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        CronSchedule(cron=cron, timezone=timezone)
    except ValidationError as error:
        timing = {"cron": cron, "timezone": timezone}
        for fault in error.errors():
            field = str(fault["loc"][0]) if fault["loc"] else "cron"
            message = fault["msg"].removeprefix("Value error, ")
            raise ParameterError(f"--{field} {timing.get(field, cron)!r}: {message}") from None


def _when(one: Schedule) -> str:
    parts = [f"cron {one.cron} {one.timezone}"] if one.cron else []
    parts += ["on each new version"] if one.on_new_version else []
    parts += [f"{one.scoring_input} scored after each training"] if one.scoring_input else []
    return " and ".join(parts)
