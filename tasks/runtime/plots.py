"""The style of all figures, figures as files, and what was measured of one model as a figure."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpalgos.measured import Metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


STYLE: Mapping[str, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    # Text as outlines and ids from a fixed salt: the picture is the same on every machine.
    "svg.fonttype": "path",
    "svg.hashsalt": "unitball",
}
"""Matplotlib's settings."""

BLUE, RED = "#0072B2", "#D55E00"
"""Okabe and Ito's blue and vermilion."""


@contextmanager
def styled_figure(width: float, height: float) -> Iterator[Figure]:
    """Yield a figure of so many inches, in our style as long as the context is open."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(dict(STYLE)):
        yield Figure(figsize=(width, height), layout="constrained")


def png_of(figure: Figure, dpi: int) -> bytes:
    """Return a figure as PNG, without its maker's version: the same wherever it was drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    figure.set_dpi(dpi)
    with readable(figure):
        # The canvas itself draws once; ``savefig`` draws everything twice where a layout is to be found.
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


@contextmanager
def readable(figure: Figure) -> Iterator[None]:
    """Draw a figure within this context: names from users are drawn as plain text, in a font that has their letters.

    A dollar begins no mathematics. Where the bundled font lacks a letter, another installed font is added: such a
    figure can differ between machines. What no font has is drawn as a box, without a word on stderr.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if "$" in text.get_text():
            text.set_parse_math(False)
        if more := _fonts_of(frozenset(text.get_text())):
            text.set_fontfamily([str(STYLE["font.family"]), *more])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@lru_cache(256)
def _fonts_of(letters: frozenset[str]) -> tuple[str, ...]:
    """Return the families of installed fonts that have those letters which our font lacks."""
    if all(letter < "\u0250" for letter in letters):
        return ()
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    lacking = {ord(letter) for letter in letters if not letter.isspace()}
    lacking -= _letters_in(findfont(FontProperties(family=str(STYLE["font.family"]))))
    found: list[str] = []
    for font in sorted(fontManager.ttflist, key=lambda one: (one.name, one.fname)):
        if not lacking:
            break
        # The last resort has a box for every letter there is.
        if (
            font.style == "normal"
            and "Last" not in font.name
            and not lacking.isdisjoint(has := _letters_in(font.fname))
        ):
            found.append(font.name)
            lacking -= has
    return tuple(found)


@lru_cache(512)
def _letters_in(path: str) -> frozenset[int]:
    from matplotlib.font_manager import get_font

    try:
        return frozenset(get_font(path).get_charmap())
    except (OSError, RuntimeError):
        # A font that cannot be read has none.
        return frozenset()


# Counts in the cells can be read up to so many classes, and names beside them.
_MOST_WRITTEN = 12
_MOST_CURVES = 10
_MOST_PANELS, _PANELS_ACROSS = 12, 4
# Characters of a group's name beside a panel.
_LONGEST = 32

Matrix = Sequence[Sequence[float]]
Curve = Sequence[tuple[float, float]]


def draw_measured(classes: Sequence[str], confusion: Matrix, roc: Sequence[Curve], measured_on: str) -> bytes:
    """Return one figure as PNG: the confusion matrix and the ROC curves, side by side where both are given.

    Parameters
    ----------
    classes : sequence of str
    confusion : array (K, K), or empty
        True class by predicted class; noisy counts are shown as they are.
    roc : sequence of curves, or empty
        One a class, or one where there are two classes.
    measured_on : str
        Part of the title.
    """
    from matplotlib.figure import Figure

    panels = bool(confusion) + bool(roc)
    figure = Figure(figsize=(4.8 * panels, 4.4), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    if confusion:
        _draw_confusion(axes[0], classes, np.asarray(confusion, dtype=np.float64))
    if roc:
        _draw_roc(axes[-1], classes, roc, noisy="noisy" in measured_on)
    figure.suptitle(f"measured on {measured_on}", fontsize="medium")
    return png_of(figure, 110)


def draw_groups(column: str, groups: Mapping[str, Metrics], rates: Mapping[str, str], measured_on: str) -> bytes:
    """Return how a model does for each group of rows as PNG: a panel a rate, a line a group, with its margin.

    A rate that cannot be measured is drawn as a grey line over its margin, without a point.

    Parameters
    ----------
    column : str
    groups : mapping of group to Metrics
        With the limits of their margins where there are any.
    rates : mapping of metric to str
        What is drawn, and how it is called.
    measured_on : str
        Part of the title.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.8 * len(rates) + 1.2, 1.4 + 0.32 * len(groups)), layout="constrained")
    panels = figure.subplots(1, len(rates), squeeze=False, sharey=True)[0]
    for axes, (rate, name) in zip(panels, rates.items(), strict=True):
        for place, metrics in enumerate(groups.values()):
            if rate not in metrics:
                continue
            measured, value = metrics.is_known(rate), metrics[rate]
            low, high = metrics.limits(rate) or (value, value)
            axes.plot([low, high], [place, place], color="C0" if measured else "0.8", linewidth=2)
            if measured:
                axes.plot([value], [place], "o", color="C0", markersize=5)
        axes.set(xlim=(-0.02, 1.02), xlabel=name)
        axes.grid(axis="x", color="0.9")
    # The first group stands at the top.
    panels[0].set_yticks(range(len(groups)), list(map(_short, groups)))
    panels[0].set_ylim(len(groups) - 0.5, -0.5)
    grey = ""
    if any(rate in metrics.reasons for metrics in groups.values() for rate in rates):
        grey = "; grey: cannot be measured"
    figure.suptitle(f"by {column}, measured on {measured_on}{grey}", fontsize="medium")
    return png_of(figure, 110)


