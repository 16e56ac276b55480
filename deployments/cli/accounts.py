"""``unitball budget``: what an account may spend, has spent, and whether its ledger is in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.table import Table

from deployments.cli.common import Answer, answered, table
from deployments.cli.entry_point import app
from storage.errors import InputError, RefusedError, StorageError

if TYPE_CHECKING:
    from tasks.accounts.budget import BudgetReport, PartyBudget

_RECOMMENDED = "unitball"
# Thousands of small parties mostly stand alike, and nobody reads as many lines.
_MOST_LINES = 50


@app.command(epilog="Example: unitball budget digits --verify")
@answered
def budget(
    dataset: Annotated[str | None, typer.Argument(help="A registered data set; all accounts if left out.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the ledger's hash chain and the stored releases.")
    ] = False,
    raise_epsilon_cap: Annotated[
        float | None, typer.Option(help="Raise the cap, or lower it; recorded for good. Its delta stays.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why the cap is changed; recorded.")] = "",
    algorithm: Annotated[
        str, typer.Option(help="System of which the largest run that still fits is named.")
    ] = _RECOMMENDED,
    delta: Annotated[
        float | None, typer.Option(help="Delta of that run; if empty a tenth of the cap's, as in train.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Draw spending against caps over time: a .png, or an .html page with a table.")
    ] = None,
) -> Answer:
    """Show the cap (what is guaranteed), what was charged and what is left, for each party or for all accounts."""
    from tasks.accounts.budget import budget_report, change_cap, verify_ledger

    if raise_epsilon_cap is not None:
        if dataset is None:
            raise InputError("--raise-epsilon-cap is of one account: name a data set that pays from it")
        change_cap(dataset, raise_epsilon_cap, reason)
    if verify:
        problems = verify_ledger()
        whole = "The ledger's chain is whole and every stored release is the one that was charged."
        if not problems:
            return Answer({"dataset": dataset, "verified": True, "problems": []}, [whole])
        return Answer(
            {"dataset": dataset, "verified": False, "problems": problems},
            [f"✗ {problem}" for problem in problems],
            StorageError(f"the ledger and the releases do not agree: {len(problems)} problem(s), first: {problems[0]}"),
        )
    if dataset is None or out is not None:
        return _overview(dataset, out)
    report = budget_report(dataset)
    one_more = _one_more(report, algorithm, delta)
    return Answer({**report, "one_more_run": one_more}, [*_shown(report), *_said_of(one_more)])


def _one_more(report: BudgetReport, algorithm: str, delta: float | None) -> dict[str, object] | None:
    """Return the largest epsilon of one more run, or why there is none; None of public rows, which have no cap."""
    from dpalgos.errors import ParameterError, UnknownNameError
    from tasks.accounts.budget import settled
    from tasks.planning.configuration import TrainingConfig
    from tasks.release.preflight import largest_epsilon

    if report["cap"] is None:
        return None
    config = settled(TrainingConfig(dataset=report["dataset"], algorithm=algorithm, delta=delta))
    candidate: dict[str, object] = {"algorithm": algorithm, "delta": config.delta}
    try:
        return {**candidate, "epsilon": largest_epsilon(config)}
    except UnknownNameError:
        raise
    except (InputError, ParameterError, RefusedError) as error:
        return {**candidate, "epsilon": None, "reason": str(error)}


def _said_of(one_more: dict[str, object] | None) -> Iterator[str]:
    if one_more is None:
        return
    run = f"one more run of {one_more['algorithm']} at δ = {one_more['delta']:g}"
    if one_more["epsilon"] is None:
        yield f"{run}: cannot be planned here ({one_more['reason']})"
    elif one_more["epsilon"]:
        yield f"{run}: ε of at most {one_more['epsilon']:g}"
    else:
        yield f"{run}: no further run fits"


def _overview(dataset: str | None, out: Path | None) -> Answer:
    """Show and draw where accounts stand: a data set's own, or all."""
    from storage.atomic import write_bytes
    from tasks.accounts.budget import budget_histories, budget_page, budget_table, draw_budgets
    from tasks.datasets.registration import find_dataset

    if out is not None and out.suffix not in (".png", ".html"):
        raise InputError(f"--out {out}: end it in .png for a picture or in .html for a page")
    if dataset is not None:
        find_dataset(dataset)
    histories = [one for one in budget_histories() if dataset is None or dataset in one.datasets]
    if out is not None:
        picture = draw_budgets(histories)
        written = picture if out.suffix == ".png" else budget_page(histories, picture).encode()
        write_bytes(out.absolute(), written)
    rows = budget_table(histories)
    headings = [*rows[0]] if rows else ["no data set is registered yet"]
    shown = table(headings, (row.values() for row in rows), title="Budgets")
    machine = {"accounts": [one.model_dump(mode="json") for one in histories]}
    return Answer(machine, [shown] if out is None else [shown, f"drawn in {out}"])


def _epsilon(value: float | None) -> str:
    from dpalgos.validation import rounded_up

    return "unbounded" if value is None else f"{rounded_up(value, 4):g}"


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


def _shown(report: BudgetReport) -> Iterator[RenderableType]:
    cap = report["cap"]
    title = f"{report['dataset']} (account {report['account']}): " + (
        f"cap ε = {cap['epsilon']:g} at δ = {cap['delta']:g}"
        if cap
        else "public, no cap; what its runs would have cost"
    )
    numbers = ["ε spent", "δ", "releases"]
    rows = []
    for who, party in _lines(report["parties"]):
        rows.append([who, _epsilon(party["epsilon_spent"]), f"{party['delta_spent']:.1g}", len(party["charges"])])
    yield table(["party", *numbers], rows, title=title, right=numbers)
    charges: dict[tuple[str, str, int], set[str]] = {}
    each = {(charge["plan"], charge["key"]): charge for party in report["parties"] for charge in party["charges"]}
    for charge in each.values():
        again = " (computed again, charged again)" if charge["recharge"] else ""
        plans = charges.setdefault((charge["recorded_at"][:19], charge["run"] + again, charge["plan"]), set())
        plans.add(charge["label"])
    for number, at in enumerate(report["restored"]):
        charges[at[:19], "restored ledger", -number - 1] = {"recorded as spent: what the back-up did not hold"}
    if charges:
        yield _charges(charges)
    for one in report["disjoint"]:
        yield f"declared disjoint from {', '.join(one['from'])} on {one['recorded_at'][:10]}: {one['reason']}"
    for run in report["reserved"]:
        yield f"reserved, and counted as spent, for run {run}"
    if cap:
        yield f"neighbouring relation: {report['relation']}. {report['meaning']}"
        how = f" (composition over runs and partitions: {report['filter']})" if each else "; nothing was charged yet"
        size = report["group_size"]
        whose = f"a person of up to {size} rows: " if size > 1 else ""
        yield f"{whose}spent ε = {_epsilon(report['epsilon_spent'])} of {cap['epsilon']:g}{how}"


def _charges(charges: dict[tuple[str, str, int], set[str]]) -> Table:
    rows = [
        (when, run, (f"{len(labels)} releases, among them " if len(labels) > 3 else "") + ", ".join(sorted(labels)[:3]))
        for (when, run, _), labels in sorted(charges.items())
    ]
    return table(("when (UTC)", "run", "releases"), rows, title="charges")
