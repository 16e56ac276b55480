"""The style of all pictures, and figures as files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    # The canvas itself draws once; ``savefig`` draws everything twice where a layout is to be found.
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()
