"""``unitball datasets``, ``ingest`` and ``schema``: listing, importing and describing rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from deployments.cli.common import (
    Answer,
    RootOption,
    answered,
    options_of,
    progress,
    require_readable,
    say_note,
    table,
    use_root,
)
from deployments.cli.entry_point import app, group_of
from deployments.cli.given import refuse_without
from storage.errors import InputError
from storage.refs import Visibility
from tasks.datasets.request import AccountRequest, IngestRequest

if TYPE_CHECKING:
    from storage.datasets import IngestionReport
    from storage.refs import DatasetRef
    from tasks.datasets.schema_checks import ColumnReport, SchemaReport
    from tasks.release.ranges import ColumnContents


_MOST_NAMED = 50
_COUNTS = ("read", "kept", "incomplete", "outside", "clipped", "dropped", "null")


@app.command(epilog='Example: unitball datasets digits --sql "SELECT label, count(*) FROM train GROUP BY label"')
@answered
def datasets(
    name: Annotated[str | None, typer.Argument(help="Data set. Default: all.")] = None,
    sql: Annotated[
        str | None, typer.Option(help="DuckDB SQL over the views train and test (public data only).")
    ] = None,
) -> Answer:
    """List the data sets, or query a public one in SQL."""
    from tasks.datasets.registration import describe_datasets, ensure_registered, query

    ensure_registered(name)
    if sql is not None:
        if name is None:
            raise InputError('name the data set to query: unitball datasets digits --sql "…"')
        rows = query(name, sql)
        return Answer({"rows": rows}, [table([*rows[0]] if rows else [], (row.values() for row in rows))])
    entries = describe_datasets(name)
    headings = (
        "name",
        "format",
        "rows",
        "unit",
        "test rows",
        "dimension",
        "classes",
        "visibility",
        "account",
        "versions",
    )
    cells = ([entry[heading.replace(" ", "_")] for heading in headings] for entry in entries)
    named = cast(list[str], entries[0]["class_names"]) if name is not None else []
    classes = [f"classes: {', '.join(named)}"] if named else []
    return Answer({"datasets": entries}, [table(headings, cells, title="Data sets"), *classes])


@app.command(
    epilog="Example: unitball ingest clinic --format csv --path docs/examples/clinic.csv "
    "--schema docs/examples/clinic.yaml --account clinic-2026 --epsilon-cap 3 --delta-cap 1e-6"
)
@options_of(
    IngestRequest,
    without=["name", "visibility", "test_path", "people", "columns"],
    named={"schema_path": "--schema", "parties": "--party"},
    first=["account", "epsilon_cap", "delta_cap"],
)
@answered
def ingest(
    request: IngestRequest,
    name: Annotated[str, typer.Argument(help=IngestRequest.model_fields["name"].description)],
    private: Annotated[
        bool, typer.Option("--private/--public", help=IngestRequest.model_fields["visibility"].description)
    ] = True,
) -> Answer:
    """Import, validate and register rows under an account."""
    from tasks.datasets import registration
    from tasks.datasets.horizons import rows_left_out, rows_there_before
    from tasks.datasets.schedules import schedules_of
    from tasks.runtime.stores import open_catalog

    if request.path is not None:
        require_readable(request.path, "--path")
    for party, path in request.parties.items():
        require_readable(path, f"--party {party}")
    visibility = Visibility.PRIVATE if private else Visibility.PUBLIC
    left_out = list[str]()
    with progress(f"ingest {name}"):
        reference = registration.ingest(
            request.model_copy(update={"name": name, "visibility": visibility}), left_out.append, say_note
        )
    report = registration.report_of(reference)
    units = reference.unit.several
    tests = f" and {reference.test_rows} test {units}" if reference.test_rows else ""
    lines = [
        f"{reference.name}: {reference.rows} {units}{tests} × {reference.dimension}, {reference.visibility}, "
        f"account {reference.account}",
        *_accounted(report, reference, open_catalog().account_of(reference.name).group_size),
    ]
    # Which they are is for the owner alone, and kept nowhere.
    lines += [*left_out[:_MOST_NAMED], *([f"and {more} more"] if (more := len(left_out) - _MOST_NAMED) > 0 else [])]
    if (waiting := rows_left_out(name, reference)) is not None:
        night, rows = waiting
        which = f"night {night} of the horizon" if night else "not a night of the horizon: no person is new"
        lines.append(f"{which}; {rows} new rows of people of earlier nights are in no night yet (private to you)")
    if (compared := rows_there_before(name, reference)) is not None:
        night, rows, before = compared
        came = (
            f"{before} of them in an earlier version (private to you)"
            if before
            else "none of them in an earlier version"
        )
        lines.append(f"night {night} of the horizon: {rows} new rows, {came}" if night else _NO_NIGHT)
    lines += [
        f"a new version starts federated-training/{schedule.full_name} where it is served: "
        f"epsilon {schedule.config.epsilon}"
        for schedule in schedules_of(name)
        if schedule.on_new_version and not schedule.paused
    ]
    counted: dict[str, Any] = {"counts": report.counts, "taken": report.taken, "duplicates": asdict(report.duplicates)}
    if left_out:
        counted |= {"left_out": left_out}
    return Answer({**reference.model_dump(mode="json"), **counted}, lines)


_NO_NIGHT = "not a night of the horizon: no row is new"


def _accounted(report: IngestionReport, reference: DatasetRef, group_size: int) -> Iterator[str]:
    """Yield what became of every row, for the owner."""
    from storage.people import TEST

    for part, counts in report.counts.items():
        yield f"rows of {part}: " + ", ".join(f"{counts[what]} {what}" for what in _COUNTS)
    yours = " (private to you)" if reference.visibility is Visibility.PRIVATE else ""
    for file, rows in report.taken.items():
        use = "be evaluated" if file == TEST else "train"
        yield (
            f"{rows['taken']} of the {rows['kept']} kept rows of {file or 'train'} can {use}: {rows['beyond']} exceed "
            f"the {reference.rows_per_person} rows per person, {rows['elsewhere']} belong to people who count in "
            f"another file{yours}"
        )
    overlap = report.duplicates
    if reference.person:
        most = reference.rows_per_person
        taken = "1 row at most is" if most == 1 else f"{most} rows at most are"
        yield f"{reference.unit.meaning()} For each person, {taken} used."
    elif overlap.rows and overlap.largest_group <= group_size:
        yield (
            f"duplicates: {overlap.rows} rows equal an earlier row, up to {overlap.largest_group} alike, within the "
            f"{group_size} rows per person that the account protects"
        )
    elif overlap.rows:
        yield (
            f"duplicates: {overlap.rows} rows equal an earlier row, up to {overlap.largest_group} alike. If they "
            "belong to one person, the guarantee per row does not cover that person, and the account's group size is "
            f"fixed. To protect such people, ingest into a new root with --group-size {overlap.largest_group}; each "
            f"run is then charged for {overlap.largest_group} rows. Check for duplicates before the first ingestion: "
            "unitball schema check"
        )
    else:
        yield "duplicates: none"


_MANY_FEATURES, _MANY_RULES = 200, 12
_DROPPED = "--on-violation drop or clip-or-drop"

schema = group_of("schema")


@schema.command(epilog="Example: unitball schema draft docs/examples/clinic.csv -o clinic.yaml")
@options_of(AccountRequest)
@partial(answered, rooted=False)
def draft(
    terms: AccountRequest,
    rows: Annotated[
        Path, typer.Argument(help="CSV or Parquet. Only the header is read, unless --public or --range-epsilon.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="YAML file to write.")],
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Whether the first line names the columns.")
    ] = True,
    decimal: Annotated[str, typer.Option(help="Decimal mark of the file's numbers: a point or a comma.")] = ".",
    missing: Annotated[
        str, typer.Option(help="Texts that mark missing cells, in addition to empty cells: NA,unknown.")
    ] = "",
    numeric: Annotated[str, typer.Option(help="Columns that are numbers: age,income.")] = "",
    categories: Annotated[str, typer.Option(help="Columns that are categories: ward,city.")] = "",
    person: Annotated[
        str | None, typer.Option(help="Column that names the person, if people have several rows.")
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Rows are public: read them and propose types and ranges.")
    ] = False,
    range_epsilon: Annotated[
        float | None,
        typer.Option(help="Find ranges and values by charged releases with this total epsilon."),
    ] = None,
    range_delta: Annotated[
        float | None,
        typer.Option(help="Delta spent on lists of values. Default: 1 % of the cap's delta."),
    ] = None,
    range_fallback: Annotated[
        str, typer.Option(help="Range of a column whose range the noise hides: LOW,HIGH.")
    ] = "-1000,1000",
    root: RootOption = None,
) -> Answer:
    """Draft a schema from a file's column names; you add types and ranges."""
    from storage.columns.declarations import declared_range
    from tasks.datasets.drafts import draft_schema, fill_draft

    numbers, texts, account = _names(numeric), _names(categories), terms.account or output.stem
    paid = [f"--{name.replace('_', '-')}" for name in AccountRequest.model_fields]
    refuse_without(
        [*paid, "--range-delta", "--range-fallback"], "--range-epsilon", "applies to private releases of ranges"
    )
    if both := [name for name in numbers if name in texts]:
        raise InputError(f"column {both[0]!r} is named by --numeric and by --categories; name it in one of them")
    if range_epsilon is not None and not (numbers or texts):
        raise InputError("--range-epsilon needs columns: name them with --numeric and --categories")
    if range_epsilon is not None and public:
        raise InputError(
            "--public and --range-epsilon are both given: use --public for public rows, --range-epsilon "
            "for private rows"
        )
    fallback = declared_range("--range-fallback", range_fallback.split(","))
    columns = draft_schema(
        require_readable(rows, "rows"),
        output,
        header=header,
        decimal=decimal,
        missing=["", *_names(missing)],
        numeric=numbers,
        categories=texts,
        person=person,
        public=public,
    )
    drawn = None
    if range_epsilon is not None:
        from tasks.datasets.request import IngestRequest
        from tasks.release.ranges import private_contents

        try:
            use_root(root)
            request = IngestRequest(
                name=f"{output.stem}-columns",
                format="table-draft",
                path=rows,
                schema_path=output,
                **{**terms.model_dump(), "account": account},
            )
            with progress("draft"):
                drawn = private_contents(request, range_epsilon, range_delta)
            fill_draft(output, drawn.ranges, fallback, drawn.values)
        except BaseException:
            # A remaining draft would block the next attempt, which is free.
            output.unlink()
            raise
    shown = () if drawn is None else _drawn(drawn, range_epsilon, account)
    contents = {"ranges": drawn.ranges if drawn else {}, "values": drawn.values if drawn else {}}
    what = "Check the suggestions and choose the label column" if public else "Write their types and ranges"
    way_on = f"{what}, then: unitball schema check {output} --path {rows}"
    return Answer(
        {"schema": str(output), "columns": columns, **contents}, [*shown, f"{output}: {columns} columns. {way_on}"]
    )


