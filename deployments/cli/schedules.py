"""``unitball schedule`` and ``schedules``: runs at a time, or for each new version."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from deployments.cli.common import (
    Answer,
    answered,
    options_of,
    require_readable,
    rounded,
    table,
)
from deployments.cli.entry_point import app
from deployments.cli.given import given_options, refuse_beside, refuse_without
from dpalgos.parameters import ParameterError
from storage.ledger.charges import of_cap
from tasks.planning.configuration import TrainingConfig, faults

if TYPE_CHECKING:
    from tasks.datasets.schedules import Schedule
    from tasks.release.forecasts import AccountForecast


_SCHEDULE_OPTIONS = {
    "name": "--name",
    "comparison_epsilon": "--compare-epsilon",
    "scoring_coverage": "--score-coverage",
}
_FOLLOWED = "A running `unitball serve` applies this within seconds; otherwise it applies at the next start."


@app.command(epilog="Example: unitball schedule digits --nightly --epsilon 0.05")
@options_of(
    TrainingConfig,
    without=["dataset"],
    named={"parameters": "--param", "tuned_on": "--on"},
    first=["algorithm", "epsilon", "delta"],
    as_in_train=True,
)
@answered
def schedule(
    config: TrainingConfig,
    dataset: Annotated[str, typer.Argument(help="Registered data set.")],
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Name of the schedule. Default: nightly, cron, on-new-version or scoring, by its trigger.",
        ),
    ] = None,
    nightly: Annotated[bool, typer.Option("--nightly", help="Run every night at 03:00.")] = False,
    cron: Annotated[str | None, typer.Option(help="Cron expression of five fields: '0 3 * * *'.")] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of --nightly and --cron.")] = "UTC",
    on_new_version: Annotated[
        bool, typer.Option("--on-new-version", help="Run for each new version of the data set.")
    ] = False,
    score_input: Annotated[
        Path | None, typer.Option(help="Score this file after each training, with the champion if there is one.")
    ] = None,
    score_id: Annotated[str | None, typer.Option(help="Column of --score-input to copy.")] = None,
    score_coverage: Annotated[
        float | None,
        typer.Option(help="Add prediction intervals or sets of this coverage, such as 0.9."),
    ] = None,
    compare_epsilon: Annotated[
        float | None,
        typer.Option(help="Epsilon of the comparison with the champion, on held-out rows. Default: no comparison."),
    ] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Make a better model champion.")] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Pause the schedule.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the schedule.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the schedule.")] = False,
) -> Answer:
    """Create, change, pause or remove a schedule of a data set."""
    from deployments.specifications import told
    from tasks.datasets.registration import ensure_registered
    from tasks.datasets.schedules import NIGHTLY, Schedule, full_name, schedules, set_schedule
    from tasks.release.forecasts import forecast
    from tasks.release.preflight import require_feasible

    if pause or resume or remove:
        return _managed(dataset, name, pause=pause, resume=resume, remove=remove)
    if nightly and cron is not None:
        raise ParameterError(f"--nightly means --cron '{NIGHTLY}': give one of them")
    if not nightly:
        refuse_without(["--timezone"], "--cron", "applies to --nightly and --cron")
    if name == "":
        raise ParameterError("--name is empty: give a name, or omit it for the default")
    try:
        timing = Schedule(
            name=name or "",
            config=config,
            cron=NIGHTLY if nightly else cron,
            timezone=timezone,
            on_new_version=on_new_version,
            scoring_input=None
            if score_input is None
            else str(require_readable(score_input, "--score-input").absolute()),
            scoring_id=score_id,
            scoring_coverage=score_coverage,
            comparison_epsilon=compare_epsilon,
            promote=promote,
        )
    except ValidationError as error:
        raise ParameterError("; ".join(faults(error, _SCHEDULE_OPTIONS))) from None
    try:
        # Before the budget check: a schedule without dates is free.
        timing.next_dates(1)
    except ParameterError as error:
        raise ParameterError(f"--{error}") from None
    ensure_registered(config.dataset, config.public_dataset)
    config = require_feasible(config).config
    if timing.trains and (promote or compare_epsilon is not None):
        _require_comparable(config)
    dates, before = set_schedule(timing)
    price = "each new version is charged, and a repeated run on the same rows is free"
    if config.horizon is not None:
        price = f"one charge for {config.horizon} nights, made in the first night, for any number of rows"
    others = [one.name for one in schedules().sound if one.dataset == dataset and one.name != timing.name]
    expected, _ = forecast(schedules().sound)
    outlook = told(timing, expected[timing.full_name]) if timing.trains else ""
    return Answer(
        {
            "dataset": dataset,
            "schedule": timing.model_dump(mode="json"),
            "before": None if before is None else before.model_dump(mode="json"),
            "next_dates": [date.isoformat() for date in dates],
        },
        [
            f"federated-training/{full_name(dataset, timing.name)}: {_when(timing)}; {price} (epsilon "
            f"{config.epsilon}, delta {config.stated_delta:g})",
            *([] if before is None else [_changed(before, timing)]),
            *([f"other schedules: {', '.join(others)}"] if others else []),
            *([_dates(dates)] if dates else []),
            *([outlook] if outlook else []),
            _FOLLOWED,
        ],
    )


@app.command(epilog="Example: unitball schedules")
@answered
def schedules() -> Answer:
    """List all schedules with next dates and projected cost."""
    from deployments.specifications import told
    from tasks.datasets.schedules import full_name, sound_schedules
    from tasks.release.forecasts import forecast

    kept = sound_schedules()
    expected, accounts = forecast(kept.sound)
    outlooks = {one.full_name: told(one, expected[one.full_name]) if one.trains else "" for one in kept.sound}
    dates = {one.full_name: [] if one.paused else one.next_dates() for one in kept.sound}
    rows = (
        (
            timed.dataset,
            timed.name,
            "paused" if timed.paused else _when(timed),
            timed.config.system,
            timed.config.epsilon,
            ", ".join(f"{date:%Y-%m-%d %H:%M %Z}" for date in dates[timed.full_name]) or None,
        )
        for timed in kept.sound
    )
    shown = table(("data set", "name", "when", "algorithm", "epsilon", "next"), rows, title="Schedules")
    return Answer(
        {
            "schedules": [
                {
                    **timed.model_dump(mode="json"),
                    "dataset": timed.dataset,
                    "next_dates": [date.isoformat() for date in dates[timed.full_name]],
                    "runs_left": expected[timed.full_name].runs if timed.trains else None,
                    "outlook": outlooks[timed.full_name],
                }
                for timed in kept.sound
            ],
            "accounts": [
                {
                    "account": account.account,
                    "cap": account.cap,
                    "promised": account.promised,
                    "delta": account.delta,
                    "epsilon": account.epsilon,
                    "runs": account.runs,
                    "until": account.until and account.until.isoformat(),
                    "refused": account.refused
                    and {"schedule": account.refused[0].full_name, "at": account.refused[1].isoformat()},
                }
                for account in accounts
            ],
            "broken": [one._asdict() for one in kept.broken],
        },
        [
            shown if kept.sound else "no data set has a schedule: unitball schedule NAME --nightly --epsilon …",
            *(f"{name}: {outlook}" for name, outlook in outlooks.items() if outlook),
            *(_until(one) for one in accounts),
            *(f"not served, {full_name(one.dataset, one.name)}: {one.problem}" for one in kept.broken),
        ],
    )


def _require_comparable(config: TrainingConfig) -> None:
    """Refuse to compare models that no held-out rows can compare, as their comparison would."""
    from tasks.preparation.prepare import AwaitingPartition, prepare_comparison, require_held_out

    prepared = prepare_comparison(config)
    if not isinstance(prepared, AwaitingPartition):
        require_held_out(config, prepared.shards.held_out)


def _managed(dataset: str, name: str | None, *, pause: bool, resume: bool, remove: bool) -> Answer:
    """Pause, resume or remove one of a data set's schedules."""
    from tasks.datasets.schedules import full_name, pause_schedule, remove_schedule

    said = [flag for flag, given in (("--pause", pause), ("--resume", resume), ("--remove", remove)) if given]
    if len(said) > 1:
        raise ParameterError(f"{' and '.join(said)} are both given: give one of them")
    others = {one for one in given_options() if one not in ("--name", "--root", "--json", *said)}
    refuse_beside(said[0], "takes no further options except --name", others)
    if remove:
        called = remove_schedule(dataset, name)
        answer = {"dataset": dataset, "name": called, "schedule": None}
        return Answer(answer, [f"removed {full_name(dataset, called)}", _FOLLOWED])
    changed = pause_schedule(dataset, name, paused=pause)
    dates = changed.next_dates() if resume else []
    line = f"{changed.full_name} is paused: no run starts until --resume, and missed runs are not repeated"
    return Answer(
        {
            "dataset": dataset,
            "name": changed.name,
            "schedule": changed.model_dump(mode="json"),
            "next_dates": [date.isoformat() for date in dates],
        },
        [
            line if pause else f"{changed.full_name} runs again: {_when(changed)}",
            *([_dates(dates)] if dates else []),
            _FOLLOWED,
        ],
    )


