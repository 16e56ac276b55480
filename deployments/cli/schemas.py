"""``unitball schema``: a schema for somebody's own table, drafted and checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from deployments.cli.app import app
from deployments.cli.common import JsonFlag, console, print_json, progress, require_readable

if TYPE_CHECKING:
    from tasks.datasets.checking import ColumnReport, SchemaReport

schema = typer.Typer(name="schema", help="Draft a table's schema, and check it against the rows.", no_args_is_help=True)
app.add_typer(schema)


@schema.command(epilog="Example: unitball schema draft docs/examples/clinic.csv -o clinic.yaml")
def draft(
    rows: Annotated[Path, typer.Argument(help="CSV or Parquet; no value of it is read.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The YAML file to write.")],
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Whether the first line names the columns.")
    ] = True,
    json: JsonFlag = False,
) -> None:
    """Write a commented schema from the names of a file's columns; types and ranges are left to fill in."""
    from tasks.datasets.drafting import draft_schema

    columns = draft_schema(require_readable(rows, "rows"), output, header=header)
    if json:
        print_json({"schema": str(output), "columns": columns})
        return
    console().print(
        f"{output}: {columns} columns. Write their types and ranges, then: unitball schema check {output} "
        f"--path {rows}",
        soft_wrap=True,
        markup=False,
    )


@schema.command(epilog="Example: unitball schema check docs/examples/clinic.yaml --path docs/examples/clinic.csv")
def check(
    path: Annotated[Path, typer.Argument(metavar="SCHEMA", help="The YAML file, or the name of one that comes along.")],
    rows: Annotated[Path, typer.Option("--path", help="CSV or Parquet.")],
    json: JsonFlag = False,
) -> None:
    """Tell the owner of the rows, on this screen alone, all that would be refused, clipped, null or missing."""
    from tasks.datasets.checking import check_schema

    with progress("check"):
        report = check_schema(path, require_readable(rows, "--path"))
    if json:
        print_json(asdict(report))
        return
    screen = console()
    table = Table(title=f"{rows} under {path}", title_justify="left")
    for heading in ("column", "admits", "missing", "outside", "of them not clippable", "first ones", "never there"):
        table.add_column(heading)
    for column in report.columns:
        table.add_row(*_cells(column, report.rows))
    screen.print(table)
    for line in _lines(report):
        screen.print(line, soft_wrap=True, markup=False, highlight=False)


def _cells(column: ColumnReport, rows: int) -> Iterator[str]:
    yield column.name
    yield column.bound
    yield "all" if column.missing == rows else str(column.missing or "–")
    yield str(column.outside or "–")
    yield str(column.hopeless or "–")
    yield ", ".join(f"{place}: {cell!r}" for place, cell in column.examples.items())
    yield ", ".join(column.unseen[:6]) + (", …" if len(column.unseen) > 6 else "")


def _lines(report: SchemaReport) -> Iterator[str]:
    yield f"{report.rows} rows"
    if report.broken_rows:
        first = ", ".join(f"line {line}: {fault}" for line, fault in report.broken.items())
        yield f"- {report.broken_rows} have too many or too few cells ({first}): refused; null with --on-violation drop"
    if report.missing_rows:
        yield f"- {report.missing_rows} lack a cell whose rule is refuse or drop"
    clippable = report.outside_rows - report.hopeless_rows
    if clippable:
        yield f"- {clippable} have a cell outside the schema: refused, clipped with --on-violation clip, null with drop"
    if report.hopeless_rows:
        yield f"- {report.hopeless_rows} have a cell that cannot be clipped: refused, or null with --on-violation drop"
    if not report.broken_rows + report.missing_rows + report.outside_rows:
        yield "- all of them are taken as they are"
    if report.duplicates.rows:
        yield f"- {report.duplicates.rows} are equal to an earlier one, up to {report.duplicates.largest_group} alike"
    yield "(null is for private rows: counted, and of no effect; public rows are left out instead)"