def _drawn(drawn: ColumnContents, epsilon: float | None, account: str) -> Iterator[str]:
    yield (
        f"drawn: ranges {len(drawn.ranges)}, lists of values {len(drawn.values)}; epsilon {epsilon:g} at most, one "
        f"charge to account {account}: ingest the rows under the same account"
    )
    if drawn.values:
        yield (
            f"the lists of values permanently spend {drawn.delta:g} of the account's delta of {drawn.cap_delta:g}; "
            "later runs have the rest"
        )
    if fallen := [name for name, ends in drawn.ranges.items() if ends is None]:
        yield f"no range exceeds the noise for {', '.join(fallen)}: the schema has the fallback there; check it"
    if empty := [name for name, values in drawn.values.items() if not values]:
        yield f"no value is held by enough rows in {', '.join(empty)}: declare values, or omit the column"
    if drawn.full:
        yield f"{', '.join(drawn.full)}: as many values as a release holds; there may be more"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@schema.command(epilog="Example: unitball schema check docs/examples/clinic.yaml --path docs/examples/clinic.csv")
@partial(answered, rooted=False)
def check(
    path: Annotated[Path, typer.Argument(metavar="SCHEMA", help="The YAML file, or the name of a bundled one.")],
    rows: Annotated[Path, typer.Option("--path", help="CSV or Parquet.")],
) -> Answer:
    """Tell the owner of the rows, on this screen alone, all that would be refused, clipped, null or missing."""
    from tasks.datasets.schema_checks import check_schema

    with progress("check"):
        report = check_schema(path, require_readable(rows, "--path"))
    headings = ("column", "admits", "missing", "outside", "not clippable", "first cells outside", "values without rows")
    cells = (_cells(column, report.rows) for column in report.columns)
    return Answer(asdict(report), [table(headings, cells, title=f"{rows} under {path}"), *_lines(report)])


