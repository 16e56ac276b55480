"""``unitball sweep``, ``unitball reproduce`` and ``unitball report``: experiments, from one command each."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from deployments.cli.app import app
from deployments.cli.common import (
    DaskOption,
    JsonFlag,
    RootOption,
    console,
    print_json,
    print_root,
    progress,
    read_text,
    use_root,
)
from deployments.cli.options import options_of
from dpalgos.errors import ParameterError
from storage.errors import InputError, RefusedError
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.settings import current_root

if TYPE_CHECKING:
    from tasks.experiments.records import Experiment

_Workers = Annotated[int | None, typer.Option(min=1, help="Points at once; by the specification or the machine.")]

# A terminal holds no more; the page has them all.
_COLUMNS = 8


_FRONTIER = "unitball,noisy-gd,fed-dpdr-dpml,fed-dpdr-dpml-published,dppca-svm,unitball-without-noise"


def _command(words: Sequence[str]) -> str:
    return shlex.join(["unitball", *words])


@app.command(epilog="Example: unitball sweep docs/examples/sweep.yaml --workers 2")
def sweep(
    specification: Annotated[Path, typer.Argument(help="YAML: name, set, grid (see docs/reproduction.md).")],
    workers: _Workers = None,
    dask: DaskOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the points and run none.")] = False,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Run a grid over any parameters: side by side, each point once, failures recorded."""
    from tasks.datasets.description import find_dataset
    from tasks.experiments.specification import SweepSpec, load
    from tasks.runtime.cluster import require_scheduler
    from tasks.runtime.engine import prepare_engine, quick_flows

    use_root(root)
    spec = load(SweepSpec, read_text(specification, "SPECIFICATION"), str(specification))
    points = spec.points()
    if dry_run:
        for point in points:
            console().print(point.description, soft_wrap=True)
        print_root()
        return
    for dataset in {point.config.dataset for point in points}:
        find_dataset(dataset)
    require_scheduler(dask)
    prepare_engine(current_root())
    with progress(f"sweep {spec.name}", stages=["points"]), quick_flows():
        from flows.reproduction import report_sweep
        from flows.sweep import run_sweep

        result = run_sweep(spec, workers=workers, dask=dask)
        experiment = report_sweep(spec, result, _command(["sweep", str(specification)]))
    if json:
        print_json(result.model_dump(mode="json"))
    else:
        _show(experiment)
        done = len(result.outcomes) - len(result.failed)
        console().print(
            f"{done} done ({result.reused} of them before), {len(result.failed)} failed"
            + ("." if result.seconds is None else f", {result.seconds:.1f} s.")
        )
        print_root()
    if result.failed:
        raise typer.Exit(1)


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
def frontier(
    config: TrainingConfig,
    algorithms: Annotated[str, typer.Option(help="Named systems, separated by commas.")] = _FRONTIER,
    epsilons: Annotated[str, typer.Option(help="Budgets, separated by commas.")] = "0.1,0.3,1,3,8",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Seeds of noise and partition, from 0.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Write the files here; default under the root.")] = None,
    workers: _Workers = None,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Draw accuracy against epsilon: the recommended system, the papers' and training without privacy. Public sets."""
    from tasks.datasets.description import find_dataset
    from tasks.runtime.engine import prepare_engine, quick_flows

    use_root(root)
    if find_dataset(config.dataset).private:
        raise RefusedError(
            f"{config.dataset} is private, and a frontier is many runs with public seeds; draw it on a public set"
        )
    budgets = _numbers(epsilons)
    prepare_engine(current_root())
    with progress(f"frontier of {config.dataset}", stages=["points"]), quick_flows():
        from flows.frontier import FRONTIER_PLOT, frontier_sweep
        from flows.reproduction import report_sweep
        from flows.sweep import run_sweep

        spec = frontier_sweep(config, algorithms.split(","), budgets, seeds)
        result = run_sweep(spec, workers=workers, dask=None)
        words = _frontier_words(config, algorithms, epsilons, seeds)
        where = out.absolute() if out else None
        experiment = report_sweep(spec, result, _command(words), plot=FRONTIER_PLOT, scale="frontier", out=where)
    if json:
        print_json(experiment.model_dump(mode="json"))
    else:
        _show(experiment)
        print_root()
    if experiment.failed:
        raise typer.Exit(1)


def _frontier_words(config: TrainingConfig, algorithms: str, epsilons: str, seeds: int) -> list[str]:
    """Return the words of the command that draws the same frontier."""
    words = ["frontier", "--dataset", config.dataset, "--algorithms", algorithms, "--epsilons", epsilons]
    words += ["--seeds", str(seeds)]
    # Whatever else is an option of this command is one value.
    given = config.model_dump(mode="json", exclude_defaults=True, exclude={"dataset", "algorithm"})
    return words + [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _numbers(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(f"--epsilons is {text!r}; give numbers separated by commas, as 0.1,1,3") from None
    if not all(0 < number <= 1000 for number in found) or len(set(found)) < len(found):
        raise ParameterError(f"--epsilons is {text!r}; each is above 0 and at most 1000, and there once")
    return found


@app.command(epilog="Example: unitball reproduce wang2024-fig3  ·  unitball reproduce --list")
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
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Redraw a paper's figure or table from honest runs, beside what the paper claims."""
    from tasks.runtime.cluster import require_scheduler
    from tasks.runtime.engine import prepare_engine, quick_flows

    use_root(root)
    if every:
        _list(json)
        return
    if name is None:
        raise ParameterError(
            "name a figure or table, for example wang2024-fig3; all of them: unitball reproduce --list"
        )
    if path is not None and scale == "quick":
        raise ParameterError("--scale quick runs on bundled data and takes no --path; use --scale full")
    _require_scale(name, scale)
    require_scheduler(dask)
    prepare_engine(current_root())
    with progress(f"{name} ({scale})", stages=["points"]), quick_flows():
        from flows.reproduction import reproduce as run

        given = {"--scale": scale, "--dataset": dataset, "--path": path}
        words = [part for option, value in given.items() if value is not None for part in (option, str(value))]
        experiment = run(
            name,
            scale,
            dataset,
            path.absolute() if path else None,
            _command(["reproduce", name, *words]),
            out.absolute() if out else None,
            workers,
            dask,
        )
    if json:
        print_json(experiment.model_dump(mode="json"))
    else:
        _show(experiment)
        print_root()
    if experiment.failed:
        raise typer.Exit(1)


def _require_scale(name: str, scale: str) -> None:
    """Say what is wrong before an engine is started."""
    from flows.specs import load_reproduction

    known = [one for one, _ in load_reproduction(name).scales()]
    if scale not in known:
        raise ParameterError(f"{name} has no scale {scale!r}; it has: {', '.join(known)}")


def _list(json: bool) -> None:
    from flows.specs import known_reproductions, load_reproduction

    known = [load_reproduction(name) for name in known_reproductions()]
    if json:
        print_json({"reproductions": [one.model_dump(mode="json") for one in known]})
        return
    table = Table(title="Figures and tables", title_justify="left", box=SIMPLE)
    for heading in ("name", "what", "quick on", "full on: files needed"):
        table.add_column(heading, no_wrap=heading == "name")
    for one in known:
        full = "–" if one.full is None else "\n".join(f"{need.name}: {need.files}" for need in one.full.data)
        table.add_row(one.name, one.title, ", ".join(need.name for need in one.quick.data), full)
    console().print(table)
    print_root()


def _show(experiment: Experiment) -> None:
    from tasks.experiments.records import experiments_folder

    out = console()
    for table in experiment.tables:
        shown = Table(title=experiment.title or experiment.name, title_justify="left", box=SIMPLE)
        for heading in table.head[:_COLUMNS]:
            shown.add_column(heading)
        for cells in table.body:
            shown.add_row(*cells[:_COLUMNS])
        out.print(shown)
    for one in experiment.verdicts:
        measured = "–" if one.measured is None else f"{one.measured:.4g}"
        out.print(f"{one.word}: {one.says}; measured {measured}, wanted {one.wanted}", soft_wrap=True)
    for number in experiment.compared:
        where = ", ".join(str(value) for value in number.where.values())
        out.print(f"{where}: {number.metric} {number.measured:.6g}, the paper {number.paper:g}", soft_wrap=True)
    for line in experiment.missing:
        out.print(f"missing: {line}", soft_wrap=True, markup=False)
    for line in experiment.failed:
        out.print(f"failed: {line}", soft_wrap=True, markup=False)
    folder = experiments_folder() / f"{experiment.name}-{experiment.scale}"
    if folder.is_dir():
        out.print(f"{os.fspath(folder)}: rows, figure, report.html", soft_wrap=True, style="dim")


@app.command(epilog="Example: unitball report wang2024-fig3-quick --out fig3.html")
def report(
    name: Annotated[str | None, typer.Argument(help="An experiment that was run; all if left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the one page here; default beside its rows.")] = None,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Write one self-contained HTML page an experiment, from what was stored when it ran."""
    from storage.atomic import write_bytes
    from tasks.experiments.pages import page
    from tasks.experiments.records import load_experiment, stored_experiments

    use_root(root)
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
    if json:
        print_json({"pages": places})
    else:
        sys.stdout.writelines(f"{place}\n" for place in places.values())
        print_root()
