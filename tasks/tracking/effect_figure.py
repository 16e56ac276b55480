"""What a model says about each column, as a figure: scores along the column, over its released histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpalgos.rows import Floats
from tasks.runtime.plots import BLUE, png_of, styled_figure
from tasks.tracking.effects import ColumnEffect, Effects, Part, rows_of, worth_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACROSS, _MOST_PANELS, _MOST_VALUES, _MOST_SCORES = 3, 24, 12, 10
_GREY = "#CCCCCC"


def draw_effects(found: Effects) -> bytes:
    """Return the figure as PNG: a panel a column, those with the largest effects first.

    Parameters
    ----------
    found : Effects
    """
    shown = found.columns[:_MOST_PANELS]
    across = min(_ACROSS, len(shown))
    down = math.ceil(len(shown) / across)
    with styled_figure(4.2 * across, 2.9 * down + 0.5) as figure:
        panels = figure.subplots(down, across, squeeze=False).ravel()
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
        rows = f"; grey: {found.unit}, noisy" if found.counted else ""
        figure.suptitle(f"{said} along each column, the others at their reference{which}{rows}", fontsize="medium")
        return png_of(figure, 110)


def _draw_range(axes: Axes, column: ColumnEffect, scores: tuple[str, ...]) -> None:
    parts = [part for part in column.parts if part.high is not None]
    many = len(parts)
    if column.bars:
        rows = np.array([rows_of(part) for part in parts]).reshape(column.bars, -1).sum(axis=1)
        width = many / column.bars
        _draw_rows(axes, width * np.arange(column.bars, dtype=np.float64), rows, width, "edge", parts)
    edges = np.arange(many + 1)
    for place, name in enumerate(scores[:_MOST_SCORES]):
        of = [part.scores[place] for part in parts]
        axes.stairs(of, edges.tolist(), baseline=None, label=name, color=_colour(scores, place), linewidth=1.4)
    ends = [parts[0].low, *(part.high for part in parts)]
    ticks = [round(many * share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    axes.set_xticks(ticks, [worth_text(ends[tick], 4) for tick in ticks], fontsize="x-small")
    axes.set_xlim(0, many)


def _draw_values(axes: Axes, column: ColumnEffect, scores: tuple[str, ...]) -> None:
    parts = sorted(column.parts, key=lambda part: -rows_of(part))[:_MOST_VALUES]
    places = np.arange(len(parts), dtype=np.float64)
    if column.bars:
        _draw_rows(axes, places, np.array([rows_of(part) for part in parts]), 0.8, "center", parts)
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


def _draw_rows(
    axes: Axes, places: Floats, rows: Floats, width: float, align: Literal["edge", "center"], parts: Sequence[Part]
) -> None:
    """Draw how many rows there are behind the scores, as high as these reach: on no scale of their own."""
    all_scores = [score for part in parts for score in part.scores]
    low, high = min(all_scores), max(all_scores)
    reach = (high - low) or 1.0
    floor = low - 0.05 * reach
    axes.bar(places, rows / max(rows.max(), 1.0) * reach, width=width, align=align, bottom=floor, color=_GREY)
    axes.set_ylim(floor, high + 0.05 * reach)
