"""``unitball sweep``, ``unitball reproduce`` and ``unitball report``: experiments, from one command each."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from deployments.cli.common import Answer, DaskOption, answered, options_of, read_text, running, table
from deployments.cli.entry_point import app
from dpalgos.errors import ParameterError
from storage.errors import InputError, RefusedError
from tasks.planning.configuration import TrainingConfig

if TYPE_CHECKING:
    from tasks.experiments.records import Experiment

_Workers = Annotated[int | None, typer.Option(min=1, help="Points at once; if empty as specified, or by the machine.")]

# A terminal holds no more; the page has them all.
_COLUMNS = 8


_FRONTIER = "unitball,noisy-gd,fed-dpdr-dpml,fed-dpdr-dpml-published,dppca-svm,unitball-without-noise"


@app.command(epilog="Example: unitball sweep docs/examples/sweep.yaml --workers 2")
@answered
def sweep(
    specification: Annotated[Path, typer.Argument(help="YAML: name, set, grid (see docs/reproduction.md).")],
    workers: _Workers = None,
    dask: DaskOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the points and run none.")] = False,
) -> Answer:
    """Run a grid over any parameters: in parallel, each point once, failures recorded."""
    from tasks.datasets.registration import find_dataset
    from tasks.experiments.specification import SweepSpec, load
    from tasks.runtime.cluster import require_scheduler

    spec = load(SweepSpec, read_text(specification, "SPECIFICATION"), str(specification))
    points = spec.points()
    if dry_run:
        listed = [point.description for point in points]
        return Answer({"points": listed}, listed)
    for dataset in {point.config.dataset for point in points}:
        find_dataset(dataset)
    require_scheduler(dask)
    with running(f"sweep {spec.name}", stages=["points"]):
        from flows.reproduction import report_sweep
        from flows.sweep import run_sweep

        result = run_sweep(spec, workers=workers, dask=dask)
        experiment = report_sweep(spec, result, shlex.join(["unitball", "sweep", str(specification)]))
    done = len(result.outcomes) - len(result.failed)
    counts = f"{done} done ({result.reused} of them before), {len(result.failed)} failed"
    ending = "." if result.seconds is None else f", {result.seconds:.1f} s."
    error = typer.Exit(1) if result.failed else None
    return Answer(result.model_dump(mode="json"), [*_shown(experiment), counts + ending], error)


@app.command(epilog="Example: unitball frontier --dataset digits")
@options_of(
    TrainingConfig,
    without=[
        "algorithm",
        "projection",
        "trainer",
        "aggregation",
        "features",
        "public_dataset",
        "epsilon",
        "seed",
        "partition_seed",
        "repetition",
        "evaluation",
        "roc",
        "deadline",
        "overrun",
        "tune",
        "parameters",
        "secure",
        "sizes",
    ],
)
@answered
def frontier(
    config: TrainingConfig,
    algorithms: Annotated[str, typer.Option(help="Named systems, separated by commas.")] = _FRONTIER,
    epsilons: Annotated[str, typer.Option(help="Budgets, separated by commas.")] = "0.1,0.3,1,3,8",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Seeds of noise and partition, from 0.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Write the files here; default under the root.")] = None,
    workers: _Workers = None,
) -> Answer:
    """Draw accuracy against epsilon: the recommended system, the papers' and training without privacy. Public sets."""
    from tasks.datasets.registration import find_dataset

    if find_dataset(config.dataset).private:
        raise RefusedError(
            f"{config.dataset} is private, and a frontier is many runs with public seeds; draw it on a public set"
        )
    budgets = _numbers(epsilons)
    with running(f"frontier of {config.dataset}", stages=["points"]):
        from flows.reproduction import report_sweep
        from flows.sweep import FRONTIER_PLOT, frontier_sweep, run_sweep
        from tasks.tracking.reporting import command_of

        spec = frontier_sweep(config, algorithms.split(","), budgets, seeds)
        result = run_sweep(spec, workers=workers, dask=None)
        own = ["--algorithms", algorithms, "--epsilons", epsilons, "--seeds", str(seeds)]
        command = f"{command_of(config.model_copy(update={'algorithm': None}), 'frontier')} {shlex.join(own)}"
        where = out.absolute() if out else None
        experiment = report_sweep(spec, result, command, plot=FRONTIER_PLOT, scale="frontier", out=where)
    return _answer(experiment)


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(f"--epsilons is {text!r}; give numbers separated by commas, as 0.1,1,3") from None
    if not all(0 < number <= 1000 for number in numbers) or len(set(numbers)) < len(numbers):
        raise ParameterError(f"--epsilons is {text!r}; each is above 0 and at most 1000, and there once")
    return numbers


