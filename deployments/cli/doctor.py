"""``unitball doctor``: one screen of checks of a root."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from deployments.cli.app import app
from deployments.cli.common import JsonFlag, RootOption, console, print_json, print_root, use_root


@app.command(epilog="Example: unitball doctor --clean")
def doctor(
    clean: Annotated[
        bool,
        typer.Option(
            "--clean",
            help="First remove what killed processes left and damaged releases; make lost fingerprints again.",
        ),
    ] = False,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Check permissions, keys, ledger, marks, releases, data sets, left-overs, formats and disk; 0 if all is well."""
    from tasks.runtime.events import Event, announce
    from tasks.runtime.settings import current_layout, current_root
    from tasks.upkeep.checks import check_root
    from tasks.upkeep.sweeping import sweep_everything

    use_root(root)
    cleaned = sweep_everything(current_layout()) if clean else []
    findings = check_root()
    well = all(finding.problem is None for finding in findings)
    if json:
        print_json({"root": str(current_root()), "ok": well, "cleaned": cleaned, "checks": [*map(asdict, findings)]})
    else:
        out = console()
        for done in cleaned:
            out.print(done)
        table = Table(box=SIMPLE)
        for heading in ("check", "", "way out"):
            table.add_column(heading, overflow="fold")
        for finding in findings:
            found = "[green]OK[/]" if finding.problem is None else f"[red]{finding.problem}[/]"
            table.add_row(finding.check, found, finding.way_out)
        out.print(table)
        print_root()
    if not well:
        failed = sorted({finding.check for finding in findings if finding.problem is not None})
        announce(Event.UNWELL, "unitball.root", {"checks": ", ".join(failed)})
    raise typer.Exit(0 if well else 1)
