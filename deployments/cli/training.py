"""``unitball train``, ``compare``, ``schedule``, ``party``, ``federate``: training now, on a day, or over parties."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from deployments.cli.common import (
    Answer,
    DaskOption,
    RootOption,
    YesOption,
    agree,
    answered,
    coloured,
    options_of,
    require_readable,
    running,
    say_charged_before,
    table,
    use_root,
)
from deployments.cli.data import ingest
from deployments.cli.entry_point import app, group_of
from deployments.cli.given import given_options, refuse_beside, refuse_without
from deployments.cli.stopping import leave_signals
from dpalgos.guarantees import rounded_up
from dpalgos.parameters import ParameterError
from dpalgos.sentences import sentence
from storage.errors import InputError, PriceError, RefusedError
from storage.ledger.charges import of_cap
from storage.refs import Visibility
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig, faults
from tasks.runtime.settings import current_layout, current_root, prefect_address

if TYPE_CHECKING:
    from tasks.datasets.schedules import Schedule
    from tasks.preparation.prepare import Prepared
    from tasks.release.expectation import Expectation
    from tasks.release.forecasts import AccountForecast
    from tasks.tracking.results import RunResult


DEFAULT_COMPARISON = (
    "unitball,unitball-without-noise,non-private,dpml,dpdr-dpml,fed-dpdr-dpml,fed-dpdr-dpml-published,noisy-gd"
)


@app.command(epilog="Example: unitball train --dataset digits --epsilon 1")
@options_of(TrainingConfig, named={"parameters": "--param"})
@answered
def train(
    config: TrainingConfig,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what would run and why; run and charge nothing.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what it would ask of this machine and the budget; run nothing.")
    ] = False,
    path: Annotated[Path | None, typer.Option(help="Ingest this file or folder on the way.")] = None,
    format: Annotated[str | None, typer.Option(help="Format of --path.")] = None,
    public: Annotated[bool, typer.Option("--public", help="The rows of --path are public.")] = False,
    yes: YesOption = False,
    dask: DaskOption = None,
) -> Answer:
    """Train one model over the parties' rows, charge what it costs, evaluate and log it."""
    if plan and explain:
        raise ParameterError("--plan says what a run asks for, and --explain what would run: give one of them")
    for option in ("--plan", "--explain"):
        refuse_beside(option, "runs nothing", ["--dask", "--yes"])
    if path is None and (format is not None or public):
        raise ParameterError("--format and --public speak of rows to ingest on the way: say which with --path")
    if path is not None:
        _ingest(config.dataset, path, format, public)
    if explain:
        return _explained(config)
    if plan:
        return _expectation(config)
    results = _run([config], f"{config.system} on {config.dataset}", yes=yes, dask=dask)
    return Answer(results[0].model_dump(mode="json"), shown_results(results))


def _ingest(name: str, path: Path, format: str | None, public: bool) -> None:
    from tasks.datasets.registration import ingest as bring_in

    visibility = Visibility.PUBLIC if public else Visibility.PRIVATE
    request = IngestRequest(name=name, path=require_readable(path, "--path"), format=format, visibility=visibility)
    try:
        bring_in(request)
    except (InputError, RefusedError) as error:
        # What is advised are options of that command; it declares more than there is room for here.
        raise error.saying(f"unitball ingest {name}: {error}") from None


def _ensure_registered(config: TrainingConfig) -> None:
    """Ingest a data set that comes with scikit-learn, where a run names one: what plans the run only looks it up."""
    from tasks.datasets.registration import ensure_registered

    ensure_registered(config.dataset, config.public_dataset)


