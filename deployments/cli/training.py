"""``unitball train`` and ``compare``: one run, or several on one data set at one budget."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deployments.cli.common import (
    Answer,
    DaskOption,
    YesOption,
    agree,
    answered,
    options_of,
    require_readable,
    running,
    say_charged_before,
    say_note,
)
from deployments.cli.entry_point import app
from deployments.cli.explaining import chosen, expected_run, explained_run, warn
from deployments.cli.given import refuse_beside
from deployments.cli.results_table import shown_results
from dpalgos.parameters import ParameterError
from storage.errors import InputError, RefusedError
from storage.refs import Visibility
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.settings import current_layout, current_root

if TYPE_CHECKING:
    from tasks.preparation.prepare import Prepared
    from tasks.tracking.results import RunResult


FIRST = ("dataset", "epsilon", "delta", "algorithm", "trust", "parties", "features")
"""Options that most runs need."""
DEFAULT_COMPARISON = (
    "unitball,unitball-without-noise,non-private,dpml,dpdr-dpml,fed-dpdr-dpml,fed-dpdr-dpml-published,noisy-gd"
)


@app.command(epilog="Example: unitball train --dataset digits --epsilon 1")
@options_of(TrainingConfig, named={"parameters": "--param", "tuned_on": "--on"}, first=FIRST)
@answered
def train(
    config: TrainingConfig,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print which steps would run and why; run and charge nothing.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Estimate operations, memory and budget; run nothing.")] = False,
    path: Annotated[Path | None, typer.Option(help="Ingest this file or folder before training.")] = None,
    format: Annotated[str | None, typer.Option(help="Format of --path. Required except for bundled data sets.")] = None,
    public: Annotated[bool, typer.Option("--public", help="The rows of --path are public.")] = False,
    yes: YesOption = False,
    dask: DaskOption = None,
) -> Answer:
    """Train, charge, evaluate and log one model."""
    if plan and explain:
        raise ParameterError("--plan and --explain are both given: give one of them")
    for option in ("--plan", "--explain"):
        refuse_beside(option, "runs nothing", ["--dask", "--yes"])
    if path is None and (format is not None or public):
        raise ParameterError("--format and --public apply to rows that are ingested: add --path")
    if path is not None:
        _ingest(config.dataset, path, format, public)
    if explain:
        return explained_run(config)
    if plan:
        return expected_run(config)
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


@app.command(epilog="Example: unitball compare --dataset digits --epsilon 1")
@options_of(
    TrainingConfig,
    without=["algorithm", "projection", "trainer", "aggregation", "tune", "tuned_on"],
    named={"parameters": "--param"},
    first=FIRST,
    as_in_train=True,
)
@answered
def compare(
    config: TrainingConfig,
    algorithms: Annotated[
        str, typer.Option(help="Systems of `unitball algorithms`, separated by commas.")
    ] = DEFAULT_COMPARISON,
    yes: YesOption = False,
) -> Answer:
    """Train several algorithms on one data set and compare them."""
    shared = config.model_dump(exclude={"algorithm"})
    configs = [TrainingConfig(algorithm=name, **shared) for name in algorithms.split(",")]
    results = _run(configs, f"comparing on {config.dataset}", yes=yes)
    return Answer({"results": [result.model_dump(mode="json") for result in results]}, shown_results(results))


def _run(configs: Sequence[TrainingConfig], title: str, *, yes: bool, dask: str | None = None) -> list[RunResult]:
    from tasks.host.engine import started_ahead

    with started_ahead(current_root(), module="tasks.release.preflight"):
        from tasks.host.cluster import over_cluster, require_scheduler, task_runner

        require_scheduler(dask)
        plans = _agreed_plans(configs, yes=yes)
    if not os.environ.get("UNITBALL_DEBUG"):
        # Prefect shows what it catches with a traceback; the command says it in one line.
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    with running(title):
        from flows.federated_training import training

        with over_cluster(dask):
            if len(plans) > 1:
                from flows.comparison import comparing

                return comparing(plans)([one.config for one in plans])
            train_flow = training(plans[0])
            if dask is not None:
                train_flow = train_flow.with_options(task_runner=task_runner(current_layout(), None, dask))
            return [train_flow(plans[0].config)]


def _agreed_plans(configs: Sequence[TrainingConfig], *, yes: bool) -> list[Prepared]:
    """Return the plans of runs on one data set, whose price the command line has agreed to."""
    from tasks.datasets.registration import ensure_registered, find_dataset
    from tasks.release.preflight import charged_before, require_feasible
    from tasks.release.prices import measures_later, price_of, with_epsilon

    ensure_registered(configs[0].dataset, configs[0].public_dataset)
    dataset = find_dataset(configs[0].dataset)
    plans: list[Prepared] = []
    for config in configs:
        try:
            plans.append(require_feasible(with_epsilon(chosen(config), dataset)))
        except ParameterError as error:
            if len(configs) == 1:
                raise
            raise ParameterError(f"{config.algorithm}: {error}; or remove it from --algorithms") from None
    later = any(map(measures_later, plans))
    stated = all(config.epsilon is not None for config in configs)
    # A model's epsilon has paid for its training; what measures it afterwards is charged on top.
    way_out = "give --yes to measure a model that is charged already" if stated else "give --epsilon, or --yes"
    if any(one.basis is not None and one.roc for one in configs):
        say_note(
            "with --basis, --roc charges for AUC, probabilities and --aim alone: prediction sets are refused there"
        )
    agree(price_of(plans), asks=later or not stated, yes=yes, way_out=way_out)
    for one in plans:
        warn(one)
        if (account := charged_before(one)) is not None:
            say_charged_before(account, "this command" if len(configs) == 1 else str(one.config.algorithm))
    return plans
