"""``unitball datasets`` and ``unitball ingest``: what rows there are, and bringing rows in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from deployments.cli.answers import Answer, answered, table
from deployments.cli.app import app
from deployments.cli.common import progress, require_readable
from deployments.cli.options import options_of
from storage.errors import InputError
from storage.refs import Visibility
from tasks.datasets.request import IngestRequest

if TYPE_CHECKING:
    from storage.datasets import IngestionReport


_COUNTS = ("read", "kept", "incomplete", "outside", "clipped", "dropped", "null")


@app.command(epilog='Example: unitball datasets digits --sql "SELECT label, count(*) FROM train GROUP BY label"')
@answered
def datasets(
    name: Annotated[str | None, typer.Argument(help="One data set; all if left out.")] = None,
    sql: Annotated[str | None, typer.Option(help="DuckDB SQL over the views train and test; public sets only.")] = None,
) -> Answer:
    """List the data sets, or ask a public one something in SQL."""
    from tasks.datasets.description import describe_datasets
    from tasks.datasets.queries import query

    if sql is not None:
        if name is None:
            raise InputError('name the data set to query: unitball datasets digits --sql "…"')
        rows = query(name, sql)
        return Answer({"rows": rows}, [table([*rows[0]] if rows else [], (row.values() for row in rows))])
    entries = describe_datasets(name)
    headings = ("name", "format", "rows", "test rows", "dimension", "classes", "visibility", "account", "versions")
    cells = ([entry[heading.replace(" ", "_")] for heading in headings] for entry in entries)
    return Answer({"datasets": entries}, [table(headings, cells, title="Data sets")])


@app.command(
    epilog="Example: unitball ingest clinic --format csv --path docs/examples/clinic.csv "
    "--schema docs/examples/clinic.yaml --account clinic-2026 --epsilon-cap 3 --delta-cap 1e-6"
)
@options_of(
    IngestRequest,
    without=["name", "visibility", "test_path"],
    named={"schema_path": "--schema", "parties": "--party"},
)
@answered
def ingest(
    request: IngestRequest,
    name: Annotated[str, typer.Argument(help=IngestRequest.model_fields["name"].description)],
    private: Annotated[
        bool, typer.Option("--private/--public", help=IngestRequest.model_fields["visibility"].description)
    ] = True,
) -> Answer:
    """Bring rows in: validated, stored, registered under an account."""
    from tasks.datasets.description import report_of
    from tasks.datasets.registration import ingest as bring_in
    from tasks.datasets.schedules import schedule_of
    from tasks.runtime.stores import open_catalog

    if request.path is not None:
        require_readable(request.path, "--path")
    for party, path in request.parties.items():
        require_readable(path, f"--party {party}")
    visibility = Visibility.PRIVATE if private else Visibility.PUBLIC
    schedule = schedule_of(name)
    with progress(f"ingest {name}"):
        reference = bring_in(request.model_copy(update={"name": name, "visibility": visibility}))
    report = report_of(reference)
    tests = f" and {reference.test_rows} test rows" if reference.test_rows else ""
    lines = [
        f"{reference.name}: {reference.rows} rows{tests} × {reference.dimension}, {reference.visibility}, "
        f"account {reference.account}",
        *_accounted(report, open_catalog().account_of(reference.name).group_size),
    ]
    if schedule is not None and schedule.on_new_version:
        epsilon = schedule.config.epsilon
        lines.append(f"a new version starts federated-training/{name} where it is served: epsilon {epsilon}")
    duplicates = None if report.duplicates is None else asdict(report.duplicates)
    return Answer({**reference.model_dump(mode="json"), "counts": report.counts, "duplicates": duplicates}, lines)


def _accounted(report: IngestionReport, group_size: int) -> Iterator[str]:
    """Yield what became of every row, for the owner."""
    for part, counts in report.counts.items():
        # Versions stored earlier have three of the counts.
        yield f"rows of {part}: " + ", ".join(f"{counts[what]} {what}" for what in _COUNTS if what in counts)
    found = report.duplicates
    if found is not None and found.rows and found.largest_group <= group_size:
        yield (
            f"duplicates: {found.rows} rows are equal to an earlier one, up to {found.largest_group} alike: within the "
            f"{group_size} rows a person that the account protects"
        )
    elif found is not None and found.rows:
        yield (
            f"duplicates: {found.rows} rows are equal to an earlier one, up to {found.largest_group} alike. If they are"
            f" one person's, what protects a row does not protect the person: open the account with --group-size "
            f"{found.largest_group}; a run then costs as much as it does for {found.largest_group} rows"
        )
    elif found is not None:
        yield "duplicates: none"