def _cells(column: ColumnReport, rows: int) -> Iterator[object]:
    yield column.name
    yield column.bound
    yield "all" if column.missing == rows else column.missing or None
    yield column.outside or None
    yield column.unclippable or None
    yield ", ".join(f"{place}: {cell!r}" for place, cell in column.examples.items())
    yield ", ".join(column.unseen[:6]) + (", …" if len(column.unseen) > 6 else "")


def _recodings(report: SchemaReport) -> Iterator[str]:
    """Yield how many cells each rule has taken, of columns with the same rules together; of each alone in JSON."""
    alike: dict[tuple[str, ...], list[ColumnReport]] = {}
    for column in report.columns:
        if column.recoded:
            alike.setdefault(tuple(column.recoded), []).append(column)
    for rules, columns in alike.items():
        taken = [f"{rule} ({sum(column.recoded[rule] for column in columns)})" for rule in rules]
        more = len(taken) - _MANY_RULES
        told = ", ".join(taken[:_MANY_RULES]) + (f", and {more} more" if more > 0 else "")
        names = ", ".join(column.name for column in columns[:3]) + (", …" if len(columns) > 3 else "")
        which = f"column {names}" if len(columns) == 1 else f"{len(columns)} columns ({names})"
        yield f"- {which}, recoded cells: {told}"


