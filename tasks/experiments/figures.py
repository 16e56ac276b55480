"""Figures in one style: colour-blind safe, spread over seeds shown, proved and unproved distinct at a glance."""

from __future__ import annotations

import io
import numbers
import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from tasks.experiments.points import PointResult, Status
from tasks.experiments.specification import Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
from tasks.runtime.plots import STYLE

__all__ = ["DecisionBoundaries", "Drawing", "axis_label", "draw", "draw_boundaries"]

# Okabe and Ito's palette without its black (no privacy) and its yellow (too pale on paper).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F3C8D", "#5F6A6A")
_MARKERS = ("o", "s", "^", "D", "v", "P", "h", "*")
_AXIS_LABELS = MappingProxyType(
    {
        "accuracy": "accuracy",
        "auc": "area under the ROC curve",
        "delta": "δ",
        "dimension": "target dimension k",
        "epsilon": "privacy budget ε",
        "iterations": "iterations",
        "accuracy_change": "accuracy − the optimum's",
        "objective": "objective",
        "optimality_gap": "objective − the optimum's",
        "objective_error": "|objective − WSS 2's|",
        "iteration_ratio": "iterations / WSS 2's",
        "releasing_seconds": "seconds to train",
        "rows_per_party": "rows a party n",
        "parties": "parties N",
        "sizes": "rows of each party",
    }
)
_SUFFIXES = MappingProxyType({"proved": "", "unproved": " ✗ not proved", "non-private": " (no privacy)"})
# Inches; a panel alone is wider. A letter's width is that of the legend's and the ticks' small print.
_PANEL_WIDTH, _ONLY_PANEL_WIDTH, _PANEL_HEIGHT, _LEGEND_LINE = 4.6, 6.4, 3.1, 0.19
_LETTER, _HANDLE = 0.073, 0.55


class Drawing(BaseModel, frozen=True):
    """A figure as files."""

    png: bytes
    svg: bytes


class DecisionBoundaries(BaseModel, frozen=True):
    """Rows of two features and where models of two classes divide them.

    Attributes
    ----------
    rows : list of (x, y, class)
    grid : (list, list)
        x and y where the models are asked.
    scores : list of (label, status, scores)
        Of each model, a score for each y and x.
    """

    rows: list[tuple[float, float, int]]
    grid: tuple[list[float], list[float]]
    scores: list[tuple[str, Status, list[list[float]]]]
    axes: tuple[str, str] = ("first feature", "second feature")


def axis_label(name: str) -> str:
    """Return how an axis or a metric is called for people."""
    return _AXIS_LABELS.get(name, name.removeprefix("param.").replace("_", " "))


def _family(label: str) -> str:
    """Return whose colour a label has: a published system shares it with its sound counterpart."""
    return label.removesuffix("-published").removesuffix(" (published)")


