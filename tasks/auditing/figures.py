"""Figures of audits: trade-off curves with the errors of tests, and ROC curves of membership inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri

from dpalgos.audit.experiment import AuditReport
from dpalgos.rows import Floats
from tasks.auditing.public_rows import MembershipReport
from tasks.runtime.plots import BLUE, RED, png_of, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_trade_offs(reports: Sequence[AuditReport]) -> bytes:
    """Return a PNG: the curve that is proved or claimed, and the errors that the best tests found were held to.

    Below the blue line no test may be, at any pair of neighbours; each red cross is an upper bound on both errors of
    one test, all at the audit's confidence together. A cross in the shaded region refutes what is stated. One panel per
    report.
    """
    alphas = np.linspace(0.0, 1.0, 401)
    with styled_figure(5.0 * len(reports), 4.6) as figure:
        for axes, report in zip(figure.subplots(1, len(reports), squeeze=False).flat, reports, strict=True):
            stated = _stated(report, alphas)
            axes.fill_between(alphas, 0.0, stated, color=BLUE, alpha=0.12, linewidth=0)
            axes.plot(alphas, stated, color=BLUE, linewidth=1.8, label=f"{_status(report)}: lower bound of every test")
            axes.plot(alphas, 1.0 - alphas, color="#000000", linestyle=":", linewidth=1.2, label="no leakage")
            if report.curve:
                title = "measured: upper bounds"
                axes.plot(*np.array(report.curve).T, "x", color=RED, markersize=5, label=title)
            axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="type I error", ylabel="type II error")
            _finish(axes, f"{report.algorithm}: {report.verdict}, ε ≥ {report.lower_bound:.3g}", "upper right")
        return png_of(figure, 150)


def _status(report: AuditReport | MembershipReport) -> str:
    return "claimed" if report.proved_epsilon is None else "proved"


def _finish(axes: Axes, title: str, place: str) -> None:
    axes.set_aspect("equal")
    axes.set_title(title, fontsize=9)
    axes.legend(loc=place, fontsize=8)


def _stated(report: AuditReport, alphas: Floats) -> Floats:
    """Return the type II error below which no test is, by what is proved or claimed."""
    if report.proved_mu is not None:
        return np.asarray(ndtr(ndtri(1.0 - alphas) - report.proved_mu))
    # Between points that are proved the curve is convex, so that below the chords nothing is said: steps are safe.
    levels, values = np.array(sorted(report.stated_curve)).reshape(-1, 2).T
    stated: Floats = np.append(values, 0.0)[np.searchsorted(levels, alphas, side="left")]
    epsilon = report.proved_epsilon if report.proved_epsilon is not None else report.claimed_epsilon
    if epsilon is None:
        return stated
    # What the one point (epsilon, delta) says by itself is known everywhere.
    lines = (1 - report.delta - np.exp(epsilon) * alphas, np.exp(-epsilon) * (1 - report.delta - alphas))
    return np.asarray(np.maximum(stated, np.maximum(*lines)))


def draw_membership(report: MembershipReport) -> bytes:
    """Return a PNG: how many members an attack recognises at each rate of false alarms, and how many it may.

    Both axes are logarithmic, since what counts is the attack that accuses few wrongly.
    """
    least = 1e-3
    with styled_figure(5.0, 4.6) as figure:
        axes = figure.subplots()
        if report.bound:
            rates, bound = np.maximum(np.array(report.bound), least / 10).T
            axes.fill_between(rates, bound, 1.0, color=BLUE, alpha=0.12, linewidth=0)
            axes.plot(rates, bound, color=BLUE, linewidth=1.8, label=f"{_status(report)}: upper bound of every attack")
        measured = np.maximum(np.array(report.curve), least / 10)
        axes.plot(*measured.T, color=RED, linewidth=1.4, label="measured")
        axes.plot([least, 1.0], [least, 1.0], color="#000000", linestyle=":", linewidth=1.2, label="guessing")
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        advantage = f"advantage {report.advantage:.3f}, at most {report.advantage_bound:.3f}"
        _finish(axes, f"{report.algorithm} on {report.dataset}: {advantage}", "lower right")
        return png_of(figure, 150)
