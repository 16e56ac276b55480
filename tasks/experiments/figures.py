"""Figures in one style: colour-blind safe, spread over seeds shown, proved and unproved distinct at a glance."""

import io
import numbers
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from dpalgos.rows import Floats, Ints
from tasks.experiments.point_results import PointResult, Status, axis_label, column, table_of
from tasks.experiments.records import Drawing
from tasks.experiments.specifications import Plot
from tasks.runtime.plots import STYLE, readable

# Okabe and Ito's palette without its black (no privacy) and its yellow (too pale on paper).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F3C8D", "#5F6A6A")
_MARKERS = ("o", "s", "^", "D", "v", "P", "h", "*")
_SUFFIXES = MappingProxyType({"proved": "", "unproved": " ✗ not proved", "non-private": " (no privacy)"})
_Looks = dict[str, dict[str, dict[str, Any]]]
_LINES: Mapping[Status, dict[str, object]] = MappingProxyType(
    {
        "proved": {"linestyle": "-", "linewidth": 1.8},
        "unproved": {"linestyle": "--", "linewidth": 1.2, "markerfacecolor": "white"},
        "non-private": {"linestyle": ":", "linewidth": 1.4, "marker": ""},
    }
)
# Inches; a panel alone is wider. A letter's width is that of the legend's and the ticks' small print.
_PANEL_WIDTH, _ONLY_PANEL_WIDTH, _PANEL_HEIGHT, _TITLE_HEIGHT = 4.6, 6.4, 3.1, 0.35
_LETTER = 0.073


def _family(label: str) -> str:
    """Return whose colour a label has: a published system shares it with its sound counterpart."""
    return label.removesuffix("-published").removesuffix(" (published)")


