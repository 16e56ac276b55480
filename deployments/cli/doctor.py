"""``unitball doctor``: one screen of checks of a root."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from deployments.cli.answers import Answer, answered, table
from deployments.cli.app import app


@app.command(epilog="Example: unitball doctor --clean")
@answered
def doctor(
    clean: Annotated[
        bool,
        typer.Option(
            "--clean",
            help="First remove what killed processes left and damaged releases; make lost fingerprints again.",
        ),
    ] = False,
) -> Answer:
    """Check permissions, keys, ledger, marks, releases, data sets, left-overs, formats and disk; 0 if all is well."""
    from tasks.runtime.events import Event, announce
    from tasks.runtime.settings import current_layout, current_root
    from tasks.upkeep.checks import check_root
    from tasks.upkeep.sweeping import sweep_everything

    cleaned = sweep_everything(current_layout()) if clean else []
    findings = check_root()
    failed = sorted({finding.check for finding in findings if finding.problem is not None})
    if failed:
        announce(Event.UNWELL, "unitball.root", {"checks": ", ".join(failed)})
    rows = (
        (one.check, "[green]OK[/]" if one.problem is None else f"[red]{one.problem}[/]", one.way_out)
        for one in findings
    )
    return Answer(
        {"root": str(current_root()), "ok": not failed, "cleaned": cleaned, "checks": [*map(asdict, findings)]},
        [*cleaned, table(("check", "", "way out"), rows)],
        typer.Exit(1) if failed else None,
    )
