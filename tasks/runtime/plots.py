"""The style of all pictures."""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["BLUE", "RED", "STYLE"]

STYLE = MappingProxyType(
    {
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
)
"""Matplotlib's settings."""

BLUE, RED = "#0072B2", "#D55E00"
"""Okabe and Ito's blue and vermilion."""
