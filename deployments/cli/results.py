"""``unitball results``: SQL over what was trained, measured, released and charged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.table import Table

from deployments.cli.app import app
from deployments.cli.common import JsonFlag, RootOption, console, print_json, print_root, use_root

_EVERY_RUN = "SELECT algorithm, dataset, trust, config_epsilon, epsilon_spent, delta_spent, accuracy, seconds FROM runs"

# Columns with less than this on average cannot be read; wider answers are printed one record after another.
_NARROWEST = 8


@app.command(
    epilog='Example: unitball results "SELECT algorithm, max(accuracy) FROM runs GROUP BY algorithm ORDER BY 2 DESC"'
)
def results(
    sql: Annotated[
        str, typer.Argument(help="One SELECT over the views runs, metrics, releases and charges.")
    ] = _EVERY_RUN,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Ask the results something in SQL (DuckDB); the query sees these views and no file."""
    from tasks.experiments.results import query_results

    use_root(root)
    rows = query_results(sql)
    if json:
        print_json({"rows": rows})
        return
    screen = console()
    if not rows:
        screen.print("no rows")
    elif len(rows[0]) * _NARROWEST <= screen.width:
        screen.print(_as_table(rows))
    else:
        for number, row in enumerate(rows, 1):
            screen.print(_as_record(row, f"row {number} of {len(rows)}"))
    print_root()


def _as_table(rows: Sequence[Mapping[str, object]]) -> Table:
    table = Table()
    for heading in rows[0]:
        table.add_column(heading)
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    return table


def _as_record(row: Mapping[str, object], title: str) -> Table:
    table = Table(title=title, show_header=False)
    for heading, value in row.items():
        table.add_row(heading, _cell(value))
    return table


def _cell(value: object) -> str:
    return "–" if value is None else str(value)
