"""``unitball reduce`` and ``unitball synthesise``: column statistics, released once and charged to the account."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

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
from deployments.cli.described_numbers import plural
from deployments.cli.entry_point import app
from deployments.cli.given import refuse_beside
from dpalgos.guarantees import rounded_up
from dpalgos.measured import in_digits
from storage.atomic import write_bytes
from storage.errors import InputError
from tasks.planning.column_statistics import ReductionRequest, StatisticsRequest, SynthesisRequest

if TYPE_CHECKING:
    from tasks.planning.column_statistics import ReductionPlan, StatisticsPlan, SynthesisPlan
    from tasks.release.drawn_rows import SyntheticRows
    from tasks.tracking.reductions import Reduction

_MOST_SHOWN = 20
_PLAN = "Print the price; charge nothing."

Plan = TypeVar("Plan", bound="StatisticsPlan")
Request = TypeVar("Request", bound=StatisticsRequest)
Found = TypeVar("Found")


def _answer(
    request: Request,
    planner: Callable[[Request], Plan],
    started: Callable[[], Found],
    *,
    plan: Callable[[Plan], Answer] | None,
    yes: bool,
    said: Callable[[Plan, Found], Answer],
) -> Answer:
    """Return the answer to what is asked: of the plan alone, or of what was released, which its price precedes.

    Parameters
    ----------
    request : StatisticsRequest
    planner : callable
        Plans what is asked.
    started : callable
        Starts the flow; flows are imported within.
    plan : callable or None
        Says what a plan would cost; None where it is to be carried out.
    yes : bool
        Whether the price is agreed to.
    said : callable
        Says what was found.
    """
    from tasks.datasets.registration import ensure_registered
    from tasks.release.single import is_paid, price_of_plan, require_affordable

    ensure_registered(request.dataset)
    planned = planner(request)
    if planned.dataset.private and is_paid(planned) and plan is None:
        say_charged_before(planned.dataset.account)
    else:
        same = {"delta": planned.delta}
        require_affordable(planned, lambda epsilon: planner(request.model_copy(update={"epsilon": epsilon, **same})))
    if plan is not None:
        return plan(planned)
    agree(price_of_plan(planned), asks=request.epsilon is None, yes=yes)
    if not os.environ.get("UNITBALL_DEBUG"):
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    with running(f"{planned.system} {request.dataset}"):
        found = started()
    return said(planned, found)


@app.command("reduce", epilog="Example: unitball reduce clinic --epsilon 0.5 --components 5")
@options_of(ReductionRequest, without=["dataset", "center"])
@answered
def reduce_(
    request: ReductionRequest,
    dataset: Annotated[str, typer.Argument(help="Registered data set.")],
    center: Annotated[
        bool, typer.Option("--center/--no-center", help=ReductionRequest.model_fields["center"].description)
    ] = True,
    plan: Annotated[bool, typer.Option("--plan", help=_PLAN)] = False,
    plot: Annotated[Path | None, typer.Option(help="Also write the figure to a PNG file.")] = None,
    yes: YesOption = False,
) -> Answer:
    """Release principal components; reuse them with train --basis."""
    from tasks.release.moments import plan_reduction

    refuse_beside("--plan", "only prints the price", ["--plot", "--yes"])
    del dataset, center
    if plot is not None and plot.exists():
        raise InputError(f"{plot} exists; name another file, or remove it first")

    def started() -> Reduction:
        from flows.column_statistics import reduce as reducing

        return reducing(request)

    def said(planned: ReductionPlan, found: Reduction) -> Answer:
        if plot is not None:
            from tasks.tracking.reductions import figure_of

            write_bytes(plot, figure_of(planned, len(found.components)), mode=0o644)
        return Answer(found.to_json(), _components_lines(found))

    return _answer(request, plan_reduction, started, plan=_reduction_price if plan else None, yes=yes, said=said)


def _reduction_price(planned: ReductionPlan) -> Answer:
    from tasks.release.single import is_paid

    name, paid = planned.dataset.name, is_paid(planned)
    terms = {"dataset": name, "epsilon": planned.epsilon, "delta": planned.delta, "paid": paid}
    account = planned.dataset.account
    said = "charged before, at no further charge" if paid else f"to be charged to account {account}"
    return Answer(
        {**terms, "releases": [one.label for one in planned.releases]},
        [f"{name}: epsilon {planned.epsilon:g} at delta {planned.delta:g}, {said} ({planned.label})"],
    )


def _components_lines(found: Reduction) -> Iterator[RenderableType]:
    """Yield a reduction for people."""
    again = "; charged before, not charged again" if found.paid else ""
    yield (
        f"{found.dataset}, version {found.version}: {found.rows:,} {plural(found.unit)}, "
        f"{found.columns} scaled columns, epsilon {found.epsilon:g} at delta {found.delta:g} "
        f"(mu {rounded_up(found.mu, 4):g}) for a {found.unit}, account {found.account}{again}"
    )
    if found.synthesis:
        yield f"The rows are drawn by synthesis {found.synthesis[:12]}; epsilon composes all releases they rest on."
    middle = "a released mean" if found.centred else "the declared middle"
    yield (
        f"Variances are those of the scaled columns about {middle}, along the released directions. Rows are clipped "
        "to the radius of the scale. All margins hold together with probability 0.95."
    )
    lines = [
        [
            str(place),
            f"{one.variance:.3g} [{one.low:.3g}, {one.high:.3g}]",
            f"{one.share:.1%}",
            ", ".join(f"{name} {entry:+.2f}" for name, entry in one.loadings),
        ]
        for place, one in enumerate(found.components[:_MOST_SHOWN], start=1)
    ]
    yield table(("component", "variance", "share", "largest loadings"), lines, title="Components", right=("component",))
    left = len(found.components) - _MOST_SHOWN
    if left > 0:
        yield f"and {left} more (loadings.csv in MLflow has all)"
    yield (
        f"noise alone reaches a variance of {found.floor:.3g}; {found.above} components have a larger noisy variance; "
        f"total variance {found.total:.3g}"
    )
    if found.scores is not None:
        parts = len(found.scores.counts)
        yield (
            f"scores along components 1 and 2 are counted in {parts} × {parts} cells, each with noise of standard "
            f"deviation {found.scores.deviation:.2g} (scores.csv in MLflow; --plot draws them)"
        )
    yield (
        f"basis {found.basis}: unitball train --dataset {found.dataset} --basis {found.basis} --dimension "
        f"{len(found.components)} reuses it at no charge. Such a model rests on this release. The basis has read all "
        "rows, also those that a run holds out."
    )


@app.command(epilog="Example: unitball synthesise clinic --epsilon 1 --output synthetic.csv")
@options_of(SynthesisRequest, without=["dataset", "pairs"])
@answered
def synthesise(
    request: SynthesisRequest,
    dataset: Annotated[str, typer.Argument(help="Registered table.")],
    pairs: Annotated[
        list[str], typer.Option(help=SynthesisRequest.model_fields["pairs"].description, metavar="A,B")
    ] = [],  # noqa: B006  # Typer reads the default, and no code changes it
    plan: Annotated[bool, typer.Option("--plan", help=_PLAN)] = False,
    yes: YesOption = False,
) -> Answer:
    """Draw synthetic rows of a table from released counts of its columns and of pairs of columns."""
    from tasks.release.synthesis import plan_synthesis

    refuse_beside("--plan", "only prints the price", ["--output", "--yes"])
    del dataset, pairs

    def started() -> SyntheticRows:
        from flows.column_statistics import synthesise as synthesising

        return synthesising(request)

    def said(_planned: SynthesisPlan, found: SyntheticRows) -> Answer:
        epsilon = f"{rounded_up(found.epsilon, 4):g}"
        say_note(f"{found.name} holds synthetic rows; every result computed from them rests on epsilon {epsilon}")
        return Answer(found.model_dump(mode="json"), _drawn_lines(found))

    return _answer(request, plan_synthesis, started, plan=_synthesis_price if plan else None, yes=yes, said=said)


def _synthesis_price(planned: SynthesisPlan) -> Answer:
    from tasks.release.single import price_of_plan

    price = price_of_plan(planned)
    return Answer(
        {
            "epsilon": planned.epsilon,
            "delta": planned.delta,
            "releases": [one.label for one in planned.rests_on],
            "reason": planned.reason,
            "price": None if price is None else str(price),
        },
        _synthesis_lines(planned, None if price is None else str(price)),
    )


def _synthesis_lines(planned: SynthesisPlan, price: str | None) -> Iterator[RenderableType]:
    yield f"{planned.dataset.name}, version {planned.dataset.version}: {planned.tables.setting.rows} training records"
    for one in planned.rests_on:
        paid = "; released before, free" if one.key in planned.before else ""
        yield f"  {one.label}: mu {in_digits(one.budget.mu)}{paid}"  # type: ignore[union-attr]  # Gaussian
    yield planned.reason
    yield f"price: {price}" if price else "price: free (public rows, or charged before)"


def _drawn_lines(found: SyntheticRows) -> Iterator[RenderableType]:
    yield (
        f"{found.name}, version {found.derived}: {found.rows} synthetic rows of {found.dataset}, drawn with seed "
        f"{found.seed}"
    )
    yield (
        f"The rows rest on {len(found.rests_on)} releases, together of epsilon {rounded_up(found.epsilon, 4):g} at "
        f"delta {found.delta:g} per {found.unit}, charged to account {found.account}. More rows, and rows of other "
        "seeds, are free."
    )
    if found.held_out_counted:
        yield (
            "The reused histograms of `unitball describe` count held-out rows, so evaluations on held-out rows are "
            "not independent of the synthetic rows."
        )
    yield found.reason
    yield table(("column", "drawn given"), ((one, of or "the class alone") for one, of in found.tree.items()))
    yield (
        "Each row is one record; synthetic rows form no people. The rows follow the released tables: each column with "
        "the class, and pairs in the tree. Do not use them for rare combinations, effects of three columns together, "
        "or tests of significance."
    )
    if found.output is not None:
        lineage = "in its metadata" if found.output.endswith(".parquet") else f"in {found.output}.lineage.json"
        yield f"{found.output}: written; its lineage is {lineage}. Unitball cannot follow files that leave this root."
