"""``unitball budget``: what an account may spend, has spent, and whether its books are in order."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from deployments.cli.app import app
from deployments.cli.common import JsonFlag, RootOption, console, print_json, use_root
from storage.errors import StorageError


@app.command(epilog="Example: unitball budget digits --verify")
def budget(
    dataset: Annotated[str, typer.Argument(help="A registered data set.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the ledger's hash chain and the stored releases.")
    ] = False,
    raise_epsilon_cap: Annotated[float | None, typer.Option(help="Raise the cap; recorded for good.")] = None,
    raise_delta_cap: Annotated[float | None, typer.Option(help="Raise the cap's delta; recorded for good.")] = None,
    reason: Annotated[str, typer.Option(help="Why the cap is raised; recorded.")] = "",
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Show cap, spent at the cap's delta, and left, per party, with the charges."""
    from tasks.budget import budget_report, raise_cap, verify_books

    use_root(root)
    if raise_epsilon_cap is not None or raise_delta_cap is not None:
        raise_cap(dataset, raise_epsilon_cap, raise_delta_cap, reason)
    if verify:
        problems = verify_books()
        if json:
            print_json({"dataset": dataset, "verified": not problems, "problems": problems})
        for problem in problems if not json else ():
            console().print(f"[red]✗[/] {problem}")
        if problems:
            raise StorageError(f"the books do not agree: {len(problems)} problem(s), first: {problems[0]}")
        if not json:
            console().print("The ledger's chain is whole and every stored release is the one that was charged.")
        return
    report = budget_report(dataset)
    if json:
        print_json(report)
        return
    cap = report["cap"]
    title = f"{dataset} (account {report['account']}): " + (
        f"cap ε = {cap['epsilon']:g} at δ = {cap['delta']:g}" if cap else "public, no cap; what runs would have cost"
    )
    table = Table(title=title, title_justify="left")
    for heading in ("party", "ε spent", "δ", "releases"):
        table.add_column(heading, justify="left" if heading == "party" else "right")
    for party in report["parties"]:
        table.add_row(
            party["party"],
            "–" if party["epsilon_spent"] is None else f"{party['epsilon_spent']:.4g}",
            f"{party['delta_spent']:.1g}",
            str(len(party["charges"])),
        )
    console().print(table)
    if cap:
        console().print(
            f"spent ε = {report['epsilon_spent']:.4g}, left ε = {report['epsilon_left']:.4g} "
            f"(composed over runs and partitions by the {report['filter']} filter)"
        )
