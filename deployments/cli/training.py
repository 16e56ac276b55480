"""``unitball train`` and ``unitball compare``: run the flow and show what came out."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from deployments.cli.app import app
from deployments.cli.common import JsonFlag, RootOption, console, print_json, require_readable, use_root
from deployments.cli.options import options_of
from dpalgos.errors import ParameterError
from dpalgos.rounding import rounded_up
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.progress import listen
from tasks.runtime.settings import current_root
from tasks.runtime.tracking_server import own_database, server_address

if TYPE_CHECKING:
    from tasks.tracking.results import Proved, RunResult

DEFAULT_COMPARISON = "non-private,dpml,dpdr-dpml,fed-dpdr-dpml,fed-dpdr-dpml-published,noisy-gd"


@contextmanager
def _progress(title: str) -> Iterator[None]:
    shown = Console(stderr=True)
    if not shown.is_terminal:
        # A log is read for what went wrong, and needs no moving picture.
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=shown, transient=True) as display:
        line = display.add_task(f"{title}: starting the engine", total=None)
        with listen(lambda stage, label: display.update(line, description=f"{title}: {stage} · {label}")):
            yield


def _loss(proved: Proved | None) -> str:
    if proved is None:
        return "[red]none[/]"
    mu = "" if proved.mu is None else f", μ = {rounded_up(proved.mu, 3):g}"
    return f"{proved.statement()}{mu}, {proved.numerics}"


def _claimed(result: RunResult) -> str:
    if result.claim is None:
        return "–"
    text = str(result.claim["statement"])
    return f"{text} [red]✗[/]" if result.claim.get("flaw") else text


def _number(value: float | None, form: str = ".4g") -> str:
    return "–" if value is None else format(value, form)


def results_table(results: Sequence[RunResult]) -> Table:
    """Return the table a person reads: what ran, what is proved and claimed, what it cost, how well it does."""
    table = Table(title=f"{results[0].dataset}: what each algorithm costs and gives", title_justify="left", box=SIMPLE)
    for heading in ("algorithm", "trust"):
        table.add_column(heading, no_wrap=True)
    for heading in ("proved", "claim"):
        table.add_column(heading)
    for heading in ("ε spent", "δ spent", "accuracy", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            result.algorithm,
            result.trust,
            _loss(result.proved),
            _claimed(result),
            _number(result.epsilon_spent),
            _number(result.delta_spent, ".1g"),
            _accuracy(result),
            _number(result.seconds, ".1f") + (" (cached)" if result.cached else ""),
        )
    return table


def _accuracy(result: RunResult) -> str:
    """Return the accuracy, and what it speaks of where that is not public test rows."""
    of_test_rows = result.measured_on in (None, "test rows")
    return _number(result.accuracy, ".3f") + ("" if of_test_rows else f" ({result.measured_on})")


def _footnotes(results: Sequence[RunResult]) -> list[str]:
    notes = []
    for result in results:
        if result.claim and result.claim.get("flaw"):
            way = f" Sound counterpart: {result.sound_counterpart}." if result.sound_counterpart else ""
            notes.append(f"✗ {result.algorithm}: {result.claim['flaw']}{way}")
    return notes


def _program(name: str) -> str:
    """Return how a program beside this Python is started: by name where the shell finds that one."""
    beside = Path(sys.executable).parent / name
    found = shutil.which(name)
    return name if found and Path(found).resolve() == beside.resolve() else str(beside)


def _how_to_look() -> str:
    root = current_root()
    runs = server_address() or f"{_program('mlflow')} ui --backend-store-uri {own_database(root)}"
    return f"See the runs: {runs}  ·  PREFECT_HOME={root}/prefect {_program('prefect')} server start"


def _show(results: Sequence[RunResult]) -> None:
    out = console()
    out.print(results_table(results))
    for note in _footnotes(results):
        out.print(note, soft_wrap=True)
    out.print(_how_to_look(), soft_wrap=True, style="dim")


@app.command(epilog="Example: unitball train --dataset digits --algorithm fed-dpdr-dpml --epsilon 1")
@options_of(TrainingConfig, named={"parameters": "--param"})
def train(
    config: TrainingConfig,
    path: Annotated[Path | None, typer.Option(help="Ingest this file or folder on the way.")] = None,
    format: Annotated[str | None, typer.Option(help="Format of --path.")] = None,
    public: Annotated[bool, typer.Option("--public", help="The rows of --path are public.")] = False,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Train one model over the parties' rows, charge what it costs, evaluate and log it."""
    use_root(root)
    if path is None and (format is not None or public):
        raise ParameterError("--format and --public speak of rows to ingest on the way: say which with --path")
    if path is not None:
        _ingest(config.dataset, path, format, public)
    results = _run([config], f"{config.algorithm or config.trainer} on {config.dataset}")
    if json:
        print_json(results[0].model_dump(mode="json"))
    else:
        _show(results)


def _ingest(name: str, path: Path, format: str | None, public: bool) -> None:
    from storage.refs import Visibility
    from tasks.ingestion import IngestRequest, ingest

    visibility = Visibility.PUBLIC if public else Visibility.PRIVATE
    ingest(IngestRequest(name=name, path=require_readable(path, "--path"), format=format, visibility=visibility))


@app.command(epilog="Example: unitball compare --dataset digits --epsilon 1")
@options_of(
    TrainingConfig,
    without=["algorithm", "projection", "trainer", "aggregation"],
    named={"parameters": "--param"},
    defaults={"epsilon": 1.0},
)
def compare(
    config: TrainingConfig,
    algorithms: Annotated[str, typer.Option(help="Named systems, separated by commas.")] = DEFAULT_COMPARISON,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Train several algorithms on one data set at one budget and show them side by side."""
    use_root(root)
    shared = config.model_dump(exclude={"algorithm"})
    configs = [TrainingConfig(algorithm=name, **shared) for name in algorithms.split(",")]
    results = _run(configs, f"comparing on {config.dataset}")
    if json:
        print_json({"results": [result.model_dump(mode="json") for result in results]})
    else:
        _show(results)


def _run(configs: Sequence[TrainingConfig], title: str) -> list[RunResult]:
    from tasks.ingestion import find_dataset
    from tasks.planning.resolution import resolve
    from tasks.runtime.engine import prepare_engine, quick_flows

    for config in configs:
        # Names and numbers that do not fit are told at once, before the engine has started.
        resolve(config, find_dataset(config.dataset).dimension)
    if not os.environ.get("UNITBALL_DEBUG"):
        # Prefect shows what it catches with a traceback; the command says it in one line.
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    with _progress(title):
        # Prefect reads its settings when it is imported, so the engine comes first.
        prepare_engine(current_root())
        from flows.comparison import compare as compare_flow
        from flows.federated_training import train as train_flow

        with quick_flows():
            if len(configs) == 1:
                return [train_flow(configs[0])]
            return compare_flow(list(configs))
