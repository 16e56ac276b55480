"""What audits have measured, drawn against what the guarantee leaves."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri

from dpalgos.audit.report import AuditReport, Report
from tasks.auditing.membership import MembershipReport
from tasks.runtime.plots import BLUE, RED, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_membership", "draw_trade_off"]


def draw_trade_off(report: AuditReport) -> bytes:
    """Return a PNG: the curve that is proved or claimed, and the errors that the best tests found were held to.

    Below the blue line no test may be, at any pair of neighbours; each red cross is an upper bound on both errors of
    one test, all at the audit's confidence together. A cross in the shaded region refutes what is stated.
    """
    alphas = np.linspace(0.0, 1.0, 401)
    if report.proved_mu is not None:
        stated = ndtr(ndtri(1.0 - alphas) - report.proved_mu)
    else:
        # Between points that are proved the curve is convex, so that below the chords nothing is said: steps are safe.
        levels, values = np.array(sorted(report.stated_curve)).T
        place = np.searchsorted(levels, alphas, side="left")
        stated = np.append(values, 0.0)[place]
        epsilon = report.proved_epsilon if report.proved_epsilon is not None else report.claimed_epsilon
        if epsilon is not None:
            # What the one point (epsilon, delta) says by itself is known everywhere.
            lines = (1 - report.delta - np.exp(epsilon) * alphas, np.exp(-epsilon) * (1 - report.delta - alphas))
            stated = np.maximum(stated, np.maximum(*lines))
    status, title = _status(report), f"{report.algorithm}: {report.verdict}, ε ≥ {report.lower_bound:.3g}"
    with _picture(title, x="type I error", y="type II error", legend="upper right") as (axes, png):
        axes.fill_between(alphas, 0.0, stated, color=BLUE, alpha=0.12, linewidth=0)
        axes.plot(alphas, stated, color=BLUE, linewidth=1.8, label=f"{status}: no test lies below")
        axes.plot(alphas, 1.0 - alphas, color="#000000", linestyle=":", linewidth=1.2, label="nothing leaks")
        if report.curve:
            found = np.array(report.curve)
            axes.plot(found[:, 0], found[:, 1], "x", color=RED, markersize=5, label="measured: the truth lies below")
        axes.set(xlim=(0, 1), ylim=(0, 1))
    return png.getvalue()


def draw_membership(report: MembershipReport) -> bytes:
    """Return a PNG: how many members an attack recognises at each rate of false alarms, and how many it may.

    Both axes are logarithmic, since what counts is the attack that accuses few wrongly.
    """
    least, measured = 1e-3, np.array(report.curve)
    title = (
        f"{report.algorithm} on {report.dataset}: "
        f"advantage {report.advantage:.3f}, at most {report.advantage_bound:.3f}"
    )
    with _picture(
        title,
        x="false positive rate",
        y="true positive rate",
        legend="lower right",
    ) as (axes, png):
        if report.bound:
            bound = np.maximum(np.array(report.bound), least / 10)
            axes.fill_between(bound[:, 0], bound[:, 1], 1.0, color=BLUE, alpha=0.12, linewidth=0)
            label = f"{_status(report)}: no attack lies above"
            axes.plot(bound[:, 0], bound[:, 1], color=BLUE, linewidth=1.8, label=label)
        axes.plot(*np.maximum(measured, least / 10).T, color=RED, linewidth=1.4, label="measured")
        axes.plot([least, 1.0], [least, 1.0], color="#000000", linestyle=":", linewidth=1.2, label="guessing")
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
    return png.getvalue()


def _status(report: Report) -> str:
    return "claimed" if report.proved_epsilon is None else "proved"


@contextmanager
def _picture(title: str, *, x: str, y: str, legend: str) -> Iterator[tuple[Axes, io.BytesIO]]:
    """Yield axes to draw into, and where the PNG is when all is drawn."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    png = io.BytesIO()
    with rc_context(dict(STYLE)):
        figure = Figure(figsize=(5.0, 4.6), layout="constrained")
        axes = figure.subplots()
        yield axes, png
        axes.set(aspect="equal", xlabel=x, ylabel=y)
        axes.set_title(title, fontsize=9)
        axes.legend(loc=legend, fontsize=8)
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
