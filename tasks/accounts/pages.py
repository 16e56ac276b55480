"""Accounts' budgets shown: a table, a figure of epsilon against cap over time, and an HTML page of both."""

import base64
import math
from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np

from storage.ledger.charges import of_cap
from tasks.accounts.history import BudgetHistory
from tasks.runtime.plots import BLUE, RED, png_of, styled_figure

# More lines than that nobody tells apart: those of the parties that have paid most.
_MOST_PARTIES, _MOST_ACCOUNTS = 8, 12


def budget_table(histories: Sequence[BudgetHistory]) -> list[dict[str, str]]:
    """Return a line an account: left, spent, cap, share, how many more runs fit, from when on runs are refused."""
    return [
        {
            "account": history.account,
            "data sets": ", ".join(history.datasets),
            "remaining: one more run of": "–" if history.left is None else history.left.amount,
            "epsilon spent": _epsilon(history.spent),
            "cap": "none (public)" if history.cap is None else of_cap(history.cap, history.promised),
            "share spent": "–" if history.cap is None else _share(history.spent, history.cap),
            "delta": f"{history.delta:g}",
            "more runs like the last": "–" if history.runs_left is None else str(history.runs_left),
            "schedules refused from": history.refused_from or "–",
        }
        for history in histories
    ]


def _epsilon(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.4g}"


def _share(spent: float | None, cap: float) -> str:
    # Rounded up: a share is never shown smaller than it is.
    return "all" if spent is None else f"{math.ceil(100 * spent / cap)} %"


def draw_budgets(histories: Sequence[BudgetHistory]) -> bytes:
    """Return a PNG: for each account epsilon spent against its cap over time, a thin line per party.

    Beyond twelve accounts those whose share of the cap is largest are drawn.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    chosen = sorted(histories, key=_fullness, reverse=True)[:_MOST_ACCOUNTS]
    columns = min(len(chosen), 2) or 1
    lines = -(-len(chosen) // columns) or 1
    with styled_figure(4.6 * columns, 2.6 * lines) as figure:
        grid = figure.subplots(lines, columns, squeeze=False)
        for axes in grid.flat[len(chosen) :]:
            axes.set_axis_off()
        for axes, history in zip(grid.flat, chosen, strict=False):
            times = [datetime.fromisoformat(point.at) for point in history.points]
            for party in _parties(history):
                paid = np.array([point.parties.get(party, 0.0) for point in history.points], dtype=float)
                axes.step(times, paid, where="post", color=BLUE, linewidth=0.6, alpha=0.5)
            spent = np.array([point.epsilon for point in history.points], dtype=float)
            axes.step(times, spent, where="post", color=BLUE, marker=".")
            if history.cap is not None and times:
                axes.step(times, [point.cap for point in history.points], where="post", color=RED, linestyle="--")
                axes.set_ylim(0, 1.08 * max(history.cap, *(point.cap or 0.0 for point in history.points)))
            left = "" if history.runs_left is None else f"; {history.runs_left} more runs like the last"
            subtitle = (
                "nothing charged yet"
                if not history.points
                else f"ε = {_epsilon(history.spent)} at δ = {history.delta:g}{left}"
            )
            axes.set_title(f"{history.account}\n{subtitle}", fontsize=8.5, loc="left")
            if not times:
                # Otherwise an empty day of 1970.
                axes.set_axis_off()
                continue
            margin = max((times[-1] - times[0]) / 20, timedelta(hours=1))
            axes.set_xlim(times[0] - margin, times[-1] + margin)
            locator = AutoDateLocator(maxticks=6)
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        return png_of(figure, 110)


def _fullness(one: BudgetHistory) -> float:
    if one.cap is None:
        return -1.0
    return math.inf if one.spent is None else one.spent / one.cap


def _parties(one: BudgetHistory) -> list[str]:
    last = one.points[-1].parties if one.points else {}
    paid = sorted(last.items(), key=lambda each: math.inf if each[1] is None else each[1], reverse=True)
    return [party for party, _ in paid[:_MOST_PARTIES]]


def budget_page(histories: Sequence[BudgetHistory], picture: bytes) -> str:
    """Return one self-contained HTML page over all accounts: the figure, and a table of spending."""
    import pandas as pd

    lines = pd.DataFrame(budget_table(histories), columns=None if histories else ["no account"])
    shown = base64.b64encode(picture).decode()
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Budgets</title>'
        "<style>body{font:15px sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
        "td,th{border-bottom:1px solid #ddd;padding:.3em .8em;text-align:left}img{max-width:100%}</style>"
        "<h1>Budgets</h1><p>Spending of each account against its cap. The cap is the guarantee.</p>"
        f'{lines.to_html(index=False, border=0)}<p><img alt="epsilon spent against cap over time" '
        f'src="data:image/png;base64,{shown}"></p></html>\n'
    )
