"""``unitball reduce``: principal components of a data set, released once and charged to its account."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
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
    table,
)
from deployments.cli.described_numbers import plural
from deployments.cli.entry_point import app
from deployments.cli.given import refuse_beside
from storage.atomic import write_bytes
from storage.errors import InputError
from tasks.planning.reduction import ReductionRequest

if TYPE_CHECKING:
    from tasks.tracking.reductions import Reduction

_MOST_SHOWN = 20


@app.command("reduce", epilog="Example: unitball reduce clinic --epsilon 0.5 --components 5")
@options_of(ReductionRequest, without=["dataset", "center"])
@answered
def reduce_(
    request: ReductionRequest,
    dataset: Annotated[str, typer.Argument(help="A registered data set.")],
    center: Annotated[
        bool, typer.Option("--center/--no-center", help=ReductionRequest.model_fields["center"].description)
    ] = True,
    plan: Annotated[bool, typer.Option("--plan", help="Print the cost; nothing is charged.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Also write the figure to a PNG file.")] = None,
    yes: YesOption = False,
) -> Answer:
    """Release principal components; reuse them with train --basis."""
    from tasks.datasets.registration import ensure_registered
    from tasks.release import moments

    refuse_beside("--plan", "charges nothing and reads no row", ["--plot", "--yes"])
    del center
    if plot is not None and plot.exists():
        raise InputError(f"{plot} exists; name another file, or remove it first")
    ensure_registered(dataset)
    planned = moments.plan_reduction(request)
    paid, price = moments.is_paid(planned), moments.price_of_reduction(planned)
    account = planned.dataset.account
    if plan:
        moments.require_reduction_affordable(planned, request)
        terms = {"dataset": dataset, "epsilon": planned.epsilon, "delta": planned.delta, "paid": paid}
        said = "was charged before and costs nothing more" if paid else f"would be charged to account {account}"
        return Answer(
            {**terms, "releases": [one.label for one in planned.releases]},
            [f"{dataset}: epsilon {planned.epsilon:g} at delta {planned.delta:g}, which {said} ({planned.label})"],
        )
    if paid and planned.dataset.private:
        say_charged_before(account)
    else:
        moments.require_reduction_affordable(planned, request)
        agree(price, asks=request.epsilon is None, yes=yes)
    if not os.environ.get("UNITBALL_DEBUG"):
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    with running(f"reduce {dataset}"):
        from flows.reduction import reduce as reducing

        found = reducing(request)
        if plot is not None:
            from tasks.tracking import reductions

            write_bytes(plot, reductions.figure_of(planned, len(found.components)), mode=0o644)
    return Answer(found.to_json(), lines_of(found))


def lines_of(found: Reduction) -> Iterator[RenderableType]:
    """Yield a reduction for people."""
    again = "; it was charged before and costs nothing more" if found.paid else ""
    yield (
        f"{found.dataset}, version {found.version}: {found.rows:,} {plural(found.unit)}, "
        f"{found.columns} scaled columns, epsilon {found.epsilon:g} at delta {found.delta:g} (mu {found.mu:.4g}) "
        f"for a {found.unit}, account {found.account}{again}"
    )
    middle = "a released mean" if found.centred else "the declared middle"
    yield (
        f"Variances are of the scaled columns about {middle}, along the released directions. Rows are clipped to the "
        "radius of the scale. The margins hold together with probability 0.95."
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
        f"noise reaches {found.floor:.3g}; the noisy eigenvalues of {found.above} components are above it; total "
        f"variance {found.total:.3g}"
    )
    if found.scores is not None:
        parts = len(found.scores.counts)
        yield (
            f"scores along components 1 and 2 are counted in {parts} × {parts} cells, each with noise of standard "
            f"deviation {found.scores.deviation:.2g} (scores.csv in MLflow; --plot draws them)"
        )
    yield (
        f"basis {found.basis}: unitball train --dataset {found.dataset} --basis {found.basis} --dimension "
        f"{len(found.components)} reuses it at no charge; the model rests on it, and the basis has read all rows, "
        "those that a run holds out too"
    )
