"""Figure of released counts of pairs of columns: one heat map per pair, with the shares of each group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dpalgos.guarantees import rounded_up
from dpalgos.measured import in_places
from tasks.release.descriptions import UNMEASURED
from tasks.release.pair_descriptions import DescribedPair, PairsDescription, shares_of
from tasks.runtime.plots import png_of, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACROSS, _LONGEST, _NAMED, _LETTERED = 3, 18, 16, 60


def draw_pairs(found: PairsDescription) -> bytes:
    """Return the figure as PNG: colours are shares within a group, and each cell shows its count.

    Parameters
    ----------
    found : PairsDescription
    """
    across = min(_ACROSS, len(found.pairs))
    down = math.ceil(len(found.pairs) / across)
    counted = "rows" if found.terms.unit == "row" else "people"
    with styled_figure(4.6 * across, 3.9 * down + 0.5) as figure:
        panels = figure.subplots(down, across, squeeze=False).ravel()
        for axes, pair in zip(panels, found.pairs, strict=False):
            _draw(axes, pair, counted)
        for axes in panels[len(found.pairs) :]:
            axes.set_visible(False)
        terms = found.terms
        spent = f"{terms.dataset}: epsilon {terms.epsilon:g} at delta {terms.delta:g} for a {terms.unit}"
        together = f"\nwith one-way counts: epsilon {rounded_up(terms.epsilon_together, 4):g}" if terms.rests_on else ""
        figure.suptitle(f"{spent}{together}", fontsize=9)
        return png_of(figure, 120)


def _draw(axes: Axes, pair: DescribedPair, counted: str) -> None:
    said = UNMEASURED
    if pair.association.measured:
        ends = zip(pair.association.ends, (0, -1, 1), strict=True)
        value, low, high = (in_places(float(end or 0.0), 2, toward) for end, toward in ends)
        said = f"{value} [{low}, {high}]"
    axes.set_title(f"{pair.first} × {pair.second}\n{pair.association.of} {said}", fontsize=9)
    axes.grid(visible=False)
    shares = shares_of(pair)
    if np.isnan(shares).all():
        axes.text(0.5, 0.5, UNMEASURED, ha="center", va="center", transform=axes.transAxes, fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    top = float(np.nanmax(shares))
    axes.imshow(np.ma.masked_invalid(shares), cmap="Blues", vmin=0.0, vmax=max(top, 1e-9), aspect="auto")
    axes.set_facecolor("#EEEEEE")
    counts = pair.of("count")
    for place, one in enumerate(counts):
        row, column = divmod(place, len(pair.cells))
        if len(counts) <= _LETTERED or not one.measured:
            dark = shares[row, column] > 0.6 * top
            text = f"{float(one.value or 0.0):,.0f}" if one.measured else "?"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "#222222")
    for names, title, axis in ((pair.cells, pair.second, axes.xaxis), (pair.groups, pair.first, axes.yaxis)):
        step = max(1, math.ceil(len(names) / _NAMED))
        shown = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in names]
        axis.set_ticks(range(0, len(names), step), shown[::step], fontsize=7)
        axis.set_label_text(title, fontsize=8)
    axes.tick_params(axis="x", labelrotation=40)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("right")
        label.set_rotation_mode("anchor")
    axes.set_xlabel(f"{pair.second} (numbers: {counted}; colour: share within {pair.first})", fontsize=8)
