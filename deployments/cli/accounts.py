"""``unitball budget``: what an account may spend, has spent, and whether its books are in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from deployments.cli.app import app
from deployments.cli.common import JsonFlag, RootOption, console, print_json, print_root, use_root
from storage.errors import InputError, StorageError

if TYPE_CHECKING:
    from tasks.accounts.budget import BudgetReport, PartyBudget

# Thousands of small parties mostly stand alike, and nobody reads as many lines.
_MOST_LINES = 50


@app.command(epilog="Example: unitball budget digits --verify")
def budget(
    dataset: Annotated[str | None, typer.Argument(help="A registered data set; all accounts if left out.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the ledger's hash chain and the stored releases.")
    ] = False,
    raise_epsilon_cap: Annotated[
        float | None, typer.Option(help="Raise the cap, or lower it; recorded for good. Its delta stays.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why the cap is changed; recorded.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Draw spending against caps over time: a .png, or an .html page with a table.")
    ] = None,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Show the cap, which is what is guaranteed, what was charged of it and what is left, per party, or of all."""
    from tasks.accounts.budget import budget_report, change_cap, verify_books

    use_root(root)
    if raise_epsilon_cap is not None:
        if dataset is None:
            raise InputError("--raise-epsilon-cap is of one account: name a data set that pays from it")
        change_cap(dataset, raise_epsilon_cap, reason)
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
            print_root()
        return
    if dataset is None or out is not None:
        _overview(dataset, out, json)
        return
    report = budget_report(dataset)
    if json:
        print_json(report)
    else:
        _show(report)
        print_root()


def _overview(dataset: str | None, out: Path | None, json: bool) -> None:
    """Print and draw where accounts stand: a data set's own, or all."""
    from storage.atomic import write_bytes
    from tasks.accounts.drawing import budget_page, budget_rows, draw_budgets
    from tasks.accounts.history import budget_histories
    from tasks.datasets.description import find_dataset

    if out is not None and out.suffix not in (".png", ".html"):
        raise InputError(f"--out {out}: end it in .png for a picture or in .html for a page")
    if dataset is not None:
        find_dataset(dataset)
    histories = [one for one in budget_histories() if dataset is None or dataset in one.datasets]
    if out is not None:
        picture = draw_budgets(histories)
        written = picture if out.suffix == ".png" else budget_page(histories, picture).encode()
        write_bytes(out.absolute(), written)
    if json:
        print_json({"accounts": [one.model_dump(mode="json") for one in histories]})
        return
    table = Table(title="Budgets", title_justify="left", box=SIMPLE)
    rows = budget_rows(histories)
    for heading in rows[0] if rows else ("no data set is registered yet",):
        table.add_column(heading)
    for row in rows:
        table.add_row(*row.values())
    console().print(table)
    if out is not None:
        console().print(f"drawn in {out}", soft_wrap=True, highlight=False)
    print_root()


def _epsilon(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.4g}"


def _lines(parties: list[PartyBudget]) -> list[tuple[str, PartyBudget]]:
    """Return the lines of the table with whom each is of: a party, or where there are many, all that stand alike."""
    if len(parties) <= _MOST_LINES:
        return [(party["party"], party) for party in parties]
    alike: dict[tuple[float | None, float, int], list[PartyBudget]] = {}
    for party in parties:
        alike.setdefault((party["epsilon_spent"], party["delta_spent"], len(party["charges"])), []).append(party)
    return [
        (few[0]["party"] + (f" and {len(few) - 1} like it" if len(few) > 1 else ""), few[0]) for few in alike.values()
    ]


def _show(report: BudgetReport) -> None:
    cap = report["cap"]
    title = f"{report['dataset']} (account {report['account']}): " + (
        f"cap ε = {cap['epsilon']:g} at δ = {cap['delta']:g}"
        if cap
        else "public, no cap; what its runs would have cost"
    )
    parties = Table(title=title, title_justify="left", box=SIMPLE)
    for heading in ("party", "ε spent", *(["ε left"] if cap else []), "δ", "releases"):
        parties.add_column(heading, justify="left" if heading == "party" else "right")
    for who, party in _lines(report["parties"]):
        spent = party["epsilon_spent"]
        left = [] if not cap else ["0" if spent is None else f"{max(cap['epsilon'] - spent, 0):.4g}"]
        parties.add_row(who, _epsilon(spent), *left, f"{party['delta_spent']:.1g}", str(len(party["charges"])))
    charges: dict[tuple[str, str, int], set[str]] = {}
    each = {(charge["plan"], charge["key"]): charge for party in report["parties"] for charge in party["charges"]}
    for charge in each.values():
        again = " (computed again, charged again)" if charge["recharge"] else ""
        made = charges.setdefault((charge["recorded_at"][:19], charge["run"] + again, charge["plan"]), set())
        made.add(charge["label"])
    out = console()
    out.print(parties)
    if charges:
        out.print(_charges(charges))
    for one in report["disjoint"]:
        out.print(f"declared disjoint from {', '.join(one['from'])} on {one['recorded_at'][:10]}: {one['reason']}")
    for run in report["reserved"]:
        out.print(f"reserved, and counted as spent, for run {run}", soft_wrap=True)
    if cap:
        out.print(f"neighbouring relation: {report['relation']}")
        how = f" (composed over runs and partitions: {report['filter']})" if each else "; nothing was charged yet"
        out.print(f"spent ε = {_epsilon(report['epsilon_spent'])}, left ε = {report['epsilon_left']:.4g}{how}")


def _charges(charges: dict[tuple[str, str, int], set[str]]) -> Table:
    table = Table(title="charges", title_justify="left", box=SIMPLE)
    for heading in ("when (UTC)", "run", "releases"):
        table.add_column(heading)
    for (when, run, _), labels in sorted(charges.items(), key=lambda item: item[0][2]):
        first = min(labels)
        table.add_row(when, run, first if len(labels) == 1 else f"{first} and {len(labels) - 1} more")
    return table
