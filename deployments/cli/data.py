"""``unitball datasets`` and ``unitball ingest``: what rows there are, and bringing rows in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from deployments.cli.app import app
from deployments.cli.common import JsonFlag, RootOption, console, print_json, print_root, require_readable, use_root
from storage.errors import InputError


@app.command(epilog='Example: unitball datasets digits --sql "SELECT label, count(*) FROM train GROUP BY label"')
def datasets(
    name: Annotated[str | None, typer.Argument(help="One data set; all if left out.")] = None,
    sql: Annotated[str | None, typer.Option(help="DuckDB SQL over the views train and test; public sets only.")] = None,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """List the data sets, or ask a public one something in SQL."""
    from tasks.ingestion import describe_datasets, query

    use_root(root)
    if sql is not None:
        if name is None:
            raise InputError('name the data set to query: unitball datasets digits --sql "…"')
        rows = query(name, sql)
        if json:
            print_json({"rows": rows})
            return
        table = Table()
        for heading in rows[0] if rows else ():
            table.add_column(heading)
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        console().print(table)
        print_root()
        return
    entries = describe_datasets(name)
    if json:
        print_json({"datasets": entries})
        return
    table = Table(title="Data sets", title_justify="left")
    for heading in ("name", "format", "rows", "test rows", "dimension", "classes", "visibility", "account", "versions"):
        table.add_column(heading)
    for entry in entries:
        table.add_row(
            *(
                str(entry[key])
                for key in (
                    "name",
                    "format",
                    "rows",
                    "test_rows",
                    "dimension",
                    "classes",
                    "visibility",
                    "account",
                    "versions",
                )
            )
        )
    console().print(table)
    print_root()


@app.command(
    epilog="Example: unitball ingest clinic --format csv --path docs/examples/clinic.csv "
    "--schema docs/examples/clinic.yaml --account clinic-2026 --epsilon-cap 3 --delta-cap 1e-6"
)
def ingest(
    name: Annotated[str, typer.Argument(help="The name the data set will go by.")],
    format: Annotated[str | None, typer.Option(help="Of the files; an unknown one lists those there are.")] = None,
    path: Annotated[Path | None, typer.Option(help="File or folder.")] = None,
    private: Annotated[bool, typer.Option("--private/--public", help="Private rows need an account and a cap.")] = True,
    account: Annotated[str | None, typer.Option(help="The population whose budget is spent; default the name.")] = None,
    epsilon_cap: Annotated[float | None, typer.Option(help="The most the account may ever spend.")] = None,
    delta_cap: Annotated[float | None, typer.Option(help="The delta of the cap; below 1/n.")] = None,
    dimension: Annotated[int | None, typer.Option(help="Features a row; declared for private rows.")] = None,
    classes: Annotated[str | None, typer.Option(help="Class names: --classes=-1,1; declared for private rows.")] = None,
    label_range: Annotated[str | None, typer.Option(help="Range of real labels: --label-range=0,10.")] = None,
    normalisation: Annotated[str | None, typer.Option(help="Default map for runs on this set.")] = None,
    schema: Annotated[Path | None, typer.Option(help="YAML schema for CSV and Parquet.")] = None,
    on_violation: Annotated[
        str, typer.Option(help="Rows outside the schema: refuse, clip or drop (private rows stay, as null records).")
    ] = "refuse",
    party: Annotated[list[str] | None, typer.Option(help="NAME=PATH: a party's own file; give one for each.")] = None,
    allow_idealised: Annotated[
        bool, typer.Option(help="Admit algorithms proved in real arithmetic only (idealised numerics).")
    ] = False,
    disjoint_people: Annotated[
        str, typer.Option(help="Declare, on record and for this reason, that the people are others than before.")
    ] = "",
    relation: Annotated[
        str | None, typer.Option(help="Neighbouring relation of a new account: replace-one or replace-special.")
    ] = None,
    group_size: Annotated[int, typer.Option(help="Rows one person may have.")] = 1,
    max_rows: Annotated[int | None, typer.Option(help="The most rows of a part; 100 million unless said.")] = None,
    max_bytes: Annotated[
        int | None, typer.Option(help="The most bytes of a file, decompressed; 32 times a compressed file's size.")
    ] = None,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Bring rows in: validated, stored, registered under an account."""
    from tasks.ingestion import IngestRequest
    from tasks.ingestion import ingest as bring_in

    use_root(root)
    reference = bring_in(
        IngestRequest(
            name=name,
            format=format,
            path=path and require_readable(path, "--path"),
            visibility="private" if private else "public",
            account=account,
            epsilon_cap=epsilon_cap,
            delta_cap=delta_cap,
            dimension=dimension,
            classes=tuple(classes.split(",")) if classes else None,
            label_range=_range(label_range),
            normalisation=normalisation,
            schema_path=schema,
            on_violation=on_violation,
            parties=_parties(party or []),
            allow_idealised=allow_idealised,
            disjoint_people=disjoint_people,
            relation=relation,
            group_size=group_size,
            max_rows=max_rows,
            max_bytes=max_bytes,
        )
    )
    if json:
        print_json(reference.model_dump(mode="json"))
    else:
        tests = f" and {reference.test_rows} test rows" if reference.test_rows else ""
        console().print(
            f"{reference.name}: {reference.rows} rows{tests} × {reference.dimension}, {reference.visibility}, "
            f"account {reference.account}"
        )
        print_root()


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--label-range {text!r} is not LOW,HIGH, for example --label-range=0,10") from None
    return low, high


def _parties(pairs: list[str]) -> dict[str, Path]:
    result = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or not name or not path:
            raise InputError(f"--party {pair!r} is not NAME=PATH, for example --party north=north.csv")
        if name in result:
            raise InputError(f"--party {name} is given twice")
        result[name] = require_readable(Path(path), f"--party {name}")
    return result
