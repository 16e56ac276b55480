"""Figure of a model's scores along each column, over the column's released histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpalgos.rows import Floats
from tasks.runtime.plots import BLUE, png_of, styled_figure
from tasks.tracking.effects import ColumnEffect, Effects, Rows, most_frequent, worth_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACROSS, _MOST_PANELS, _MOST_VALUES, _MOST_SCORES = 3, 24, 12, 10
_GREY, _DARK = "#CCCCCC", "#999999"


def draw_effects(found: Effects) -> bytes:
    """Return the figure as PNG: a panel a column, those with the largest effects first.

    All panels have one axis of scores, so that effects can be compared, and values stand in their declared order. Grey
    bars are noisy counts, as high as the largest of their panel, and their whiskers are the 95 % margins of the noise.
    The scores are those of the released model, whose noise is in its weights and not drawn again.

    Parameters
    ----------
    found : Effects
    """
    shown = found.columns[:_MOST_PANELS]
    across = min(_ACROSS, len(shown))
    down = math.ceil(len(shown) / across)
    with styled_figure(4.2 * across, 2.9 * down + 0.5) as figure:
        panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
        scores = [score for column in shown for part in column.parts for score in part.scores]
        low, high = min(scores), max(scores)
        reach = (high - low) or 1.0
        panels[0].set_ylim(low - 0.05 * reach, high + 0.05 * reach)
        for axes, column in zip(panels, shown, strict=False):
            (_draw_range if column.ranged else _draw_values)(axes, column, found.scores)
            axes.set_title(column.name)
        for axes in panels[len(shown) :]:
            axes.set_axis_off()
        if len(found.scores) > 1:
            panels[0].legend(fontsize="x-small")
        left = len(found.columns) - len(shown)
        which = f" (the {len(shown)} largest of {len(found.columns)})" if left else ""
        said = found.scores[0] if len(found.scores) == 1 else f"{len(found.scores)} scores"
        rows = f"; grey: {found.unit}, noisy, with 95 % margins" if found.counted else ""
        figure.suptitle(f"{said} along each column, the others at their reference{which}{rows}", fontsize="medium")
        return png_of(figure, 110)


def _draw_range(axes: Axes, column: ColumnEffect, scores: tuple[str, ...]) -> None:
    parts = [part for part in column.parts if part.high is not None]
    many = len(parts)
    if column.bar_rows:
        width = many / column.bars
        _draw_rows(axes, np.asarray(width * (np.arange(column.bars) + 0.5), dtype=np.float64), column.bar_rows, width)
    edges = np.arange(many + 1)
    for place, name in enumerate(scores[:_MOST_SCORES]):
        of = [part.scores[place] for part in parts]
        axes.stairs(of, edges.tolist(), baseline=None, label=name, color=_colour(scores, place), linewidth=1.4)
    ends = [parts[0].low, *(part.high for part in parts)]
    ticks = [round(many * share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    axes.set_xticks(ticks, [worth_text(ends[tick], 4) for tick in ticks], fontsize="x-small")
    axes.set_xlim(0, many)


def _draw_values(axes: Axes, column: ColumnEffect, scores: tuple[str, ...]) -> None:
    parts = most_frequent(column, _MOST_VALUES)
    places = np.arange(len(parts), dtype=np.float64)
    counted = [(place, part.rows) for place, part in zip(places, parts, strict=True) if part.rows is not None]
    if column.bars and counted:
        _draw_rows(axes, np.array([place for place, _ in counted]), [rows for _, rows in counted], 0.8)
    for place, name in enumerate(scores[:_MOST_SCORES]):
        of = [part.scores[place] for part in parts]
        axes.scatter(places, of, marker="_", s=200, linewidths=2, label=name, color=_colour(scores, place))
    names = [part.of if len(part.of) <= 14 else f"{part.of[:13]}…" for part in parts]
    left = len(column.parts) - len(parts)
    axes.set_xticks(places, names, rotation=60, ha="right", fontsize="x-small")
    if left:
        axes.set_xlabel(f"{left} more, with smaller counts", fontsize="x-small")


def _colour(scores: tuple[str, ...], place: int) -> str:
    return BLUE if len(scores) == 1 else f"C{place}"


def _draw_rows(axes: Axes, places: Floats, rows: Sequence[Rows], width: float) -> None:
    """Draw how many rows there are behind the scores, with their margins: the highest as high as the axis reaches."""
    values, low, high = np.array(rows).T
    floor, top = axes.get_ylim()
    scale = 0.9 * (top - floor) / max(float(high.max()), 1.0)
    axes.bar(places, scale * values, width=width, bottom=floor, color=_GREY)
    ends = scale * np.stack([values - low, high - values])
    axes.errorbar(places, floor + scale * values, yerr=ends, fmt="none", ecolor=_DARK, elinewidth=0.7, zorder=1.5)
