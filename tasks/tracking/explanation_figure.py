"""Figure of the Shapley values of rows: one panel per row, one bar per column with its standard error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from storage.errors import InputError
from tasks.runtime.plots import BLUE, RED, png_of, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LONGEST = 24


def draw_explanations(rows: Sequence[tuple[str, Mapping[str, object]]]) -> bytes:
    """Return the figure as PNG: columns with the largest absolute values at the top.

    Parameters
    ----------
    rows : sequence of (str, mapping)
        As of :func:`tasks.tracking.explanations.first_explained`, at least one.

    Raises
    ------
    InputError
        If there is none.
    """
    if not rows:
        raise InputError(
            "no row of the input was predicted, so the figure would be empty; the output file holds the reasons"
        )
    columns = sum(name.endswith("_value") for name in rows[0][1])
    with styled_figure(4.2 * len(rows), 0.32 * columns + 1.3) as figure:
        panels = figure.subplots(1, len(rows), squeeze=False).ravel()
        for axes, (called, row) in zip(panels, rows, strict=True):
            _draw(axes, called, row, columns)
        return png_of(figure, 120)


def _draw(axes: Axes, called: str, row: Mapping[str, object], columns: int) -> None:
    places = np.arange(columns)
    values, errors = (
        np.array([cast(float, row[f"why_{place}_{of}"]) for place in places + 1]) for of in ("value", "error")
    )
    names = [str(row[f"why_{place}"]) for place in places + 1]
    axes.barh(places, values, color=np.where(values < 0, RED, BLUE).tolist(), alpha=0.8)
    axes.errorbar(values, places, xerr=errors, fmt="none", ecolor="#333333", elinewidth=0.9)
    axes.axvline(0.0, color="#333333", linewidth=0.8)
    axes.set_yticks(places, [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in names])
    axes.invert_yaxis()
    score, mean = (cast(float, row[f"why_{of}"]) for of in ("score", "mean"))
    axes.set_title(f"{called[:_LONGEST]}: {score:.3g} (mean {mean:.3g})", fontsize=9)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(str(row["why_of"]), fontsize=8)
