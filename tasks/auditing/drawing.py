"""The trade-off curve that an audit has measured, drawn against the guarantee's."""

from __future__ import annotations

import io
from types import MappingProxyType

import numpy as np
from scipy.special import ndtr, ndtri

from dpalgos.audit.report import AuditReport

__all__ = ["draw_trade_off"]

_RC = MappingProxyType(
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
    }
)
# Okabe and Ito's blue and vermilion, as in the other figures.
_BLUE, _RED = "#0072B2", "#D55E00"


def draw_trade_off(report: AuditReport) -> bytes:
    """Return a PNG: the curve that is proved or claimed, and the errors that the best tests found were held to.

    Below the blue line no test may be, at any pair of neighbours; each red cross is an upper bound on both errors of
    one test, all at the audit's confidence together. A cross in the shaded region refutes what is stated.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    alphas = np.linspace(0.0, 1.0, 401)
    if report.proved_mu is not None:
        stated = ndtr(ndtri(1.0 - alphas) - report.proved_mu)
    else:
        known = sorted(report.stated_curve)
        # Between points that are proved the curve is convex, so that below the chords nothing is said: steps are safe.
        levels, values = np.array([one[0] for one in known]), np.array([one[1] for one in known])
        place = np.searchsorted(levels, alphas, side="left")
        stated = np.append(values, 0.0)[place]
        epsilon = report.proved_epsilon if report.proved_epsilon is not None else report.claimed_epsilon
        if epsilon is not None:
            # What the one point (epsilon, delta) says by itself is known everywhere.
            lines = (1 - report.delta - np.exp(epsilon) * alphas, np.exp(-epsilon) * (1 - report.delta - alphas))
            stated = np.maximum(stated, np.maximum(*lines))
    with rc_context(dict(_RC)):
        figure = Figure(figsize=(5.0, 4.6), layout="constrained")
        axes = figure.subplots()
        word = "claimed" if report.proved_epsilon is None else "proved"
        axes.fill_between(alphas, 0.0, stated, color=_BLUE, alpha=0.12, linewidth=0)
        axes.plot(alphas, stated, color=_BLUE, linewidth=1.8, label=f"{word}: no test lies below")
        axes.plot(alphas, 1.0 - alphas, color="#000000", linestyle=":", linewidth=1.2, label="nothing leaks")
        if report.curve:
            found = np.array(report.curve)
            axes.plot(found[:, 0], found[:, 1], "x", color=_RED, markersize=5, label="measured: the truth lies below")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_aspect("equal")
        axes.set_xlabel("type I error")
        axes.set_ylabel("type II error")
        axes.set_title(f"{report.algorithm}: {report.verdict}, ε ≥ {report.lower_bound:.3g}", fontsize=9)
        axes.legend(loc="upper right", fontsize=8)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()