def _changed(before: Schedule, now: Schedule) -> str:
    """Return the changes of a schedule, or that it is unchanged."""
    if before == now:
        return f"{now.full_name} is unchanged"
    old, new = ({**one.model_dump(mode="json"), **one.config.model_dump(mode="json")} for one in (before, now))
    differs = [f"{key} {old[key]!r}" for key in new if key != "config" and old[key] != new[key]]
    return f"changed {now.full_name}, which was: {', '.join(differs)}; for a further schedule give --name"


def _until(one: AccountForecast) -> str:
    """Return the projected cost of an account's schedules until its cap, rounded up."""
    cap = of_cap(one.cap, one.promised)
    if one.refused is None:
        after = f", to {one.until:%Y-%m-%d}" if one.until else ""
        return (
            f"account {one.account}: all forecast runs fit ({one.runs}{after}). With them the account reaches epsilon "
            f"{rounded(one.epsilon, 4)} of {cap} at delta {one.delta:g}"
        )
    schedule, at = one.refused
    first = f"no further run fits: epsilon {rounded(one.epsilon, 4)} of {cap} is spent"
    if one.until is not None:
        first = (
            f"{one.runs} runs fit, to {one.until:%Y-%m-%d}, and the account then reaches epsilon "
            f"{rounded(one.epsilon, 4)} of {cap} at delta {one.delta:g}"
        )
    return (
        f"account {one.account}, if every run finds a new version: {first}; {schedule.full_name} is refused on "
        f"{at:%Y-%m-%d}"
    )


def _when(one: Schedule) -> str:
    parts = [f"cron {one.cron} {one.timezone}"] if one.cron else []
    parts += ["on each new version"] if one.on_new_version else []
    parts += [f"{one.scoring_input} scored after each training"] if one.scoring_input else []
    return " and ".join(parts)


def _dates(dates: Sequence[datetime]) -> str:
    return "next: " + ", ".join(f"{date:%Y-%m-%d %H:%M %Z}" for date in dates)
