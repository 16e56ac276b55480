"""``unitball export`` and ``unitball verify``: a run's proof, taken to another machine and checked there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from deployments.cli.app import app
from deployments.cli.common import JsonFlag, RootOption, console, print_json, print_root, require_readable, use_root

_WORDS = {True: "holds", False: "[red]FAILS[/]", None: "–"}


@app.command(epilog="Example: unitball export digits.noisy-gd -o run.zip")
def export(
    run: Annotated[
        str, typer.Argument(help="A registered model that it made, or (how begins) its key or MLflow's id of it.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The archive to write.")],
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Write a run's releases, charges, proof, audit verdict and package versions as one signed archive."""
    from storage.atomic import write_bytes
    from tasks.exports.collecting import export_run

    use_root(root)
    data, key, signer = export_run(run)
    write_bytes(out.absolute(), data)
    if json:
        print_json({"run": key, "archive": str(out.absolute()), "bytes": len(data), "signer": signer})
        return
    console().print(
        f"{out}: run {key[:12]}, {len(data):,} bytes\nsigned by {signer}\n"
        "Tell this fingerprint by another channel than the archive's; then "
        f"there: unitball verify {out.name} --signer {signer}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    print_root()


@app.command(epilog="Example: unitball verify run.zip")
def verify(
    archive: Annotated[Path, typer.Argument(help="What unitball export has written.")],
    signer: Annotated[str | None, typer.Option(help="The fingerprint that its owner has told.")] = None,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Check an export: digests, identities, guarantees, prices, epsilon; exit code 1 where something fails."""
    from tasks.exports.verifying import verify as verified

    use_root(root)
    found = verified(require_readable(archive, "ARCHIVE"), signer=signer)
    if json:
        print_json(found.to_json())
    else:
        table = Table(
            title=f"{found.algorithm} on {found.dataset}, run {found.run[:12]}", title_justify="left", box=SIMPLE
        )
        for heading in ("checked", "", "found"):
            table.add_column(heading)
        for check in found.checks:
            table.add_row(check.what, _WORDS[check.holds], check.detail)
        console().print(table)
        print_root()
    if not found.holds:
        raise typer.Exit(1)