def _explained(config: TrainingConfig) -> Answer:
    from tasks.datasets.registration import find_dataset
    from tasks.preparation.prepare import whole
    from tasks.release.preflight import require_feasible
    from tasks.release.prices import price_of, with_epsilon

    _ensure_registered(config)
    prepared = whole(require_feasible(with_epsilon(config, find_dataset(config.dataset))))
    plan, price = prepared.plan, price_of([prepared])
    _warn(prepared)
    parts = {
        release.algorithm.kind.removesuffix("s"): {"name": release.name, **release.algorithm.parameters}
        for release in (*plan.counts[:1], *plan.projections[:1], *plan.models[:1])
    }
    lines = [f"{plan.system} under trust {plan.trust}"]
    lines += [f"  - {reason}" for reason in plan.reasons or ("parts and parameters are those named, or defaults",)]
    for kind, part in parts.items():
        parameters = ", ".join(f"{name}={_brief(value)}" for name, value in part.items() if name != "name")
        lines.append(f"  {kind} {part['name']}" + (f": {parameters}" if parameters else ""))
    lines += [f"  measured by {plan.measured_by}"] if plan.measured_by else []
    lines += [f"  price: {price}"] if price is not None else []
    explained = {
        "system": plan.system,
        "trust": plan.trust,
        "reasons": plan.reasons,
        "warning": plan.warning,
        "measured_by": plan.measured_by,
        "price": None if price is None else dataclasses.asdict(price),
    }
    return Answer({**explained, "parts": parts}, lines)


def _brief(value: object) -> str:
    """Return a parameter's value, or of a long list how long it is."""
    text = str(value)
    return text if len(text) <= _LONGEST_SHOWN or not isinstance(value, list | tuple) else f"({len(value)} of them)"


def _kept(streamed: float, people: bool) -> str:
    """Return where rows are between passes, of which so large a share, of people's at most, is not kept."""
    if 0.0 < streamed < 1.0:
        return f"rows of which {'at least ' if people else ''}{1.0 - streamed:.0%} are kept in memory"
    return "rows read from disk" if streamed else "rows kept in memory"


def _expectation(config: TrainingConfig) -> Answer:
    from storage.columns.declarations import shown
    from tasks.datasets.registration import find_dataset
    from tasks.release.expectation import expect_run

    _ensure_registered(config)
    expected, classes = expect_run(config), find_dataset(config.dataset).classes
    delta = rounded_up(expected.delta, 6)
    budget = "none" if expected.epsilon is None else f"epsilon {expected.epsilon:g} at delta {delta:g}"
    tuned = f", the best of {expected.candidates} private candidates" if expected.candidates > 1 else ""
    charged = f"; {expected.charged} of them charged before, at no further cost" if expected.charged else ""
    charged += f"; {expected.stored} stored, and not made again" if expected.stored else ""
    each = expected.rows_per_person
    again = "; each time mapped again: there is no room for mapped rows, or few are read" * expected.mapped_again
    people = f" people of at most {each} {'row' if each == 1 else 'rows'} each" if expected.person else ""
    lines = {
        "rows": f"{expected.rows:,}{people} × {expected.dimension} over {expected.parties} parties",
        **({"classes": f"{len(classes)}: {shown(classes)}"} if classes else {}),
        "releases": f"{expected.releases}{tuned}, budget {budget}{charged}",
        **({"price": str(expected.price)} if expected.price is not None else {}),
        "passes": f"{expected.passes} over {_kept(expected.streamed, each > 1)}",
        "operations": f"{_span(expected.least_operations, expected.operations, '.2g')} floating-point operations in "
        f"matrix products, {_span(expected.least_small_operations, expected.small_operations, '.2g')} others",
        "reading": _span(expected.least_read_bytes / 2**20, expected.read_bytes / 2**20, ",.0f")
        + f" MiB of rows{again}",
        "memory": f"about {expected.memory_bytes / 2**20:,.0f} MiB" + (" at most" if each > 1 else ""),
        **({"horizon": _horizon(expected)} if expected.nights else {}),
        **({"measured by": expected.measured_by} if expected.measured_by else {}),
    }
    machine = {**dataclasses.asdict(expected), "classes": list(classes)}
    return Answer(machine, [f"{name:<12}{line}" for name, line in lines.items()])


def _horizon(expected: Expectation) -> str:
    """Return what all nights of a horizon cost."""
    return (
        f"night {expected.night} of {expected.nights}, one charge for all in the first: epsilon {expected.epsilon:g} "
        f"at delta {rounded_up(expected.delta, 6):g}, and no later night costs anything"
    )


def _span(least: float, most: float, digits: str) -> str:
    """Return what depends on how many rows people have: from one row each to the limit each."""
    low, high = (f"{number:{digits}}" for number in (least, most))
    return low if low == high else f"{low} to {high}"


