"""``unitball reduce``: principal components of a data set, released once and charged to its account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from deployments.cli.common import Answer, YesOption, agree, answered, progress, say_charged_before, table
from deployments.cli.described_numbers import plural
from deployments.cli.entry_point import app
from deployments.cli.given import refuse_beside
from storage.atomic import write_bytes
from storage.errors import InputError

if TYPE_CHECKING:
    from tasks.tracking.reductions import Reduction

_MOST_SHOWN = 20


@app.command("reduce", epilog="Example: unitball reduce clinic --epsilon 0.5 --components 5")
@answered
def reduce_(
    name: Annotated[str, typer.Argument(metavar="DATASET", help="A registered data set.")],
    epsilon: Annotated[
        float | None,
        typer.Option(help="Epsilon of the release, per row or person. Without it private rows are priced at 0.5."),
    ] = None,
    components: Annotated[
        int | None, typer.Option(min=1, help="How many components. Default: those above the noise.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Default: 105/128 of the cap's delta, 1e-5 on public rows.")
    ] = None,
    center: Annotated[
        bool, typer.Option("--center/--no-center", help="Centre rows at a released mean, or at the declared middle.")
    ] = True,
    trust: Annotated[
        str | None, typer.Option(help="Trust model of several parties' own files (local, secagg, central).")
    ] = None,
    version: Annotated[str | None, typer.Option(help="A version of the data set. Default: the newest.")] = None,
    replicate: Annotated[
        int, typer.Option(min=0, help="Another number is another release, drawn and charged again.")
    ] = 0,
    plan: Annotated[bool, typer.Option("--plan", help="Print the cost; nothing is charged.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Also write the figure of variances and loadings (PNG).")] = None,
    yes: YesOption = False,
) -> Answer:
    """Release principal components; reuse them with train --basis."""
    from tasks.datasets.registration import ensure_registered
    from tasks.release.column_counts import version_of
    from tasks.release.moments import plan_moments

    refuse_beside("--plan", "charges nothing and reads no row", ["--plot", "--yes"])
    if plot is not None and plot.exists():
        raise InputError(f"{plot} exists; name another file, or remove it first")
    ensure_registered(name)
    planned = plan_moments(
        version_of(name, version), epsilon, delta=delta, trust=trust, center=center, replicate=replicate
    )
    if plan:
        planned.require_affordable()
        terms = {"dataset": name, "epsilon": planned.epsilon, "delta": planned.planned.delta, "paid": planned.paid}
        account = planned.dataset.account
        said = "was charged before and costs nothing more" if planned.paid else f"would be charged to account {account}"
        return Answer(terms, [f"{name}: epsilon {planned.epsilon:g} at delta {planned.planned.delta:g}, which {said}"])
    if planned.paid and planned.dataset.private:
        say_charged_before(planned.planned.account)
    else:
        planned.require_affordable()
        agree(planned.price, asks=epsilon is None, yes=yes)
    with progress(f"reduce {name}"):
        from tasks.tracking import reductions

        found = reductions.reduce(planned, components)
    if plot is not None:
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
    yield (
        f"basis {found.basis}: unitball train --dataset {found.dataset} --basis {found.basis} --dimension "
        f"{len(found.components)} reuses it at no charge; the model rests on it, and the basis has read all rows, "
        "those that a run holds out too"
    )
