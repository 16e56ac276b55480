"""``unitball synthesise``: synthetic rows of a table, from counts that are released and charged once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from deployments.cli.common import (
    Answer,
    YesOption,
    agree,
    answered,
    options_of,
    running,
    say_charged_before,
    say_note,
    table,
)
from deployments.cli.entry_point import app
from deployments.cli.given import refuse_beside
from dpalgos.measured import in_digits
from tasks.planning.synthesis import SynthesisRequest

if TYPE_CHECKING:
    from tasks.planning.synthesis import SynthesisPlan
    from tasks.release.drawn_rows import SyntheticRows


@app.command(epilog="Example: unitball synthesise clinic --epsilon 1 --output synthetic.csv")
@options_of(SynthesisRequest, without=["dataset", "pairs"])
@answered
def synthesise(
    request: SynthesisRequest,
    dataset: Annotated[str, typer.Argument(help="A registered table.")],
    pairs: Annotated[
        list[str], typer.Option(help=SynthesisRequest.model_fields["pairs"].description, metavar="A,B")
    ] = [],  # noqa: B006  # Typer reads the default, and no code changes it
    plan: Annotated[bool, typer.Option("--plan", help="Say what it would cost; nothing is charged.")] = False,
    yes: YesOption = False,
) -> Answer:
    """Draw synthetic rows of a table from released counts of its columns and of pairs of columns."""
    from tasks.accounts.ledger import open_ledger
    from tasks.datasets.registration import ensure_registered
    from tasks.release import synthesis
    from tasks.release.drawn_rows import require_output

    refuse_beside("--plan", "charges nothing and reads no row", ["--output", "--yes"])
    del pairs
    require_output(request.output)
    ensure_registered(dataset)
    planned = synthesis.plan_synthesis(request)
    price = synthesis.price_of_synthesis(planned)
    if plan:
        synthesis.require_synthesis_admissible(planned)
        return Answer(
            {
                "epsilon": planned.epsilon,
                "delta": planned.delta,
                "releases": [one.label for one in planned.rests_on],
                "reason": planned.reason,
                "price": None if price is None else str(price),
            },
            _planned_lines(planned, None if price is None else str(price)),
        )
    keys = {one.key for one in planned.releases}
    if planned.dataset.private and open_ledger().charged(keys) == keys:
        say_charged_before(planned.dataset.account)
    else:
        synthesis.require_synthesis_admissible(planned)
        agree(price, asks=request.epsilon is None, yes=yes)
    if not os.environ.get("UNITBALL_DEBUG"):
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    with running(f"synthesise {dataset}"):
        from flows.synthesis import synthesise as synthesising

        found = synthesising(request)
    say_note(f"{found.name} holds synthetic rows; everything made with them rests on epsilon {found.epsilon:.4g}")
    return Answer(found.model_dump(mode="json"), _lines(found))


def _planned_lines(planned: SynthesisPlan, price: str | None) -> Iterator[RenderableType]:
    yield f"{planned.dataset.name}, version {planned.dataset.version}: {planned.tables.setting.rows} training records"
    for one in planned.rests_on:
        paid = "; released before, free" if one.key in planned.before else ""
        yield f"  {one.label}: mu {in_digits(one.budget.mu)}{paid}"  # type: ignore[union-attr]  # Gaussian
    yield planned.reason
    yield f"price: {price}" if price else "price: free (public rows, or charged before)"


def _lines(found: SyntheticRows) -> Iterator[RenderableType]:
    yield (
        f"{found.name}, version {found.derived}: {found.rows} synthetic rows of {found.dataset}, drawn with seed "
        f"{found.seed}"
    )
    yield (
        f"The rows rest on {len(found.rests_on)} releases of epsilon {found.epsilon:.4g} at delta {found.delta:g} per "
        f"{found.unit}, charged to account {found.account}. More rows, and rows of other seeds, are free."
    )
    if found.held_out_counted:
        yield "The reused histograms of `unitball describe` count held-out rows: figures on these are not independent."
    yield found.reason
    yield table(("column", "drawn given"), ((one, of or "the class alone") for one, of in found.tree.items()))
    yield (
        "Each row is one record; people are not imitated. The rows follow the released tables: each column with the "
        "class, and pairs in the tree. They are no basis for rare combinations, effects of three columns or tests of "
        "significance."
    )
    if found.output is not None:
        lineage = "in its metadata" if found.output.endswith(".parquet") else f"in {found.output}.lineage.json"
        yield f"{found.output}: written; its lineage is {lineage}. Files that leave this root are no longer followed."