def _warn(prepared: Prepared) -> None:
    from tasks.preparation.prepare import AwaitingPartition

    if not isinstance(prepared, AwaitingPartition) and prepared.plan.warning:
        typer.echo(f"warning: {prepared.plan.warning}", err=True)


@app.command(epilog="Example: unitball compare --dataset digits --epsilon 1")
@options_of(
    TrainingConfig,
    without=["algorithm", "projection", "trainer", "aggregation", "tune"],
    named={"parameters": "--param"},
)
@answered
def compare(
    config: TrainingConfig,
    algorithms: Annotated[str, typer.Option(help="Named systems, separated by commas.")] = DEFAULT_COMPARISON,
    yes: YesOption = False,
) -> Answer:
    """Train several algorithms on one data set at one budget and show them side by side."""
    shared = config.model_dump(exclude={"algorithm"})
    configs = [TrainingConfig(algorithm=name, **shared) for name in algorithms.split(",")]
    results = _run(configs, f"comparing on {config.dataset}", yes=yes)
    return Answer({"results": [result.model_dump(mode="json") for result in results]}, shown_results(results))


def _run(configs: Sequence[TrainingConfig], title: str, *, yes: bool, dask: str | None = None) -> list[RunResult]:
    from tasks.host.engine import started_ahead

    with started_ahead(current_root(), beside="tasks.release.preflight"):
        from tasks.host.cluster import over_cluster, require_scheduler, task_runner

        require_scheduler(dask)
        plans = _agreed_plans(configs, yes=yes)
    if not os.environ.get("UNITBALL_DEBUG"):
        # Prefect shows what it catches with a traceback; the command says it in one line.
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    with running(title):
        from flows.comparison import comparing
        from flows.federated_training import training

        with over_cluster(dask):
            if len(plans) > 1:
                return comparing(plans)([one.config for one in plans])
            train_flow = training(plans[0])
            if dask is not None:
                train_flow = train_flow.with_options(task_runner=task_runner(current_layout(), None, dask))
            return [train_flow(plans[0].config)]


def _agreed_plans(configs: Sequence[TrainingConfig], *, yes: bool) -> list[Prepared]:
    """Return the plans of runs on one data set, whose price the command line has agreed to."""
    from tasks.datasets.registration import find_dataset
    from tasks.release.preflight import charged_before, require_feasible
    from tasks.release.prices import measures_later, price_of, with_epsilon

    _ensure_registered(configs[0])
    dataset = find_dataset(configs[0].dataset)
    plans: list[Prepared] = []
    for config in configs:
        try:
            plans.append(require_feasible(with_epsilon(config, dataset)))
        except ParameterError as error:
            if len(configs) == 1:
                raise
            raise ParameterError(f"{config.algorithm}: {error}; or leave it out of --algorithms") from None
    later = any(map(measures_later, plans))
    stated = all(config.epsilon is not None for config in configs)
    # A model's epsilon has paid for its training; what measures it afterwards is charged on top.
    way_out = "give --yes to measure a model that is charged already" if stated else "give --epsilon, or --yes"
    agree(price_of(plans), asks=later or not stated, yes=yes, way_out=way_out)
    for one in plans:
        _warn(one)
        if (account := charged_before(one)) is not None:
            say_charged_before(account, "this" if len(configs) == 1 else str(one.config.algorithm))
    return plans


