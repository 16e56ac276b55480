"""``unitball algorithms``: what is registered, what is claimed of it and what is proved."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.table import Table

from deployments.cli.app import app
from deployments.cli.common import JsonFlag, RootOption, console, print_json, print_root, use_root
from dpalgos.errors import ParameterError


@app.command(epilog="Example: unitball algorithms --kind systems --proved")
def algorithms(
    kind: Annotated[str | None, typer.Option(help="systems, projections, trainers or aggregators.")] = None,
    proved: Annotated[bool, typer.Option("--proved", help="Only what may run on private rows.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the whole page of guarantees.")] = False,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """List the algorithms: name, kind, trust, what is proved, what is claimed, source."""
    from tasks.planning.algorithms import describe_all

    use_root(root)
    if markdown:
        from tasks.experiments.guarantees_page import render

        sys.stdout.write(render())
        return
    described = describe_all()
    kinds = dict.fromkeys(entry["kind"] for entry in described)
    if kind is not None and kind not in kinds:
        raise ParameterError(f"--kind {kind!r} is none of {', '.join(kinds)}")
    entries = [
        entry for entry in described if (kind is None or entry["kind"] == kind) and (not proved or entry["proved"])
    ]
    if json:
        print_json({"algorithms": entries})
        return
    table = Table(title="Algorithms", title_justify="left")
    for heading in ("name", "kind", "trust", "proved", "claim", "source"):
        table.add_column(heading)
    for entry in entries:
        table.add_row(
            entry["name"],
            entry["kind"],
            ", ".join(entry["trust"]),
            _proved(entry),
            entry["claim"] or "–",
            entry["source"],
        )
    console().print(table)
    print_root()


def _proved(entry: dict[str, Any]) -> str:
    if entry["proved"]:
        return str(entry["proved"])
    counterpart = f"; sound: {entry['sound_counterpart']}" if entry["sound_counterpart"] else ""
    return f"[red]none[/]{counterpart}"
