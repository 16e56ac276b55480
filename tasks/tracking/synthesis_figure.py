"""Drawn rows and released tables as figures: bars with margins per column, and pairs of heat maps per table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpalgos.rows import Floats
from dpalgos.synthesis.fidelity import ComparedTable
from tasks.runtime.plots import RED, png_of, styled_figure
from tasks.tracking.synthesis_tables import NamedTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACROSS, _MOST_PANELS, _TABLES_ACROSS, _MOST_TABLES, _LONGEST = 3, 24, 2, 6, 24
_GREY, _DARK = "#CCCCCC", "#777777"


def draw_columns(found: Sequence[NamedTable]) -> bytes:
    """Return as PNG a panel per column, those first whose drawn shares are farthest from released ones.

    Grey bars are released shares and their whiskers the 95 % margins of the noise; points are drawn shares.
    """
    shown = sorted(found, key=lambda one: -one.table.distance)[:_MOST_PANELS]
    across = min(_ACROSS, len(shown))
    down = math.ceil(len(shown) / across)
    with styled_figure(4.2 * across, 2.9 * down + 0.5) as figure:
        panels = figure.subplots(down, across, squeeze=False).ravel()
        for axes, one in zip(panels, shown, strict=False):
            places, released = np.arange(len(one.table.released)), one.table.released
            axes.bar(places, released, color=_GREY, width=0.8, label="released, with 95 % margin")
            axes.errorbar(places, released, yerr=one.table.margins, fmt="none", ecolor=_DARK, elinewidth=1.0)
            axes.plot(places, one.table.drawn, "o", color=RED, markersize=4, label="drawn")
            axes.set_title(one.columns[0])
            axes.set_ylim(bottom=min(0.0, float(released.min())))
            axes.set_xticks(places, [_short(name) for name in one.cells[0]], rotation=60, ha="right", size="x-small")
        for axes in panels[len(shown) :]:
            axes.set_axis_off()
        panels[0].legend(fontsize="x-small")
        which = f" (the {len(shown)} with the largest distance of {len(found)})" if len(shown) < len(found) else ""
        figure.suptitle(f"shares of the rows in each column{which}", fontsize="medium")
        return png_of(figure, 110)


def draw_tables(found: Sequence[NamedTable]) -> bytes:
    """Return as PNG two heat maps per table, released and drawn, of shares within each column of the map.

    Tables of a column and its parent come first, those that are farthest apart first among them. A cross marks a cell
    whose 95 % margin does not hold the drawn share.
    """
    label = max(place for one in found for place in one.table.places)
    shown = sorted(found, key=lambda one: (label in one.table.places, -one.table.distance))[:_MOST_TABLES]
    across = min(_TABLES_ACROSS, len(shown))
    down = math.ceil(len(shown) / across)
    with styled_figure(7.6 * across, 3.6 * down + 0.5) as figure:
        panels = figure.subplots(down, 2 * across, squeeze=False).ravel()
        for at, one in enumerate(shown):
            shares = [_within(values) for values in (one.table.released, one.table.drawn)]
            most = max(float(values.max()) for values in shares)
            for axes, values, what in zip(panels[2 * at : 2 * at + 2], shares, ("released", "drawn"), strict=True):
                _draw_table(axes, one, values, most, what)
            _mark(panels[2 * at + 1], one.table)
        for axes in panels[2 * len(shown) :]:
            axes.set_axis_off()
        which = f" ({len(shown)} of {len(found)} tables)" if len(shown) < len(found) else ""
        figure.suptitle(
            f"shares of a column's cells, given its parent or the class{which}; ×: outside the 95 % margin",
            fontsize="medium",
        )
        return png_of(figure, 110)


def _within(values: Floats) -> Floats:
    """Return shares of each parent's cell, negative ones cut off; 0 where it holds nothing."""
    positive = np.maximum(values, 0.0)
    sums = positive.sum(axis=0, keepdims=True)
    shares: Floats = np.divide(positive, sums, out=np.zeros_like(positive), where=sums > 0.0)
    return shares


def _draw_table(axes: Axes, one: NamedTable, values: Floats, most: float, what: str) -> None:
    axes.imshow(values, cmap="Blues", vmin=0.0, vmax=most, aspect="auto")
    axes.grid(visible=False)
    column, parent = one.columns
    axes.set_title(f"{column} given {parent}, {what}", fontsize="small")
    rows, columns = one.cells
    axes.set_xticks(range(len(columns)), [_short(name) for name in columns], rotation=60, ha="right", size="xx-small")
    names = [_short(name) for name in rows] if what == "released" else [""] * len(rows)
    axes.set_yticks(range(len(rows)), names, size="xx-small")


def _mark(axes: Axes, table: ComparedTable) -> None:
    rows, columns = np.nonzero(np.abs(table.drawn - table.released) > table.margins)
    axes.plot(columns, rows, "x", color=RED, markersize=4)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