def draw_group_curves(
    column: str, curves: Mapping[str, Sequence[Sequence[float]]], whole: Sequence[Curve], measured_on: str
) -> bytes:
    """Return the ROC curve of each group of rows as PNG, a panel a group, with the band that holds at all thresholds.

    Parameters
    ----------
    column : str
    curves : mapping of group to points
        False and true positive rate, and the ends of the margin of each.
    whole : sequence of curves
        The first is that of all groups together, drawn in grey.
    measured_on : str
        Part of the title.
    """
    from matplotlib.figure import Figure

    shown = list(curves.items())[:_MOST_PANELS]
    across = min(len(shown), _PANELS_ACROSS)
    down = -(-len(shown) // across)
    figure = Figure(figsize=(3.0 * across + 0.6, 3.0 * down + 0.8), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes in panels.ravel()[len(shown) :]:
        axes.set_visible(False)
    for axes, (name, points) in zip(panels.ravel(), shown, strict=False):
        false, true, false_low, false_high, true_low, true_high = np.asarray(points, dtype=np.float64)[::-1].T
        # Between two thresholds both rates rise: the band holds the rectangle from the lower ends to the upper ones.
        places = np.linspace(0.0, 1.0, 201)
        left, right = np.array([0.0, *false_low])[:, None], np.array([*false_high, 1.0])[:, None]
        inside = (left <= places) & (places <= right)
        low = np.where(inside, np.array([0.0, *true_low])[:, None], 1.0).min(axis=0)
        high = np.where(inside, np.array([*true_high, 1.0])[:, None], 0.0).max(axis=0)
        axes.fill_between(places, low, high, color="C0", alpha=0.2, linewidth=0)
        for curve in whole[:1]:
            axes.plot(*np.asarray(curve, dtype=np.float64).T, color="0.5", linewidth=1)
        axes.plot([0.0, *false, 1.0], [0.0, *true, 1.0], color="C0")
        axes.plot([0, 1], [0, 1], color="0.7", linestyle="--", zorder=0)
        axes.set(aspect="equal", title=_short(name))
    figure.supxlabel("false positive rate", fontsize="medium")
    figure.supylabel("true positive rate", fontsize="medium")
    figure.suptitle(f"by {column}, measured on {measured_on}; grey: all groups", fontsize="medium")
    return png_of(figure, 110)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _draw_confusion(axes: Axes, classes: Sequence[str], counts: NDArray[np.float64]) -> None:
    positive = np.maximum(counts, 0.0)
    rows = positive.sum(axis=1, keepdims=True)
    shares = np.divide(positive, rows, out=np.zeros_like(positive), where=rows > 0)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    axes.set(xlabel="predicted class", ylabel="true class")
    if len(classes) > _MOST_WRITTEN:
        return
    places = range(len(classes))
    axes.set_xticks(places, classes, rotation=45, ha="right")
    axes.set_yticks(places, classes)
    for (true, predicted), count in np.ndenumerate(counts):
        colour = "white" if shares[true, predicted] > 0.5 else "black"
        cell = axes.text(predicted, true, f"{count:.0f}", ha="center", va="center", color=colour, fontsize="small")
        # Inside the axes, so that the layout need not measure it.
        cell.set_in_layout(False)


def _draw_roc(axes: Axes, classes: Sequence[str], curves: Sequence[Curve], *, noisy: bool) -> None:
    names = classes[1:] if len(curves) == 1 else classes
    for name, curve in list(zip(names, curves, strict=False))[:_MOST_CURVES]:
        false, true = np.asarray(curve, dtype=np.float64).T
        # A noisy curve is bent to rise; the area with its margin is computed without that.
        axes.plot(false, true, label=name if noisy else f"{name} (area {np.trapezoid(true, false):.3f})")
    axes.plot([0, 1], [0, 1], color="0.7", linestyle="--", zorder=0)
    axes.set(xlabel="false positive rate", ylabel="true positive rate", aspect="equal")
    axes.legend(fontsize="small", loc="lower right")
