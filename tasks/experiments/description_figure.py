"""What released histograms say of a table as one figure: a panel a column, each bar with its margin."""

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
            "95 % margins"
        )
        return png_of(figure, 120)


def _draw(axes: Axes, column: DescribedColumn, counted: str) -> None:
    axes.set_title(f"{column.name} ({column.kind})", fontsize=9)
    bars = [one for one in column.of("bar", "count", "other") or column.of("share") if one.measured]
    if not bars:
        axes.text(0.5, 0.5, UNMEASURED, ha="center", va="center", transform=axes.transAxes, fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    values, low, high = (np.array([_number(one, end) for one in bars]) for end in ("value", "low", "high"))
    places = np.arange(len(bars))
    axes.bar(places, values, width=0.9, color=BLUE, alpha=0.75)
    axes.errorbar(places, values, yerr=[values - low, high - values], fmt="none", ecolor="#333333", elinewidth=0.8)
    axes.set_ylim(bottom=0.0)
    if bars[0].what != "share":
        axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("share" if bars[0].what == "share" else counted, fontsize=8)
    if bars[0].what == "bar":
        # The edges of bars, and not their middles: at most five of them.
        edges = [*(one.of.split(" to ")[0] for one in bars), bars[-1].of.split(" to ")[-1]]
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