class _Style:
    """How each series looks: colour by family, everything else by what is proved."""

    def __init__(self, results: Sequence[PointResult]) -> None:
        self.labels = list(dict.fromkeys(result.label for result in results))
        self.status = {result.label: result.status for result in results}
        # One line without privacy is the black reference; several among themselves need colours like others.
        plain = [one for one in self.labels if self.status[one] == "non-private"]
        self._black = plain[0] if plain else None
        families = list(dict.fromkeys(_family(one) for one in self.labels if one != self._black))
        self._place = {family: place for place, family in enumerate(families)}

    def colour(self, label: str) -> str:
        return "#000000" if label == self._black else _COLOURS[self._place[_family(label)] % len(_COLOURS)]

    def line(self, label: str) -> dict[str, Any]:
        colour = self.colour(label)
        if self.status[label] == "non-private":
            return {"color": colour, "linestyle": ":", "linewidth": 1.4, "marker": ""}
        # Beyond eight series colours come again, with other markers.
        place = self._place[_family(label)]
        marker = _MARKERS[(place + place // len(_COLOURS)) % len(_MARKERS)]
        common = {"color": colour, "marker": marker, "markersize": 5.5}
        if self.status[label] == "proved":
            return {**common, "linestyle": "-", "linewidth": 1.8}
        return {**common, "linestyle": "--", "linewidth": 1.2, "markerfacecolor": "white"}

    def bar(self, label: str) -> dict[str, Any]:
        colour = self.colour(label)
        if self.status[label] == "proved":
            return {"facecolor": colour, "edgecolor": colour}
        hatch = "" if self.status[label] == "non-private" else "////"
        return {"facecolor": "white", "edgecolor": colour, "hatch": hatch, "linewidth": 1.2}

    def legend_label(self, label: str) -> str:
        return f"{label}{_SUFFIXES[self.status[label]]}"


def _is_number(value: object) -> TypeGuard[numbers.Real]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(part) for part in value)
    return f"{value:g}" if _is_number(value) else str(value)


def _series(results: Sequence[PointResult], x: str, y: str) -> list[tuple[Any, list[float]]]:
    """Return the values at each place of an axis, in its order; None stands for results the axis does not concern."""
    found: dict[str, tuple[Any, list[float]]] = {}
    for result in results:
        if y in result.metrics and np.isfinite(result.metrics[y]):
            place = result.value(x)
            found.setdefault(_text(place) if place is not None else "", (place, []))[1].append(result.metrics[y])
    places = list(found.values())
    return sorted(places, key=lambda item: item[0]) if all(_is_number(place) for place, _ in places) else places


def _positions(results: Sequence[PointResult], x: str) -> tuple[dict[str, float], bool]:
    values = {_text(place): place for result in results if (place := result.value(x)) is not None}
    numeric = {text: float(place) for text, place in values.items() if _is_number(place)}
    if len(numeric) == len(values):
        return numeric, True
    return {text: float(number) for number, text in enumerate(values)}, False


def _name_places(axes: Axes, texts: Sequence[str], across: int) -> None:
    """Write a name at each place 0, 1, …: on several lines between words, slanted where a word is too long."""
    letters = int(_width(across) / across * 0.8 / _LETTER / len(texts))
    if max(len(word) for text in texts for word in ["", *text.split()]) <= letters:
        axes.set_xticks(range(len(texts)), [textwrap.fill(text, max(letters, 1)) for text in texts], fontsize=7)
    else:
        axes.set_xticks(range(len(texts)), texts, fontsize=7, rotation=30, ha="right", rotation_mode="anchor")


def _draw_lines(axes: Axes, results: Sequence[PointResult], plot: Plot, y: str, style: _Style, across: int) -> None:
    positions, numeric = _positions(results, plot.x)
    for label in style.labels:
        series = _series([result for result in results if result.label == label], plot.x, y)
        if not series:
            continue
        if any(place is None for place, _ in series):
            values = [value for _, found in series for value in found]
            axes.axhline(fmean(values), label=style.legend_label(label), **{**style.line(label), "marker": ""})
            axes.axhspan(min(values), max(values), color=style.colour(label), alpha=0.08, linewidth=0)
            continue
        xs = [positions[_text(place)] for place, _ in series]
        axes.plot(xs, [fmean(values) for _, values in series], label=style.legend_label(label), **style.line(label))
        low, high = [min(values) for _, values in series], [max(values) for _, values in series]
        axes.fill_between(xs, low, high, color=style.colour(label), alpha=0.15, linewidth=0)
    if numeric and plot.log_x:
        axes.set_xscale("log")
        axes.set_xticks(sorted(positions.values()), [_text(value) for value in sorted(positions.values())])
        axes.minorticks_off()
    elif not numeric:
        _name_places(axes, list(positions), across)
        axes.margins(x=0.08)


def _draw_bars(axes: Axes, results: Sequence[PointResult], plot: Plot, y: str, style: _Style, across: int) -> None:
    measured = [result for result in results if y in result.metrics]
    found = dict.fromkeys(_text(place) for result in results if (place := result.value(plot.x)) is not None)
    places = list(found) or [""]
    labels = [label for label in style.labels if any(result.label == label for result in measured)]
    width = 0.8 / max(len(labels), 1)
    for number, label in enumerate(labels):
        mine = [result for result in measured if result.label == label]
        everywhere = any(result.value(plot.x) is None for result in mine)
        legend: str | None = style.legend_label(label)
        for place, text in enumerate(places):
            at = [result.metrics[y] for result in mine if everywhere or _text(result.value(plot.x)) == text]
            if not at:
                continue
            middle, centre = fmean(at), place - 0.4 + width * (number + 0.5)
            # The mean of equal values can be off by its last bit, and matplotlib refuses a whisker below nothing.
            spread = [[max(middle - min(at), 0.0)], [max(max(at) - middle, 0.0)]]
            axes.bar(centre, middle, width * 0.9, label=legend, **style.bar(label))
            axes.errorbar(centre, middle, yerr=spread, color="#333333", linewidth=0.9, capsize=2)
            legend = None
    _name_places(axes, places, across)
    axes.grid(axis="x", visible=False)


_KINDS = MappingProxyType({"lines": _draw_lines, "bars": _draw_bars})


def draw(plot: Plot, results: Sequence[PointResult], title: str) -> Drawing:
    """Draw results: a panel for each data set (or whatever the plot says) and metric.

    A solid line and a filled marker are proved; a dashed line with an open marker is not; dotted black has no privacy.
    Bands and whiskers go from the smallest to the largest value over seeds.

    Parameters
    ----------
    plot : Plot
    results : sequence of PointResult
        At least one with one of the plot's metrics.
    title : str
    """
    from matplotlib import rc_context

    style = _Style(results)
    panels = [
        (panel, y)
        for y in plot.y
        for panel in dict.fromkeys(_text(result.value(plot.panels)) for result in results if y in result.metrics)
    ]
    across = min(len(panels), 4) or 1
    down = -(-len(panels) // across) or 1
    with rc_context(dict(STYLE)):
        figure, grid = _figure(across, down, [style.legend_label(label) for label in style.labels], title)
        for axes, (panel, y) in zip(grid, panels, strict=False):
            mine = [result for result in results if _text(result.value(plot.panels)) == panel]
            _KINDS[plot.kind](axes, mine, plot, y, style, across)
            axes.set_title(panel if plot.panels == "dataset" else f"{axis_label(plot.panels)}: {panel}", fontsize=9)
            axes.set_xlabel(plot.x_title or axis_label(plot.x))
            axes.set_ylabel(plot.y_title or axis_label(y))
            if y in plot.log_y:
                _use_log_y(axes, [result.metrics[y] for result in mine if y in result.metrics])
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        return _finish(figure, grid[: len(panels)], across)


def _use_log_y(axes: Axes, values: Sequence[float]) -> None:
    """Start at a power of ten and write plain numbers, between the powers too where there are few."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_yscale("log")
    positive = [value for value in values if value > 0 and np.isfinite(value)]
    if not positive:
        return
    axes.set_ylim(bottom=10.0 ** np.floor(np.log10(min(positive))))
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(plain if max(positive) < 30 * min(positive) else NullFormatter())
    axes.tick_params(axis="y", which="minor", labelsize=7)


def draw_boundaries(boundaries: DecisionBoundaries, title: str) -> Drawing:
    """Draw rows of two features and, for each model, where its score is zero."""
    from matplotlib import rc_context

    with rc_context(dict(STYLE)):
        series = ["class 0", "class 1", *(f"{label}{_SUFFIXES[status]}" for label, status, _ in boundaries.scores)]
        figure, (axes, *_) = _figure(1, 1, series, title)
        rows: NDArray[np.float64] = np.array(boundaries.rows, dtype=np.float64)
        for number, name in enumerate(("class 0", "class 1")):
            mine = rows[rows[:, 2] == number]
            axes.scatter(mine[:, 0], mine[:, 1], s=12, marker="ox"[number], color="#999999", label=name, linewidths=0.8)
        for number, (label, status, scores) in enumerate(boundaries.scores):
            colour = "#000000" if status == "non-private" else _COLOURS[number % len(_COLOURS)]
            dashes = {"non-private": "dotted", "unproved": "dashed", "proved": "solid"}[status]
            axes.contour(*boundaries.grid, scores, levels=[0.0], colors=[colour], linestyles=[dashes], linewidths=1.6)
            axes.plot([], [], color=colour, linestyle=dashes, label=f"{label}{_SUFFIXES[status]}")
        axes.set_xlabel(boundaries.axes[0])
        axes.set_ylabel(boundaries.axes[1])
        return _finish(figure, [axes], 1)


def _width(across: int) -> float:
    return _ONLY_PANEL_WIDTH if across == 1 else _PANEL_WIDTH * across


def _columns(across: int, labels: Sequence[str]) -> int:
    """Return how many columns of a legend fit into a figure."""
    return max(1, int(_width(across) / (_HANDLE + _LETTER * max(map(len, labels), default=1))))


def _figure(across: int, down: int, labels: Sequence[str], title: str) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    # A title never ends outside the figure: about twelve letters go to an inch.
    title = textwrap.fill(title, int(12 * _width(across)))
    legend = _LEGEND_LINE * -(-len(labels) // _columns(across, labels)) + 0.25
    figure = Figure(figsize=(_width(across), _PANEL_HEIGHT * down + legend + 0.35), layout="constrained")
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure, list(np.atleast_1d(figure.subplots(down, across, squeeze=False)).flat)


def _finish(figure: Figure, panels: Sequence[Axes], across: int) -> Drawing:
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    columns = _columns(across, list(found))
    figure.legend(list(found.values()), list(found), loc="outside lower left", ncols=columns, fontsize=8)
    pictures: Mapping[str, io.BytesIO] = {"png": io.BytesIO(), "svg": io.BytesIO()}
    figure.savefig(pictures["png"], format="png", dpi=160)
    figure.savefig(pictures["svg"], format="svg", metadata={"Date": None})
    return Drawing(png=pictures["png"].getvalue(), svg=pictures["svg"].getvalue())
