"""What audits have measured, drawn against what the guarantee leaves."""

from __future__ import annotations

import io

import numpy as np
from scipy.special import ndtr, ndtri

from dpalgos.audit.report import AuditReport
from tasks.auditing.membership import MembershipReport
from tasks.runtime.plots import BLUE, RED, STYLE

__all__ = ["draw_membership", "draw_trade_off"]


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
    with rc_context(dict(STYLE)):
        figure = Figure(figsize=(5.0, 4.6), layout="constrained")
        axes = figure.subplots()
        status = "claimed" if report.proved_epsilon is None else "proved"
        axes.fill_between(alphas, 0.0, stated, color=BLUE, alpha=0.12, linewidth=0)
        axes.plot(alphas, stated, color=BLUE, linewidth=1.8, label=f"{status}: no test lies below")
        axes.plot(alphas, 1.0 - alphas, color="#000000", linestyle=":", linewidth=1.2, label="nothing leaks")
        if report.curve:
            found = np.array(report.curve)
            axes.plot(found[:, 0], found[:, 1], "x", color=RED, markersize=5, label="measured: the truth lies below")
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


def draw_membership(report: MembershipReport) -> bytes:
    """Return a PNG: how many members an attack recognises at each rate of false alarms, and how many it may.

    Both axes are logarithmic, since what counts is the attack that accuses few wrongly.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    least = 1e-3
    with rc_context(dict(STYLE)):
        figure = Figure(figsize=(5.0, 4.6), layout="constrained")
        axes = figure.subplots()
        if report.bound:
            bound = np.maximum(np.array(report.bound), least / 10)
            status = "claimed" if report.proved_epsilon is None else "proved"
            axes.fill_between(bound[:, 0], bound[:, 1], 1.0, color=BLUE, alpha=0.12, linewidth=0)
            axes.plot(bound[:, 0], bound[:, 1], color=BLUE, linewidth=1.8, label=f"{status}: no attack lies above")
        measured = np.maximum(np.array(report.curve), least / 10)
        axes.plot(measured[:, 0], measured[:, 1], color=RED, linewidth=1.4, label="measured")
        axes.plot([least, 1.0], [least, 1.0], color="#000000", linestyle=":", linewidth=1.2, label="guessing")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(least, 1)
        axes.set_ylim(least, 1)
        axes.set_aspect("equal")
        axes.set_xlabel("false positive rate")
        axes.set_ylabel("true positive rate")
        axes.set_title(
            f"{report.algorithm} on {report.dataset}: "
            f"advantage {report.advantage:.3f}, at most {report.advantage_bound:.3f}",
            fontsize=9,
        )
        axes.legend(loc="lower right", fontsize=8)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()