def _looks(status: Mapping[str, Status]) -> _Looks:
    """Return how each series looks as a line and as a bar: colour by family, all else by what is proved of it."""
    # One line without privacy is the black reference; several among themselves need colours like others.
    black = next((label for label, proved in status.items() if proved == "non-private"), None)
    families = list(dict.fromkeys(_family(label) for label in status if label != black))
    looks = {}
    for label, proved in status.items():
        place = 0 if label == black else families.index(_family(label))
        colour = "#000000" if label == black else _COLOURS[place % len(_COLOURS)]
        # Beyond eight series colours come again, with other markers.
        marker = {"marker": _MARKERS[(place + place // len(_COLOURS)) % len(_MARKERS)], "markersize": 5.5}
        named = {"label": f"{label}{_SUFFIXES[proved]}"}
        face, hatch = colour if proved == "proved" else "white", "////" if proved == "unproved" else ""
        looks[label] = {
            "line": {"color": colour, **named, **marker, **_LINES[proved]},
            "bar": {**named, "edgecolor": colour, "linewidth": 1.2, "facecolor": face, "hatch": hatch},
        }
    return looks


def _places(table: pd.DataFrame, x: str) -> tuple[dict[object, float], bool]:
    """Return where the values of an axis stand, and whether that is where they are as numbers."""
    values = list(table[x].dropna().unique())
    numeric = all(isinstance(value, numbers.Real) and not isinstance(value, bool) for value in values)
    return {value: float(value) if numeric else float(number) for number, value in enumerate(values)}, numeric


def _name_places(axes: Axes, texts: Sequence[str]) -> None:
    """Write a name at each place 0, 1, …: on several lines between words, slanted where a word is too long."""
    letters = int(axes.get_window_extent().width / axes.figure.dpi / _LETTER / len(texts))
    if max(len(word) for text in texts for word in ["", *text.split()]) <= letters:
        axes.set_xticks(range(len(texts)), [textwrap.fill(text, max(letters, 1)) for text in texts], fontsize=7)
    else:
        axes.set_xticks(range(len(texts)), texts, fontsize=7, rotation=30, ha="right", rotation_mode="anchor")


def _draw_lines(axes: Axes, table: pd.DataFrame, plot: Plot, y: str, looks: _Looks) -> None:
    x = column(plot.x)
    places, numeric = _places(table, x)
    for label, own in table.groupby("label", sort=False):
        line = looks[label]["line"]
        shade: dict[str, Any] = {"color": line["color"], "linewidth": 0}
        if own[x].isna().any():
            axes.axhline(own[y].mean(), **{**line, "marker": ""})
            axes.axhspan(own[y].min(), own[y].max(), alpha=0.08, **shade)
            continue
        spread = own.groupby(own[x].map(places))[y].agg(["mean", "min", "max"])
        axes.plot(spread.index, spread["mean"], **line)
        axes.fill_between(spread.index, spread["min"], spread["max"], alpha=0.15, **shade)
    if not numeric:
        _name_places(axes, list(map(str, places)))
        axes.margins(x=0.08)
    elif plot.log_x:
        axes.set_xscale("log")
        axes.set_xticks(sorted(places.values()), [f"{place:g}" for place in sorted(places.values())])
        axes.minorticks_off()


def _draw_bars(axes: Axes, table: pd.DataFrame, plot: Plot, y: str, looks: _Looks) -> None:
    x = column(plot.x)
    places = list(_places(table, x)[0]) or [""]
    width = 0.8 / table["label"].nunique()
    for number, (label, own) in enumerate(table.groupby("label", sort=False)):
        if own[x].isna().any():
            # What the axis does not concern stands at each place.
            own = pd.concat([own.assign(**{x: place}) for place in places])
        middle, low, high = own.groupby(x)[y].agg(["mean", "min", "max"]).reindex(places).to_numpy().T
        # The mean of equal values can be off by its last bit, and matplotlib refuses a whisker below nothing.
        whiskers = np.maximum([middle - low, high - middle], 0.0)
        centres = np.arange(len(places)) - 0.4 + width * (number + 0.5)
        axes.bar(centres, middle, width * 0.9, **looks[label]["bar"])
        axes.errorbar(centres, middle, yerr=whiskers, color="#333333", linewidth=0.9, capsize=2, linestyle="")
    _name_places(axes, list(map(str, places)))
    axes.grid(axis="x", visible=False)


def draw(plot: Plot, results: Sequence[PointResult], title: str) -> Drawing:
    """Draw results: a panel for each data set (or other field that the plot names) and metric.

    A solid line and a filled marker are proved; a dashed line with an open marker is not; dotted black has no privacy.
    Bands and whiskers go from the smallest to the largest value over seeds.

    Parameters
    ----------
    plot : Plot
    results : sequence of PointResult
        At least one with one of the plot's metrics.
    title : str
    """
    table = table_of(results).replace([np.inf, -np.inf], np.nan)
    looks = _looks(dict(zip(table["label"], table["status"], strict=True)))
    draw_panel = _draw_bars if plot.kind == "bars" else _draw_lines
    metrics = [f"metric_{name}" for name in plot.y]
    table = table.reindex(columns=list(dict.fromkeys([*table, column(plot.x), column(plot.panels), *metrics])))
    panels = [
        (name, metric, own)
        for metric in metrics
        for name, own in table.dropna(subset=[metric]).groupby(column(plot.panels), sort=False, dropna=False)
    ]
    across = min(len(panels), 4) or 1
    with rc_context(dict(STYLE)):
        figure, grid = _figure(across, -(-len(panels) // across) or 1, title)
        for axes, (panel, metric, own) in zip(grid, panels, strict=False):
            draw_panel(axes, own, plot, metric, looks)
            y = metric.removeprefix("metric_")
            axes.set_title(
                str(panel) if plot.panels == "dataset" else f"{axis_label(plot.panels)}: {panel}", fontsize=9
            )
            axes.set_xlabel(plot.x_title or axis_label(plot.x))
            axes.set_ylabel(plot.y_title or axis_label(y))
            if y in plot.log_y:
                _use_log_y(axes, own[metric].tolist())
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        return _finish(figure, grid[: len(panels)], across)


def _use_log_y(axes: Axes, values: Sequence[float]) -> None:
    """Start at a power of ten and write plain numbers, between the powers too where there are few."""
    axes.set_yscale("log")
    positive = [value for value in values if value > 0 and np.isfinite(value)]
    if not positive:
        return
    axes.set_ylim(bottom=10.0 ** np.floor(np.log10(min(positive))))
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(plain if max(positive) < 30 * min(positive) else NullFormatter())
    axes.tick_params(axis="y", which="minor", labelsize=7)


def draw_boundaries(
    rows: Floats, labels: Ints, grid: tuple[Floats, Floats], scores: Sequence[tuple[str, Status, Floats]], title: str
) -> Drawing:
    """Draw rows of two features and two classes and, for each model, where its score is zero.

    Parameters
    ----------
    rows : array (n, 2)
    labels : array (n,)
    grid : (array, array)
        x and y where the models are asked.
    scores : sequence of (label, status, array)
        Of each model, a score for each y and x.
    title : str
    """
    with rc_context(dict(STYLE)):
        figure, (axes, *_) = _figure(1, 1, title)
        for number in (0, 1):
            x, y = rows[labels == number].T
            axes.scatter(x, y, s=12, marker="ox"[number], color="#999999", label=f"class {number}", linewidths=0.8)
        looks = _looks({label: status for label, status, _ in scores})
        for label, _, score in scores:
            line = {**looks[label]["line"], "marker": ""}
            axes.contour(*grid, score, levels=[0.0], colors=[line["color"]], linestyles=[line["linestyle"]])
            axes.plot([], [], **line)
        axes.set(xlabel="first feature", ylabel="second feature")
        return _finish(figure, [axes], 1)


def _figure(across: int, down: int, title: str) -> tuple[Figure, list[Axes]]:
    width = _ONLY_PANEL_WIDTH if across == 1 else _PANEL_WIDTH * across
    figure = Figure(figsize=(width, _PANEL_HEIGHT * down + _TITLE_HEIGHT), layout="constrained")
    # A title never ends outside the figure: about twelve letters go to an inch.
    figure.suptitle(textwrap.fill(title, int(12 * width)), fontsize=10, x=0.01, ha="left")
    return figure, list(figure.subplots(down, across, squeeze=False).flat)


def _finish(figure: Figure, panels: Sequence[Axes], across: int) -> Drawing:
    entries: dict[str, Any] = {}
    for axes in panels:
        entries = {**dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True)), **entries}
    # Below the panels, which keep their sizes: the picture grows by it.
    below = {"loc": "upper left", "bbox_to_anchor": (0, 0), "ncols": across + 1}
    figure.legend(list(entries.values()), list(entries), fontsize=8, **below)
    png, svg = io.BytesIO(), io.BytesIO()
    with readable(figure):
        figure.savefig(png, format="png", dpi=160, bbox_inches="tight")
        figure.savefig(svg, format="svg", metadata={"Date": None}, bbox_inches="tight")
    return Drawing(png=png.getvalue(), svg=svg.getvalue())
