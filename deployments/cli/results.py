"""``unitball results`` and ``unitball algorithms``: SQL over runs, and what is registered."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from deployments.cli.common import Answer, answered, console, table
from deployments.cli.entry_point import app
from dpalgos.errors import ParameterError
from storage.atomic import write_bytes
from storage.errors import InputError

Record = dict[str, Any]
_FACTS = ("algorithm", "dataset", "trust", "config_epsilon", "epsilon_spent", "delta_spent")
_SHOWN = (*_FACTS, "accuracy", "accuracy_low", "accuracy_high", "mae", "r2", "seconds")
_ERRORS = "SELECT run_key, metric, value FROM metrics WHERE party = 'all' AND metric IN ('mae', 'r2')"

# Columns with less than this on average cannot be read; wider answers are printed one record after another.
_NARROWEST = 8
# Curves and matrices are for --json and figures.
_LONGEST = 400


@app.command(
    epilog='Example: unitball results "SELECT algorithm, max(accuracy) FROM runs GROUP BY algorithm ORDER BY 2 DESC"'
)
@answered
def results(
    sql: Annotated[
        str | None,
        typer.Argument(help="One SELECT over the views runs, metrics, releases and charges; every run if left out."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Write a figure (PNG) too. Several runs: accuracy against epsilon, or the last number of each "
            "against the first. One run: its confusion matrix and ROC."
        ),
    ] = None,
) -> Answer:
    """Query the results in SQL (DuckDB); a query sees these views and no file."""
    from tasks.experiments.results import query_results

    records = query_results("SELECT * FROM runs" if sql is None else sql)
    if sql is None:
        records = _with_errors(records, query_results)
    if plot is not None:
        _plot(records, plot)
    if sql is None:
        used = [name for name in _SHOWN if any(record.get(name) is not None for record in records)]
        records = [{name: record.get(name) for name in used} for record in records]
    return Answer({"rows": records}, _shown(records))


def _shown(records: Sequence[Record]) -> Iterator[RenderableType]:
    if not records:
        yield "no rows"
    elif len(records[0]) * _NARROWEST <= console().width:
        yield table([*records[0]], (map(_cell, record.values()) for record in records))
    else:
        for number, record in enumerate(records, 1):
            shown = table(("", ""), ((name, _cell(value)) for name, value in record.items()))
            shown.title, shown.show_header = f"row {number} of {len(records)}", False
            yield shown


def _with_errors(records: list[Record], query: Callable[[str], list[Record]]) -> list[Record]:
    """Return runs with their errors beside the accuracy, where some predict numbers."""
    if all(record.get("accuracy") is not None or record.get("measured_on") is None for record in records):
        return records
    errors = {(one["run_key"], one["metric"]): one["value"] for one in query(_ERRORS)}
    return [{**record, **{name: errors.get((record["run_key"], name)) for name in ("mae", "r2")}} for record in records]


def _plot(records: list[Record], path: Path) -> None:
    """Write a figure of one run, or of several.

    Raises
    ------
    InputError
        If there is nothing to draw, or the file exists.
    """
    if path.exists():
        raise InputError(f"{path} exists; name another file, or remove it first")
    if len(records) == 1 and records[0].get("confusion"):
        from tasks.tracking.figures import draw_measured

        classes, confusion, roc = (json_module.loads(str(records[0][name])) for name in ("classes", "confusion", "roc"))
        if classes:
            write_bytes(path, draw_measured(classes, confusion, roc, str(records[0]["measured_on"])), mode=0o644)
            return
    import pandas as pd
    from matplotlib.figure import Figure

    from tasks.runtime.plots import png_of
    from unitball.training import plot

    frame = pd.DataFrame(records)
    numbers = [str(name) for name in frame.select_dtypes("number").columns if frame[name].notna().any()]
    x = next((name for name in ("config_epsilon", "epsilon") if name in numbers), numbers[0] if numbers else "")
    axes_left = [name for name in numbers if name != x]
    if not axes_left:
        raise InputError(
            f"the answer's columns ({', '.join(map(str, frame.columns)) or 'none'}) hold fewer than two with numbers, "
            "and it is not one measured run with all its columns: ask for two numbers a row, or for such a run"
        )
    y = next((name for name in ("accuracy", "r2") if name in axes_left), axes_left[-1])
    if "algorithm" not in frame:
        frame["algorithm"] = y
    # Rows of different data sets are no line together.
    panels = [*frame.groupby("dataset", sort=False)] if "dataset" in frame else [("", frame)]
    figure = Figure(figsize=(6.4 * len(panels), 4.8), layout="constrained")
    for (name, own), axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        plot(own, x, y, axes).set_title(str(name))
    write_bytes(path, png_of(figure, 110), mode=0o644)


def _cell(value: object) -> str | None:
    if value is None:
        return None
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


@app.command(epilog="Example: unitball algorithms --kind systems --proved")
@answered
def algorithms(
    kind: Annotated[str | None, typer.Option(help="systems, projections, trainers, evaluators or aggregators.")] = None,
    proved: Annotated[bool, typer.Option("--proved", help="Only what may run on private rows.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the whole page of guarantees.")] = False,
) -> Answer:
    """List the algorithms: name, kind, trust, what is proved, what is claimed, source."""
    from tasks.experiments.registered import describe_all

    if markdown:
        from tasks.experiments.registered import render

        sys.stdout.write(render())
        raise typer.Exit
    described = describe_all()
    kinds = dict.fromkeys(entry["kind"] for entry in described)
    if kind is not None and kind not in kinds:
        raise ParameterError(f"--kind {kind!r} is none of {', '.join(kinds)}")
    entries = [
        entry for entry in described if (kind is None or entry["kind"] == kind) and (not proved or entry["proved"])
    ]
    rows = (
        (one["name"], one["kind"], ", ".join(one["trust"]), _proved(one), one["claim"], one["source"])
        for one in entries
    )
    headings = ("name", "kind", "trust", "proved", "claim", "source")
    return Answer({"algorithms": entries}, [table(headings, rows, title="Algorithms")])


def _proved(entry: dict[str, Any]) -> str:
    if entry["proved"]:
        return str(entry["proved"])
    counterpart = f"; sound: {entry['sound_counterpart']}" if entry["sound_counterpart"] else ""
    return f"[red]none[/]{counterpart}"