def _lines(report: SchemaReport) -> Iterator[str]:
    yield f"{report.rows} rows"
    if report.broken_rows:
        first = ", ".join(f"line {line}: {fault}" for line, fault in report.broken.items())
        yield f"- {report.broken_rows} have too many or too few cells ({first}): refused; null with {_DROPPED}"
    if report.missing_rows:
        yield f"- {report.missing_rows} lack a cell that the schema requires (missing: refuse or drop)"
    clippable = report.outside_rows - report.unclippable_rows
    if clippable:
        yield (
            f"- {clippable} have a cell outside the schema: refused; clipped with --on-violation clip or clip-or-drop, "
            "null with drop"
        )
    if report.unclippable_rows:
        yield f"- {report.unclippable_rows} have a cell that cannot be clipped: refused, or null with {_DROPPED}"
    if not report.broken_rows + report.missing_rows + report.outside_rows:
        yield "- all rows fit the schema"
    if report.people:
        yield (
            f"- {report.trainable_rows} of the {report.ordered_rows} rows that fit the schema can train: at most "
            f"{report.rows_per_person} per person (people in several parties' files count in one file)"
        )
    for column in report.columns:
        if column.features > _MANY_FEATURES:
            yield (
                f"- column {column.name} becomes {column.features} features; a private trainer adds noise to each. "
                "Declare the frequent values alone (with --on-violation clip, a row with another value has none of "
                f"them), or find them privately: unitball schema draft … --categories {column.name}. Or declare "
                "'hash: 64' instead of values: each text is mapped to one of 64 bins, without a list"
            )
    yield from _recodings(report)
    if report.duplicates.rows:
        yield f"- {report.duplicates.rows} are equal to an earlier one, up to {report.duplicates.largest_group} alike"
    for name, (values, rows, most) in report.repeated.items():
        if report.people:
            yield f"- {values} people by column {name}: {rows / max(values, 1):.3g} rows each, up to {most}"
        else:
            yield (
                f"- column {name} is ignored and its values repeat: {values} in {rows} rows, up to {most} alike; if "
                f"they name people, declare type: person"
            )
    counted = (
        "whose person counts, and which itself does not" if report.people else "that counts and contributes nothing"
    )
    yield f"(A null row is a private row {counted}. Public rows are left out instead.)"
