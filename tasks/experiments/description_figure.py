"""Figure of a table's released histograms: one panel per column, each bar with its margin."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tasks.release.descriptions import UNMEASURED, DescribedColumn, Description, Figure
from tasks.runtime.plots import BLUE, png_of, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACROSS, _MOST_NAMED, _LONGEST = 4, 12, 14


def draw_description(found: Description) -> bytes:
    """Return the figure as PNG: bars of rows or people (shares of classes), whiskers their 95 % margins.

    Parameters
    ----------
    found : Description
    """
    across = min(_ACROSS, len(found.all))
    down = math.ceil(len(found.all) / across)
    with styled_figure(3.4 * across, 2.6 * down + 0.5) as figure:
        panels = figure.subplots(down, across, squeeze=False).ravel()
        for axes, column in zip(panels, found.all, strict=False):
            _draw(axes, column, "rows" if found.terms.unit == "row" else "people")
        for axes in panels[len(found.all) :]:
            axes.set_axis_off()
        terms = found.terms
        figure.suptitle(
            f"{terms.dataset}: epsilon {terms.epsilon:g} at delta {terms.delta:g} for a {terms.unit}; whiskers are "
            f"95 % margins{f'; ?: {UNMEASURED}' if any(_hidden(one) for one in found.all) else ''}"
        )
        return png_of(figure, 120)


def _drawn(column: DescribedColumn) -> list[Figure]:
    return column.of("bar", "count", "other") or column.of("share")


def _hidden(column: DescribedColumn) -> bool:
    """Whether some of a column's bars cannot be measured, and others can."""
    return len({one.measured for one in _drawn(column)}) > 1


def _draw(axes: Axes, column: DescribedColumn, counted: str) -> None:
    axes.set_title(f"{column.name} ({column.kind})", fontsize=9)
    bars = _drawn(column)
    known = np.array([one.measured for one in bars], dtype=bool)
    if not known.any():
        axes.text(0.5, 0.5, UNMEASURED, ha="center", va="center", transform=axes.transAxes, fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    measured = [one for one in bars if one.measured]
    values, low, high = (np.array([_number(one, end) for one in measured]) for end in ("value", "low", "high"))
    places = np.arange(len(bars))
    axes.bar(places[known], values, width=0.9, color=BLUE, alpha=0.75)
    yerr = [values - low, high - values]
    axes.errorbar(places[known], values, yerr=yerr, fmt="none", ecolor="#333333", elinewidth=0.8)
    # It keeps its place: without it the axis would end where the others do.
    for place in places[~known]:
        axes.text(place, 0.03, "?", ha="center", transform=axes.get_xaxis_transform(), fontsize=9, color="#777777")
    axes.set_xlim(-0.6, len(bars) - 0.4)
    axes.set_ylim(bottom=0.0)
    if bars[0].what != "share":
        axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("share" if bars[0].what == "share" else counted, fontsize=8)
    starts, stops = ([one.of.split(" to ")[end] for one in bars] for end in (0, -1))
    if bars[0].what == "bar" and starts[1:] == stops[:-1]:
        # The edges of bars, and not their middles: at most five of them.
        edges = [*starts, stops[-1]]
        step = max(1, math.ceil(len(bars) / 4))
        shown = [*range(0, len(bars), step), len(bars)]
        axes.set_xticks([place - 0.5 for place in shown], [edges[place] for place in shown], fontsize=7)
    else:
        names = [one.of if len(one.of) <= _LONGEST else one.of[: _LONGEST - 1] + "…" for one in bars]
        step = max(1, math.ceil(len(bars) / _MOST_NAMED))
        axes.set_xticks(places[::step], names[::step], fontsize=7, rotation=30, ha="right")
    axes.tick_params(axis="y", labelsize=7)


def _number(one: Figure, end: str) -> float:
    found = getattr(one, end)
    return float(one.value or 0.0) if found is None else float(found)