@app.command(epilog="Example: unitball schedule digits --nightly --epsilon 0.05")
@options_of(TrainingConfig, without=["dataset"], named={"parameters": "--param"})
@answered
def schedule(
    config: TrainingConfig,
    dataset: Annotated[str, typer.Argument(help="A registered data set.")],
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Which of the data set's schedules; if empty `nightly`, `cron`, `on-new-version` or `scoring`, by "
            "what starts it.",
        ),
    ] = None,
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
    score_coverage: Annotated[
        float | None,
        typer.Option(help="Coverage, such as 0.9: add intervals to predicted numbers, or sets to predicted classes."),
    ] = None,
    compare_epsilon: Annotated[
        float | None,
        typer.Option(help="Charge this to held-out rows, to compare a trained model with the champion."),
    ] = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="A trained model that is better is made champion.")
    ] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Let nothing start it until --resume.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Let it start again after --pause.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="End it.")] = False,
) -> Answer:
    """Set one of a data set's schedules, change, pause or remove it; `unitball serve` follows within seconds."""
    from deployments.specifications import told
    from tasks.datasets.schedules import NIGHTLY, Schedule, full_name, schedules, set_schedule
    from tasks.release.forecasts import forecast
    from tasks.release.preflight import require_feasible

    if pause or resume or remove:
        return _managed(dataset, name, pause=pause, resume=resume, remove=remove)
    if nightly and cron is not None:
        raise ParameterError(f"--nightly is --cron '{NIGHTLY}': give one of them")
    if not nightly:
        refuse_without(["--timezone"], "--cron", "is of --nightly and --cron")
    if name == "":
        raise ParameterError("--name '' is no name; leave it out for the usual one")
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
        # Before the budget is asked: what never comes costs nothing.
        timing.next_dates(1)
    except ParameterError as error:
        raise ParameterError(f"--{error}") from None
    _ensure_registered(config)
    config = require_feasible(config).config
    dates, before = set_schedule(timing)
    price = "the same rows cost nothing again; each new version is charged"
    if config.horizon is not None:
        price = f"one charge for {config.horizon} nights, made in the first night, whatever rows arrive"
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
            *([f"beside it: {', '.join(others)}"] if others else []),
            *([_dates(dates)] if dates else []),
            *([outlook] if outlook else []),
            _FOLLOWED,
        ],
    )


_SCHEDULE_OPTIONS = {
    "name": "--name",
    "comparison_epsilon": "--compare-epsilon",
    "scoring_coverage": "--score-coverage",
}
_FOLLOWED = "`unitball serve` follows within seconds where it runs, and otherwise when it starts"


def _dates(dates: Sequence[datetime]) -> str:
    return "next: " + ", ".join(f"{date:%Y-%m-%d %H:%M %Z}" for date in dates)


def _managed(dataset: str, name: str | None, *, pause: bool, resume: bool, remove: bool) -> Answer:
    """Pause, resume or remove one of a data set's schedules."""
    from tasks.datasets.schedules import full_name, pause_schedule, remove_schedule

    said = [flag for flag, given in (("--pause", pause), ("--resume", resume), ("--remove", remove)) if given]
    if len(said) > 1:
        raise ParameterError(f"{' and '.join(said)} are different things: give one of them")
    others = {one for one in given_options() if one not in ("--name", "--root", "--json", *said)}
    refuse_beside(said[0], "is of a schedule as it stands: give it alone, or with --name", others)
    if remove:
        called = remove_schedule(dataset, name)
        answer = {"dataset": dataset, "name": called, "schedule": None}
        return Answer(answer, [f"removed {full_name(dataset, called)}", _FOLLOWED])
    changed = pause_schedule(dataset, name, paused=pause)
    dates = changed.next_dates() if resume else []
    line = f"{changed.full_name} is paused: what it would have done meanwhile is not done later"
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
    """Return what stood under a schedule's name before."""
    if before == now:
        return f"{now.full_name} was the same before"
    old, new = ({**one.model_dump(mode="json"), **one.config.model_dump(mode="json")} for one in (before, now))
    differs = [f"{key} {old[key]!r}" for key in new if key != "config" and old[key] != new[key]]
    return f"changed {now.full_name}, which was: {', '.join(differs)}; for another schedule beside it give --name"


