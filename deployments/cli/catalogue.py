"""``unitball algorithms``: what is registered, what is claimed of it and what is proved."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from deployments.cli.answers import Answer, answered, table
from deployments.cli.app import app
from dpalgos.errors import ParameterError


@app.command(epilog="Example: unitball algorithms --kind systems --proved")
@answered
def algorithms(
    kind: Annotated[str | None, typer.Option(help="systems, projections, trainers, evaluators or aggregators.")] = None,
    proved: Annotated[bool, typer.Option("--proved", help="Only what may run on private rows.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the whole page of guarantees.")] = False,
) -> Answer:
    """List the algorithms: name, kind, trust, what is proved, what is claimed, source."""
    from tasks.planning.algorithms import describe_all

    if markdown:
        from tasks.experiments.guarantees_page import render

        sys.stdout.write(render())
        raise typer.Exit
    described = describe_all()
    kinds = dict.fromkeys(entry["kind"] for entry in described)
    if kind is not None and kind not in kinds:
        raise ParameterError(f"--kind {kind!r} is none of {', '.join(kinds)}")
    entries = [
        entry for entry in described if (kind is None or entry["kind"] == kind) and (not proved or entry["proved"])
    ]
    rows = (
        (one["name"], one["kind"], ", ".join(one["trust"]), _proved(one), one["claim"], one["source"])
        for one in entries
    )
    headings = ("name", "kind", "trust", "proved", "claim", "source")
    return Answer({"algorithms": entries}, [table(headings, rows, title="Algorithms")])


def _proved(entry: dict[str, Any]) -> str:
    if entry["proved"]:
        return str(entry["proved"])
    counterpart = f"; sound: {entry['sound_counterpart']}" if entry["sound_counterpart"] else ""
    return f"[red]none[/]{counterpart}"
