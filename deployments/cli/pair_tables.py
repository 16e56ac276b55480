"""Tables of pairs of columns on a terminal: heat maps of shares, margins, differences, Cramér's V."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from deployments.cli.described_numbers import margin, terms_lines
from dpalgos.column_margins import WIDEST
from dpalgos.guarantees import rounded_up

if TYPE_CHECKING:
    from tasks.release.pair_descriptions import DescribedPair, PairFigure, PairsDescription, PairTerms

_WIDE = 8
"""More cells than that in a line are drawn as glyphs."""
_GLYPHS = " ▁▂▃▄▅▆▇█"
_DIFFERENCES = 6


def terms_of_pairs_lines(terms: PairTerms, *, planned: bool = False) -> Iterator[str]:
    """Yield what a release of pairs costs, who pays, and what its result rests on."""
    tables = f"{terms.tables} table{'s' * (terms.tables > 1)} over {terms.columns} columns, {terms.cells} cells"
    yield from terms_lines(terms, planned=planned, what=tables)
    if terms.rests_on:
        releases = f"{len(terms.rests_on)} release{'s' * (len(terms.rests_on) > 1)}"
        yield (
            f"the result also uses {releases} of one-way counts, charged before: together epsilon "
            f"{rounded_up(terms.epsilon_together, 4):g} at delta {terms.delta:g}"
        )


def lines_of_pairs(found: PairsDescription) -> Iterator[RenderableType]:
    """Yield a description of pairs for people."""
    yield from terms_of_pairs_lines(found.terms)
    weighed = "" if found.terms.unit == "row" else " A person's k rows count as 1/k each."
    yield (
        f"All rows are counted, except those of test files.{weighed} [low, high] is a 95 % margin of the value in "
        "these data. It covers the noise alone; the margin of Cramér's V also covers the sampling of rows. Each margin "
        "holds on its own, not all together."
    )
    for pair in found.pairs:
        yield ""
        yield from _lines(pair)


def _lines(pair: DescribedPair) -> Iterator[RenderableType]:
    yield f"{pair.first} × {pair.second}: {pair.association.of} {margin(pair.association)}"
    yield _heat_map(pair) if len(pair.cells) <= _WIDE else _glyphs(pair)
    counts = [one for one in pair.of("count") if one.measured]
    shares = [one for one in pair.of("share") if one.measured]
    reaches = [
        f"{what} ± {_reach(some, digits)} at most"
        for what, some, digits in (("counts", counts, 0), ("shares", shares, 3))
        if some
    ]
    yield f"  {'; '.join(reaches) or 'no cell can be measured at this budget'}; ?: cannot be measured"
    # Of two cells each difference is the other's with its sign.
    shown = pair.cells[len(pair.cells) == 2 :]
    beyond = (one for one in pair.of("difference") if one.beyond and one.of in shown)
    differences = sorted(beyond, key=_size, reverse=True)
    yield (
        f"  {pair.measured} differences of shares between a group and all others are measured. The margins of "
        f"{pair.beyond} exclude 0; about {pair.by_chance:.3g} would by chance alone."
    )
    for one in differences[:_DIFFERENCES]:
        yield f"    {pair.second} {one.of} in {pair.first} {one.group}: {margin(one)}"
    for note in pair.notes:
        yield f"  ({note})"


def _size(one: PairFigure) -> float:
    return abs(float(one.value or 0.0))


def _reach(some: list[PairFigure], digits: int) -> str:
    reach = max((float(one.high or 0.0) - float(one.low or 0.0)) / 2 for one in some)
    scale = 10.0**digits
    return f"{math.ceil(reach * scale) / scale:,.{digits}f}"


def _heat_map(pair: DescribedPair) -> RenderableType:
    """Return counts, with each group's shares as colours and per cent."""
    drawn = Table(box=None, padding=(0, 1), header_style="bold")
    drawn.add_column(f"{escape(pair.first)} ╲ {escape(pair.second)}")
    for cell in pair.cells:
        drawn.add_column(escape(cell), justify="right", overflow="fold")
    drawn.add_column("all", justify="right")
    width = len(pair.cells)
    counts, shares, totals = pair.of("count"), pair.of("share"), pair.of("total")
    for row, group in enumerate(pair.groups):
        cells = [_coloured(counts[row * width + column], shares[row * width + column]) for column in range(width)]
        drawn.add_row(Text(group), *cells, Text(_whole(totals[row])))
    return drawn


def _whole(one: PairFigure) -> str:
    return f"{float(one.value):,.0f}" if one.value is not None else "?"


def _coloured(count: PairFigure, share: PairFigure) -> Text:
    if share.value is None:
        return Text(f"{_whole(count)} ?")
    part = float(share.value)
    # White to blue; letters that stay readable on it.
    red, green = round(255 * (1 - part)), round(255 - 141 * part)
    style = f"{'black' if part < WIDEST else 'white'} on rgb({red},{green},{round(255 - 77 * part)})"
    return Text(f"{_whole(count)} {100 * part:3.0f} %", style=style)


def _glyphs(pair: DescribedPair) -> RenderableType:
    """Return a line of bars per group, of its shares; the highest bar of all is full."""
    width, shares = len(pair.cells), pair.of("share")
    most = max((float(one.value) for one in shares if one.value is not None), default=0.0)
    longest = max(map(len, pair.groups))
    totals = pair.of("total")
    text = Text(f"  shares of {pair.second}, {pair.cells[0]} … {pair.cells[-1]}; a full bar is {100 * most:.0f} %\n")
    for row, group in enumerate(pair.groups):
        bars = "".join(
            "?" if one.value is None else _GLYPHS[math.ceil(8 * float(one.value) / max(most, 1e-9))]
            for one in shares[row * width : (row + 1) * width]
        )
        end = "\n" if row + 1 < len(pair.groups) else ""
        text.append(f"  {group.ljust(longest)}  |{bars}|  {_whole(totals[row])}{end}")
    return text
