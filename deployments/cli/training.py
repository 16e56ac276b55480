"""``unitball train`` and ``unitball compare``: run the flow and show what came out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deployments.cli.common import Answer, DaskOption, answered, require_readable, running
from deployments.cli.entry_point import app
from deployments.cli.options import options_of
from deployments.cli.run_results import shown_results
from dpalgos.errors import ParameterError
from storage.errors import InputError, RefusedError
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.settings import current_layout, current_root

if TYPE_CHECKING:
    from tasks.planning.plans import RunPlan
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
    dask: DaskOption = None,
) -> Answer:
    """Train one model over the parties' rows, charge what it costs, evaluate and log it."""
    if path is None and (format is not None or public):
        raise ParameterError("--format and --public speak of rows to ingest on the way: say which with --path")
    if path is not None:
        _ingest(config.dataset, path, format, public)
    if explain:
        return _explained(config)
    if plan:
        return _expectation(config)
    results = _run([config], f"{config.system} on {config.dataset}", dask)
    return Answer(results[0].model_dump(mode="json"), shown_results(results))


def _ingest(name: str, path: Path, format: str | None, public: bool) -> None:
    from storage.refs import Visibility
    from tasks.datasets.registration import ingest
    from tasks.datasets.request import IngestRequest

    visibility = Visibility.PUBLIC if public else Visibility.PRIVATE
    request = IngestRequest(name=name, path=require_readable(path, "--path"), format=format, visibility=visibility)
    try:
        ingest(request)
    except (InputError, RefusedError) as error:
        # What is advised are options of that command; it declares more than there is room for here.
        raise type(error)(f"unitball ingest {name}: {error}") from None


def _explained(config: TrainingConfig) -> Answer:
    from tasks.release.preflight import require_feasible

    plan = require_feasible(config)
    if plan is None:
        raise InputError(
            f"partition {config.partition} depends on what rows contain: the plan is known only at the run"
        )
    _warn(plan)
    parts = {
        release.algorithm.kind.removesuffix("s"): {"name": release.name, **release.algorithm.parameters}
        for release in (*plan.projections[:1], *plan.models[:1])
    }
    lines = [f"{plan.system} under trust {plan.trust}"]
    lines += [f"  - {reason}" for reason in plan.reasons or ("parts and parameters are those named, or defaults",)]
    for kind, part in parts.items():
        parameters = ", ".join(f"{name}={value}" for name, value in part.items() if name != "name")
        lines.append(f"  {kind} {part['name']}" + (f": {parameters}" if parameters else ""))
    explained = {"system": plan.system, "trust": plan.trust, "reasons": plan.reasons, "warning": plan.warning}
    return Answer({**explained, "parts": parts}, lines)


def _expectation(config: TrainingConfig) -> Answer:
    from tasks.release.preflight import expect_run

    expected = expect_run(config)
    budget = "none" if expected.epsilon is None else f"epsilon {expected.epsilon:g} at delta {expected.delta:.2g}"
    tuned = f", the best of {expected.candidates} private candidates" if expected.candidates > 1 else ""
    charged = f"; {expected.charged} of them charged before, at no further cost" if expected.charged else ""
    each = expected.rows_per_person
    people = f" people of at most {each} {'row' if each == 1 else 'rows'} each" if expected.person else ""
    lines = {
        "rows": f"{expected.rows:,}{people} × {expected.dimension} over {expected.parties} parties",
        "releases": f"{expected.releases}{tuned}, budget {budget}{charged}",
        "passes": f"{expected.passes} over {'rows read from disk' if expected.streamed else 'rows kept in memory'}",
        "operations": f"{expected.operations:.2g} floating-point operations in matrix products",
        "reading": f"{expected.read_bytes / 2**20:,.0f} MiB of rows",
        "memory": f"about {expected.memory_bytes / 2**20:,.0f} MiB",
        "seconds": f"about {expected.seconds:g}, the engine's start included",
    }
    return Answer(expected.to_json(), [f"{name:<11}{line}" for name, line in lines.items()])


def _warn(plan: RunPlan | None) -> None:
    from tasks.release.preflight import cost_of_measuring_later

    for warning in () if plan is None else (plan.warning, cost_of_measuring_later(plan)):
        if warning:
            typer.echo(f"warning: {warning}", err=True)


@app.command(epilog="Example: unitball compare --dataset digits --epsilon 1")
@options_of(
    TrainingConfig,
    without=["algorithm", "projection", "trainer", "aggregation", "tune"],
    named={"parameters": "--param"},
    defaults={"epsilon": 1.0},
)
@answered
def compare(
    config: TrainingConfig,
    algorithms: Annotated[str, typer.Option(help="Named systems, separated by commas.")] = DEFAULT_COMPARISON,
) -> Answer:
    """Train several algorithms on one data set at one budget and show them side by side."""
    shared = config.model_dump(exclude={"algorithm"})
    configs = [TrainingConfig(algorithm=name, **shared) for name in algorithms.split(",")]
    results = _run(configs, f"comparing on {config.dataset}")
    return Answer({"results": [result.model_dump(mode="json") for result in results]}, shown_results(results))


def _run(configs: Sequence[TrainingConfig], title: str, dask: str | None = None) -> list[RunResult]:
    from tasks.runtime.engine import started_ahead

    with started_ahead(current_root(), beside="tasks.release.preflight"):
        from tasks.release.preflight import require_feasible
        from tasks.runtime.cluster import require_scheduler, task_runner

        require_scheduler(dask)
        for config in configs:
            try:
                _warn(require_feasible(config))
            except ParameterError as error:
                if len(configs) == 1:
                    raise
                raise ParameterError(f"{config.algorithm}: {error}; or leave it out of --algorithms") from None
    if not os.environ.get("UNITBALL_DEBUG"):
        # Prefect shows what it catches with a traceback; the command says it in one line.
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    with running(title):
        from flows.comparison import compare as compare_flow
        from flows.federated_training import train as train_flow

        if len(configs) > 1:
            return compare_flow(list(configs))
        if dask is not None:
            train_flow = train_flow.with_options(task_runner=task_runner(current_layout(), None, dask))
        return [train_flow(configs[0])]
