"""``unitball ledger``: what an owner may do with a ledger besides charging it."""

from __future__ import annotations

from typing import Annotated

import typer

from deployments.cli.answers import Answer, answered
from deployments.cli.app import app

ledger = typer.Typer(help="Restore a root's privacy ledger from a back-up.", no_args_is_help=True)
app.add_typer(ledger, name="ledger")


@ledger.command(epilog='Example: unitball ledger restore --reason "disk lost, back-up of Monday"')
@answered
def restore(
    reason: Annotated[str, typer.Option(help="Why; recorded.")],
    epsilon: Annotated[
        float | None, typer.Option(help="The most that was spent beyond this back-up, where no mark says it.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The delta of that.")] = None,
) -> Answer:
    """Accept a ledger that is older than its high-water marks: what it lacks is booked as spent, on record."""
    from tasks.accounts.budget import restore_ledger

    accounts = restore_ledger(reason, epsilon, delta)
    return Answer(
        {"booked": list(accounts)}, [f"restored; booked what was lacking for {', '.join(accounts) or 'no account'}"]
    )