@app.command(epilog="Example: unitball schedules")
@answered
def schedules() -> Answer:
    """List the schedules of all data sets: their next dates, and what they will cost until the cap."""
    from deployments.specifications import told
    from tasks.datasets.schedules import full_name, sound_schedules
    from tasks.release.forecasts import forecast

    kept = sound_schedules()
    expected, accounts = forecast(kept.sound)
    outlooks = {one.full_name: told(one, expected[one.full_name]) if one.trains else "" for one in kept.sound}
    dates = {one.full_name: [] if one.paused else one.next_dates() for one in kept.sound}
    rows = (
        (
            one.dataset,
            one.name,
            "paused" if one.paused else _when(one),
            one.config.system,
            one.config.epsilon,
            "\n".join(f"{date:%Y-%m-%d %H:%M %Z}" for date in dates[one.full_name]) or None,
        )
        for one in kept.sound
    )
    shown = table(("data set", "name", "when", "algorithm", "epsilon", "next"), rows, title="Schedules")
    return Answer(
        {
            "schedules": [
                {
                    **one.model_dump(mode="json"),
                    "dataset": one.dataset,
                    "next_dates": [date.isoformat() for date in dates[one.full_name]],
                    "runs_left": expected[one.full_name].runs if one.trains else None,
                    "outlook": outlooks[one.full_name],
                }
                for one in kept.sound
            ],
            "accounts": [
                {
                    "account": one.account,
                    "cap": one.cap,
                    "promised": one.promised,
                    "delta": one.delta,
                    "epsilon": one.epsilon,
                    "runs": one.runs,
                    "until": one.until and one.until.isoformat(),
                    "refused": one.refused and {"schedule": one.refused[0].full_name, "at": one.refused[1].isoformat()},
                }
                for one in accounts
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


def _until(one: AccountForecast) -> str:
    """Return what an account's schedules will cost until its cap, on the side of more."""
    cap = of_cap(one.cap, one.promised)
    if one.refused is None:
        after = f", to {one.until:%Y-%m-%d}" if one.until else ""
        return (
            f"account {one.account}: all runs that are looked at fit ({one.runs}{after}); they cost epsilon "
            f"{_spent(one.epsilon, 4)} of {cap} at delta {one.delta:g}, earlier charges included"
        )
    schedule, at = one.refused
    first = f"none of its next runs fits: epsilon {_spent(one.epsilon, 4)} of {cap} is spent"
    if one.until is not None:
        first = (
            f"{one.runs} runs fit, to {one.until:%Y-%m-%d}, and bring it to epsilon {_spent(one.epsilon, 4)} of "
            f"{cap} at delta {one.delta:g}"
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


_HEADINGS = {"accuracy": "accuracy", "balanced_accuracy": "balanced", "mae": "mean absolute error", "r2": "R²"}
_MOST_CLASSES = 20
# Characters of a list that is shown whole.
_LONGEST_SHOWN = 60
# From this share of the most frequent class on others are rare, and up to this much above guessing hardly predicted.
_RARE, _HARDLY = 0.8, 0.15
_SECOND = ("balanced_accuracy", "r2")


def _claimed(result: RunResult) -> str | Text:
    claim = result.claim or {"statement": "–"}
    statement = str(claim["statement"])
    return coloured(statement, "").append(" ✗", "red") if claim.get("flaw") else statement


def _spent(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{rounded_up(value, digits):g}"


def results_table(results: Sequence[RunResult]) -> Table:
    """Return the table a person reads: what ran, what is proved and claimed, what it cost, how well it does."""
    from tasks.tracking.results import by_person

    main, other = ("mae", "r2") if any("mae" in one.metrics for one in results) else ("accuracy", "balanced_accuracy")
    measured = (f"{_HEADINGS[main]}{by_person(results[0])}", f"{_HEADINGS[other]}{by_person(results[0])}")
    numbers = ("ε spent", "δ spent", *measured, "seconds")
    rows = (
        (
            result.algorithm,
            result.trust,
            coloured("none", "red")
            if result.proved is None
            else f"{result.proved.summary()}, {result.proved.numerics}",
            _claimed(result),
            _spent(result.epsilon_spent, 4),
            _spent(result.delta_spent, 2),
            _measured(result, main, ".3f" if main == "accuracy" else ".4g"),
            _measured(result, other, ".3f"),
            ("–" if result.seconds is None else f"{result.seconds:.1f}") + (" (cached)" if result.cached else ""),
        )
        for result in results
    )
    title = f"{results[0].dataset}: what each algorithm costs and gives"
    shown = table(("algorithm", "trust", "proved", "claim", *numbers), rows, title=title, right=numbers)
    for column in shown.columns:
        # What is proved, claimed and measured on what is text, which may be broken.
        column.no_wrap = str(column.header) not in ("proved", "claim", *measured)
    return shown


def _measured(result: RunResult, name: str, form: str) -> str:
    """Return a metric, its margin, and what it speaks of where that is not public test rows."""
    from tasks.tracking.results import NOT_MEASURED, shown_metric

    if name in result.metrics and not result.metrics.is_known(name):
        # The sentences below say with what.
        return NOT_MEASURED
    of_test_rows = name in _SECOND or (result.measured_on or "test").startswith("test")
    return shown_metric(result, name, form) + ("" if of_test_rows else f" ({result.measured_on})")


def _program() -> str:
    """Return how this command is started again: by its name where the shell finds the one beside this Python."""
    beside = Path(sys.executable).parent / "unitball"
    path = shutil.which("unitball")
    return "unitball" if path and Path(path).resolve() == beside.resolve() else str(beside)


def shown_results(results: Sequence[RunResult], *, elsewhere: bool = False) -> Iterator[RenderableType]:
    """Yield the results of runs on one data set, for people; ``elsewhere``: accounts are parties' of their own."""
    from tasks.runtime.settings import server_address
    from tasks.tracking.results import rests_on

    yield results_table(results)
    yield from filter(None, map(rests_on, results))
    yield from _measurements(results)
    yield from _groups(results)
    for one in results:
        if one.claim and one.claim.get("flaw"):
            sound = f" Sound counterpart: {one.sound_counterpart}." if one.sound_counterpart else ""
            yield f"✗ {one.algorithm}: {sentence(str(one.claim['flaw']))}{sound}"
    if not elsewhere:
        yield from _spending(results)
    where = server_address() or f"{_program()} serve"
    yield f"See the runs in MLflow and Prefect: {where}"


def _measurements(results: Sequence[RunResult]) -> Iterator[str]:
    """Yield what the metrics are to be compared with, how exact they are, and what they are of."""
    from tasks.tracking.results import (
        NOT_MEASURED,
        about_bound,
        about_people,
        at_this_budget,
        guessing,
        margins_are,
    )

    for one in results:
        main = "mae" if "mae" in one.metrics else "accuracy"
        if main in one.metrics and not one.metrics.is_known(main):
            whose = f" of {one.algorithm}" if len(results) > 1 else ""
            yield f"The {_HEADINGS[main]}{whose} {NOT_MEASURED} {at_this_budget(one)}."
    mean = f"balanced is the mean recall of the classes, {1 / max(len(results[0].classes), 2):.2g} by guessing."
    known = any("balanced_accuracy" in one.metrics and one.metrics.is_known("balanced_accuracy") for one in results)
    for line in guessing(results):
        guessed = any(one.metrics.is_known("majority_rate") for one in results)
        yield f"{line.removesuffix('.')}; {mean}" if guessed and known else line
        known = known and not guessed
    if known:
        yield mean.capitalize()
    for one in results:
        if "r2" in one.metrics and one.metrics.is_known("mae") and not one.metrics.is_known("r2"):
            whose = f" of {one.algorithm}" if len(results) > 1 else ""
            yield f"R²{whose} {NOT_MEASURED} {at_this_budget(one)}: {one.metrics.reasons['r2']}."
    if any("r2" in one.metrics for one in results):
        bound = next(filter(None, map(about_bound, results)), "")
        yield f"R² is 0 for the best constant. {bound}".rstrip()
    if len(results) == 1:
        yield from _of_one(results[0])
    margins = list(dict.fromkeys(filter(None, map(margins_are, results))))
    if margins:
        yield " ".join([*margins[:1], *_noise(results)])
    yield from filter(None, [next(filter(None, map(about_people, results)), "")])


def _of_one(result: RunResult) -> Iterator[str]:
    """Yield what is said of a run that stands alone: its curve, its classes and its threshold."""
    from tasks.tracking.results import (
        NOT_MEASURED,
        at_this_budget,
        at_threshold,
        by_class,
        by_person,
        positive_class,
        shown_metric,
    )

    measured = result.metrics
    if "auc" in measured and result.metrics.is_known("auc"):
        yield f"Area under the ROC curve{by_person(result)}: {shown_metric(result, 'auc')}; 0.5 by guessing."
    elif "auc" in measured:
        yield f"The area under the ROC curve {NOT_MEASURED} {at_this_budget(result)}."
    if "calibration_error" in measured and result.metrics.is_known("calibration_error"):
        error = shown_metric(result, "calibration_error")
        yield f"Calibration error of the probabilities{by_person(result)}: {error}; 0 if they are right."
    yield from [*positive_class(result), *by_class(result, _MOST_CLASSES), *at_threshold(result)]
    guessed = measured.get("majority_rate_low", measured.get("majority_rate", 0.0))
    balanced = measured.get("balanced_accuracy_high", measured.get("balanced_accuracy", 1.0))
    if (
        "aim_probability" not in measured
        and guessed >= _RARE
        and balanced <= 1.0 / max(len(result.classes), 2) + _HARDLY
    ):
        yield (
            "Rare classes are hardly predicted. --class-weight balanced trains for them; of two classes, "
            "--roc --aim balanced chooses a threshold (docs/rare-classes.md)."
        )


def _noise(results: Sequence[RunResult]) -> Iterator[str]:
    """Yield, of what was measured, how much of the margin is noise, and that nothing was trained on these rows."""
    noises = [
        one.metrics[f"{name}_noise"]
        for one in results
        for name in ("accuracy", "mae")
        if f"{name}_noise" in one.metrics and one.metrics.is_known(name)
    ]
    if noises:
        yield f"The noise alone has a standard deviation of {max(noises):.2g}."
    several = results[0].identity.dataset.unit.several
    yield f"No model was trained on the held-out {several}. Measuring on them took no budget from the training."


def _groups(results: Sequence[RunResult]) -> Iterator[RenderableType]:
    """Yield how each model does for each group, where runs were measured so."""
    from tasks.tracking.results import about_groups, group_lines

    measured = [one for one in results if one.by_group is not None]
    for one in measured:
        (headings, *lines) = group_lines(one)
        title = f"By {one.by_group.column if one.by_group else ''}" + (f": {one.algorithm}" if len(results) > 1 else "")
        yield table(headings, lines, title=title, right=headings[1:])
    if measured:
        yield about_groups(measured[0])


def _spending(results: Sequence[RunResult]) -> Iterator[str]:
    """Yield, for private rows, what is left of their budget, at which delta, and how a model of them is measured."""
    from tasks.accounts.reports import budget_report, cap_of
    from tasks.accounts.room import OneMore

    report = budget_report(results[0].dataset)
    if report["cap"] is None:
        return
    name, cap, left = results[0].dataset, report["cap"], report["left"]
    spent = "unbounded" if report["epsilon_spent"] is None else _spent(report["epsilon_spent"], 4)
    if left is not None:
        yield OneMore(**left).said
    yield from (
        f"Account {report['account']}: all its runs together have spent ε = {spent} of {cap_of(report)} "
        f"at the cap's δ = {cap['delta']:g}. ε spent in the table is that of one run at its own δ (--delta). "
        f"More: {_program()} budget {name}",
        report["meaning"],
    )
    if all(one.measured_on is None for one in results):
        yield (
            "No accuracy: private rows are measured by a charged release alone, and this run holds none out "
            "(--no-evaluation, --test-fraction 0, or a --horizon)."
        )


party = group_of("party")
party.command(epilog="Example: unitball party ingest clinic --format csv --party berlin=rows.csv --schema clinic.yaml")(
    ingest
)

_Dataset = Annotated[str, typer.Argument(help="The party's data set, ingested with one --party NAME=FILE.")]
_Roster = Annotated[Path, typer.Option(help="YAML: parties: {NAME: FINGERPRINT}, brought by each party itself.")]
_NOT_HERE = ("seed", "public_dataset", "partition", "partition_seed", "sizes", "rows_per_party")
_NOR = ("parties", "deadline", "deadline_miss", "tune", "by")
_NOR_YET = ("horizon", "participations", "separation", "expected_rows", "bands")


@party.command(epilog="Example: unitball party show clinic")
@answered
def show(dataset: _Dataset) -> Answer:
    """Print this party's line of the roster: its name and the fingerprint of its key."""
    from storage.secrets import root_secret
    from tasks.federation.messages import fingerprint, identity_key
    from tasks.federation.party import own_name

    name, print_of = own_name(dataset), fingerprint(identity_key(root_secret(current_layout())).public_key())
    return Answer({"party": name, "fingerprint": print_of}, [f"{name}: {print_of}"])


@party.command(epilog="Example: unitball party serve clinic --roster roster.yaml")
def serve(dataset: _Dataset, roster: _Roster, root: RootOption = None) -> None:
    """Answer a coordinator's requests at the Prefect server of PREFECT_API_URL, until Ctrl-C."""
    use_root(root)
    current_layout()
    require_readable(roster, "--roster")
    if not prefect_address():
        raise InputError(
            "PREFECT_API_URL is not set; name the coordinator's Prefect server (and PREFECT_API_AUTH_STRING)"
        )
    from tasks.host.engine import keep_quiet
    from tasks.runtime.settings import use_own_temporary_folder

    keep_quiet()
    layout = current_layout()
    use_own_temporary_folder(layout)
    # Its log is its own: it is sent to nobody's server.
    os.environ |= {"PREFECT_LOGGING_TO_API_ENABLED": "false", "PREFECT_HOME": str(layout.prefect)}
    from deployments.federation import serve_party

    # SIGTERM is how it ends; of a run that is under way the engine says that it has crashed.
    leave_signals()
    serve_party(dataset, roster)


@party.command("return", epilog="Example: unitball party return clinic 3f9a1c2b…")
@answered
def give_back(
    dataset: _Dataset,
    run: Annotated[str, typer.Argument(help="A run that was reserved for and never committed (unitball budget).")],
) -> Answer:
    """Take back what was reserved for a run whose coordinator does not come back; refused once it was committed."""
    from tasks.accounts.ledger import open_ledger
    from tasks.datasets.registration import find_dataset

    open_ledger().give_back(find_dataset(dataset).account, run, why="by its owner")
    return Answer({"returned": run}, [f"returned what was reserved for run {run}"])


def _agreed_budget(config: TrainingConfig, *, yes: bool) -> TrainingConfig:
    """Return the configuration of a run over separate parties, whose accounts are theirs, with the budget agreed to."""
    from tasks.release.prices import RUN_EPSILON

    priced = config if config.epsilon is not None else config.model_copy(update={"epsilon": RUN_EPSILON})
    price = f"epsilon {priced.epsilon:g} at delta {priced.stated_delta:g} in each party's own account"
    if config.epsilon is None and not yes:
        raise PriceError(f"nothing was charged; the price is {price}; give --epsilon, or --yes")
    typer.echo(f"price: {price}", err=True)
    return priced


@app.command(epilog="Example: unitball federate --roster docs/examples/roster.yaml --dataset study --epsilon 1")
@options_of(TrainingConfig, without=[*_NOT_HERE, *_NOR, *_NOR_YET], named={"parameters": "--param"})
@answered
def federate(
    config: TrainingConfig,
    roster: _Roster,
    patience: Annotated[float, typer.Option(min=1, help="Seconds that a party has for an answer.")] = 120.0,
    measure_on: Annotated[
        str | None,
        typer.Option(help="Public data set here to measure the model on; no party holds out rows then."),
    ] = None,
    yes: YesOption = False,
) -> Answer:
    """Train one model over separate parties: all reserve, all commit, no row leaves its party; log the model."""
    if measure_on is not None and not config.evaluation:
        raise ParameterError("--measure-on says on what the model is measured, and --no-evaluation measures nothing")
    from tasks.host.engine import keep_quiet
    from tasks.runtime.services import running_servers, use_own_server

    os.environ.setdefault("PREFECT_API_URL", running_servers(current_root()).get("prefect", ""))
    if not prefect_address():
        raise InputError("no Prefect server: start `unitball serve` under this root, or name one with PREFECT_API_URL")
    os.environ.setdefault("PREFECT_HOME", str(current_layout().prefect))
    keep_quiet()
    use_own_server(current_root())
    from deployments.federation import posting
    from flows.party import read_roster
    from tasks.datasets.registration import ensure_registered
    from tasks.federation.coordinator import federate as run

    parties = read_roster(require_readable(roster, "--roster"))
    ensure_registered(measure_on)
    config = _agreed_budget(config, yes=yes)
    result = run(config, parties, posting(patience), measured_on=measure_on, progress=partial(typer.echo, err=True))
    paid = (
        f"model {result.model.key[:12]} of {', '.join(result.took_part)}; each party's account paid for epsilon "
        f"{result.epsilon:g} at delta {result.delta:g}, for a {result.result.identity.dataset.unit}"
    )
    return Answer(result.model_dump(mode="json"), [paid, *shown_results([result.result], elsewhere=True)])
