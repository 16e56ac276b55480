"""``unitball results``: SQL over what was trained, measured, released and charged."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from deployments.cli.app import app
from deployments.cli.common import JsonFlag, RootOption, console, print_json, use_root

_EVERY_RUN = "SELECT algorithm, dataset, trust, config_epsilon, epsilon_spent, delta_spent, accuracy, seconds FROM runs"


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
    from tasks.results import query_results

    use_root(root)
    rows = query_results(sql)
    if json:
        print_json({"rows": rows})
        return
    table = Table()
    for heading in rows[0] if rows else ("no rows",):
        table.add_column(heading)
    for row in rows:
        table.add_row(*("–" if value is None else str(value) for value in row.values()))
    console().print(table)
