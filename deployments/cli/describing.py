"""``unitball describe``: what columns of a table, or pairs of them, hold; released once, charged to its account."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
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
    progress,
    require_readable,
    say_charged_before,
    table,
)
from deployments.cli.described_numbers import margin, terms_lines, unmeasured
from deployments.cli.entry_point import app
from deployments.cli.given import given_options, refuse_beside
from dpalgos.measured import in_digits
from storage.atomic import write_bytes
from storage.errors import InputError
from storage.refs import Visibility
from tasks.datasets.request import IngestRequest

if TYPE_CHECKING:
    from tasks.release.descriptions import DescribedColumn, Description, Difference, Figure, VersionComparison

_OWN = (
    *("--epsilon", "--delta", "--trust", "--version", "--against", "--plan", "--plot", "--yes", "--root", "--json"),
    *("--pairs", "--by"),
)
_BARS, _WIDTH = " ▁▂▃▄▅▆▇█", 20


@app.command(epilog="Example: unitball describe clinic --epsilon 0.2")
@options_of(
    IngestRequest,
    without=["name", "visibility", "test_path", "people", "columns"],
    named={"schema_path": "--schema", "parties": "--party"},
    first=["account", "epsilon_cap", "delta_cap"],
)
@answered
def describe(
    request: IngestRequest,
    name: Annotated[str, typer.Argument(metavar="DATASET", help="Registered data set, or a new one with --path.")],
    epsilon: Annotated[
        float | None,
        typer.Option(help="Epsilon of the release. Without it, the command prints the price of epsilon 0.2."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta of the release. Default: 82 % of the cap's delta; 1e-5 on public rows.")
    ] = None,
    trust: Annotated[
        str | None,
        typer.Option(help="Trust model, if parties have their own files: local, secagg, central. Default: local."),
    ] = None,
    version: Annotated[str | None, typer.Option(help="Version of the data set. Default: the newest.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Earlier, already described version to compare shares with.")
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B", help="Count this pair of columns instead of single ones. Repeat for further pairs."
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Count each other column, and the label, by this one's groups.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the price; charge nothing.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also write the histograms, or heat maps of pairs, as a figure (PNG).")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private/--public", help=IngestRequest.model_fields["visibility"].description)
    ] = True,
    yes: YesOption = False,
) -> Answer:
    """Release histograms, or tables of pairs of columns, with margins."""
    from tasks.datasets.registration import ensure_registered
    from tasks.experiments.description_figure import draw_description
    from tasks.release import column_counts, descriptions
    from tasks.tracking.descriptions import record_description

    refuse_beside("--plan", "prints the price and reads no row", ["--plot", "--against", "--yes"])
    if plot is not None and plot.exists():
        raise InputError(f"{plot} exists: give another file name, or remove it first")
    several = bool(pairs) or by is not None
    if several and against is not None:
        raise InputError("--against compares single columns of two versions; omit it, or omit --pairs and --by")
    _bring_in(request.model_copy(update={"name": name}), private=private)
    ensure_registered(name)
    if several:
        return _pairs(name, pairs or [], by, version, epsilon, delta, trust, plan=plan, plot=plot, yes=yes)
    planned = column_counts.plan_counts(column_counts.version_of(name, version), epsilon, delta=delta, trust=trust)
    if plan:
        planned.require_affordable()
        terms = descriptions.terms_of(planned, paid=planned.paid)
        return Answer(asdict(terms), terms_lines(terms, planned=True))
    if planned.paid and planned.dataset.private:
        say_charged_before(planned.planned.account)
    else:
        if against is not None:
            column_counts.version_of(name, against)
        planned.require_affordable()
        agree(planned.price, asks=epsilon is None, yes=yes)
    with progress(f"describe {name}"):
        found = descriptions.describe(planned, against)
    if plot is not None:
        write_bytes(plot, draw_description(found), mode=0o644)
    record = partial(record_description, planned, found, draw_description)
    return Answer(found.to_json(), lines_of(found), afterwards=record)


def _pairs(
    name: str,
    pairs: Sequence[str],
    by: str | None,
    version: str | None,
    epsilon: float | None,
    delta: float | None,
    trust: str | None,
    *,
    plan: bool,
    plot: Path | None,
    yes: bool,
) -> Answer:
    """Release counts of pairs of columns."""
    from deployments.cli.pair_tables import lines_of_pairs, terms_of_pairs_lines
    from tasks.experiments.pair_figure import draw_pairs
    from tasks.release import column_counts, column_pairs, pair_descriptions
    from tasks.tracking.descriptions import record_description

    dataset = column_counts.version_of(name, version)
    planned = column_pairs.plan_pairs(
        dataset, column_pairs.named_pairs(dataset, pairs, by), epsilon, delta=delta, trust=trust
    )
    counts = planned.counts
    if plan:
        counts.require_affordable()
        terms = pair_descriptions.terms_of_pairs(planned, paid=counts.paid)
        return Answer(asdict(terms), terms_of_pairs_lines(terms, planned=True))
    if counts.paid and dataset.private:
        say_charged_before(counts.planned.account)
    else:
        counts.require_affordable()
        agree(counts.price, asks=epsilon is None, yes=yes)
    with progress(f"describe {name}"):
        found = pair_descriptions.describe_pairs(planned)
    if plot is not None:
        write_bytes(plot, draw_pairs(found), mode=0o644)
    record = partial(record_description, planned, found, draw_pairs)
    return Answer(found.to_json(), lines_of_pairs(found), afterwards=record)


def _bring_in(request: IngestRequest, *, private: bool) -> None:
    """Ingest rows that are given with the command, as `unitball ingest` does."""
    of_rows = [option for option in given_options() if option not in _OWN]
    if request.path is None and not request.parties:
        if of_rows:
            raise InputError(
                f"{', '.join(of_rows)} applies to rows that are ingested: add --path or --party, or omit it"
            )
        return
    from tasks.datasets.registration import ingest

    if request.path is not None:
        require_readable(request.path, "--path")
    for party, path in request.parties.items():
        require_readable(path, f"--party {party}")
    visibility = Visibility.PRIVATE if private else Visibility.PUBLIC
    with progress(f"ingest {request.name}"):
        ingest(request.model_copy(update={"visibility": visibility}))


def lines_of(found: Description) -> Iterator[RenderableType]:
    """Yield a description for people."""
    yield from terms_lines(found.terms)
    weighed = "" if found.terms.unit == "row" else "; each of a person's k rows counts as 1/k"
    yield (
        f"All rows are counted, except those of test files{weighed}. [low, high] is a 95 % margin of the value in "
        "these data. It covers the noise and the width of the bins. Each margin holds on its own, not all together."
    )
    for column in found.all:
        yield ""
        yield from column_lines(column)
    if found.comparison is not None:
        yield ""
        yield from _compared(found.comparison)


def column_lines(column: DescribedColumn) -> Iterator[str]:
    """Yield what is said of one column."""
    yield f"{column.name} ({column.kind})"
    yield from _histogram(column.of("bar"))
    yield from _counts(column.of("count", "other"))
    shares = column.of("share")
    if column.kind == "boolean":
        yield f"  share of {shares[0].of}: {margin(shares[0])}"
    else:
        yield from _counts(shares)
    if quarters := column.of("quartile"):
        known = any(one.measured for one in quarters)
        yield "  quartiles: " + (" · ".join(map(margin, quarters)) if known else unmeasured())
    for one in column.of("mean", "missing"):
        yield f"  {'share missing' if one.what == 'missing' else one.of}: {margin(one)}"
    for note in column.notes:
        yield f"  ({note})"


def _histogram(bars: Sequence[Figure]) -> Iterator[str]:
    if not bars:
        return
    if not any(one.measured for one in bars):
        yield f"  histogram: {unmeasured()}"
        return
    values = [float(one.value or 0.0) for one in bars]
    reach = max((float(one.high or 0.0) - float(one.low or 0.0)) / 2 for one in bars if one.measured)
    glyphs = [
        _BARS[min(math.ceil(8 * value / max(*values, 1e-9)), 8)] if one.measured else "?"
        for one, value in zip(bars, values, strict=True)
    ]
    low, high = bars[0].of.split(" to ")[0], bars[-1].of.split(" to ")[-1]
    hidden = f"; ?: {unmeasured()}" if "?" in glyphs else ""
    yield f"  |{''.join(glyphs)}|  {len(bars)} bars from {low} to {high}, each ± {math.ceil(reach):,} at most{hidden}"


def _counts(figures: Sequence[Figure]) -> Iterator[str]:
    if not figures:
        return
    if not any(one.measured for one in figures):
        yield f"  {'shares' if figures[0].what == 'share' else 'counts'}: {unmeasured()}"
        return
    longest = max(len(one.of) for one in figures)
    most = max(max(float(one.value or 0.0) for one in figures), 1e-9)
    for one in figures:
        filled = round(8 * _WIDTH * float(one.value or 0.0) / most)
        bar = ("█" * (filled // 8) + _BARS_ACROSS[filled % 8]).ljust(_WIDTH)
        yield f"  {one.of.ljust(longest)}  {bar}  {margin(one)}"


_BARS_ACROSS = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"]


def _compared(comparison: VersionComparison) -> Iterator[RenderableType]:
    rows = [
        [
            column.name,
            difference.of if difference.of == difference.what else f"{difference.what} {difference.of}",
            *map(_short, (difference.here, difference.there)),
            margin(difference),
            "*" if difference.beyond else "",
        ]
        for column in comparison.columns
        for difference in _differences(column)
        if difference.measured
    ]
    headings = ("column", "of", "here", "there", "difference", "beyond")
    yield table(headings, rows, title=f"Against version {comparison.version}", right=("here", "there"))
    yield (
        f"{comparison.measured} differences are measured, and the margins of {comparison.beyond} exclude 0 (*). If "
        f"nothing differed, about {comparison.by_chance:.3g} margins would exclude 0 by chance."
    )


def _differences(column: DescribedColumn) -> list[Difference]:
    from tasks.release.descriptions import Difference

    return [one for one in column.figures if isinstance(one, Difference)]


def _short(number: float | str | None) -> str | None:
    return number if number is None or isinstance(number, str) else in_digits(number)