@app.command(epilog="Example: unitball reproduce wang2024-fig3  ·  unitball reproduce --list")
@answered
def reproduce(
    name: Annotated[str | None, typer.Argument(help="A figure or table (unitball reproduce --list).")] = None,
    every: Annotated[
        bool, typer.Option("--list", help="List the figures and tables with the files they need.")
    ] = False,
    scale: Annotated[str, typer.Option(help="quick: bundled data, about a minute; full: the paper's data.")] = "quick",
    dataset: Annotated[str | None, typer.Option(help="One of its data sets, or any registered one instead.")] = None,
    path: Annotated[Path | None, typer.Option(help="The set's files, or a folder that holds several sets'.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the files here; default under the root.")] = None,
    workers: _Workers = None,
    dask: DaskOption = None,
) -> Answer:
    """Redraw a paper's figure or table from runs of this code, beside what the paper claims."""
    from flows.specs import load_reproduction
    from tasks.runtime.cluster import require_scheduler

    if every:
        return _known()
    if name is None:
        raise ParameterError(
            "name a figure or table, for example wang2024-fig3; all of them: unitball reproduce --list"
        )
    if path is not None and scale == "quick":
        raise ParameterError("--scale quick runs on bundled data and takes no --path; use --scale full")
    # What is wrong is said before an engine is started.
    load_reproduction(name).at(scale)
    require_scheduler(dask)
    with running(f"{name} ({scale})", stages=["points"]):
        from flows.reproduction import reproduce as run

        options = {"--scale": scale, "--dataset": dataset, "--path": path}
        arguments = [part for option, value in options.items() if value is not None for part in (option, str(value))]
        experiment = run(
            name,
            scale,
            dataset,
            path.absolute() if path else None,
            shlex.join(["unitball", "reproduce", name, *arguments]),
            out.absolute() if out else None,
            workers,
            dask,
        )
    return _answer(experiment)


def _known() -> Answer:
    from flows.specs import known_reproductions, load_reproduction

    known = [load_reproduction(name) for name in known_reproductions()]
    rows = (
        (
            one.name,
            one.title,
            ", ".join(need.name for need in one.quick.data),
            None if one.full is None else ", ".join(need.name for need in one.full.data),
        )
        for one in known
    )
    shown = table(("name", "what", "quick on", "full on"), rows, title="Figures and tables")
    shown.columns[0].no_wrap = True
    # Once, not with each figure that is drawn from them.
    files = {need.name: need.files for one in known if one.full for need in one.full.data if need.files}
    needed = table(("data set", "files in --path"), sorted(files.items()), title="What --scale full reads")
    return Answer({"reproductions": [one.model_dump(mode="json") for one in known]}, [shown, needed])


def _answer(experiment: Experiment) -> Answer:
    error = typer.Exit(1) if experiment.failed else None
    return Answer(experiment.model_dump(mode="json"), _shown(experiment), error)


def _shown(experiment: Experiment) -> Iterator[RenderableType]:
    from tasks.experiments.records import experiments_folder

    for one in experiment.tables:
        cells = (body[:_COLUMNS] for body in one.body)
        yield table(one.head[:_COLUMNS], cells, title=experiment.title or experiment.name)
    for verdict in experiment.verdicts:
        yield f"{verdict.summary}: {verdict.says}; measured {verdict.shown}, wanted {verdict.wanted}"
    for number in experiment.compared:
        where = ", ".join(str(value) for value in number.where.values())
        yield f"{where}: {number.metric} {number.measured:.6g}, the paper {number.paper:g}"
    yield from (f"missing: {line}" for line in experiment.missing)
    yield from (f"failed: {line}" for line in experiment.failed)
    folder = experiments_folder() / f"{experiment.name}-{experiment.scale}"
    if folder.is_dir():
        yield f"{os.fspath(folder)}: results, figure, report.html"


@app.command(epilog="Example: unitball report wang2024-fig3-quick --out fig3.html")
@answered
def report(
    name: Annotated[str | None, typer.Argument(help="An experiment that was run; all if left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the one page here; default beside its rows.")] = None,
) -> Answer:
    """Write one self-contained HTML page for each experiment, from its stored results."""
    from storage.atomic import write_bytes
    from tasks.experiments.records import load_experiment, page, stored_experiments

    chosen = [name] if name is not None else stored_experiments()
    if not chosen:
        raise InputError("no experiment was run in this root yet: unitball reproduce --list")
    if out is not None and name is None:
        raise ParameterError("--out is for one page: name the experiment")
    places = {}
    for one in chosen:
        experiment, drawing, folder = load_experiment(one)
        places[one] = out or folder / "report.html"
        write_bytes(places[one].absolute(), page(experiment, drawing).encode())
    return Answer({"pages": places}, map(str, places.values()))
