"""How an account's budget was spent over time, how long it will last, and the figure of it."""

import base64
import html
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
from pydantic import BaseModel

from storage.ledger.charges import History
from tasks.accounts.budget import LOW, PUBLIC_DELTA, open_ledger, read_account, runs_left
from tasks.runtime.plots import BLUE, RED, png_of, styled_figure
from tasks.runtime.stores import open_catalog

# A picture has no room for more points, and a rate is that of the recent past.
_MOST_POINTS, _RECENT = 400, 10


class SpendingPoint(BaseModel, frozen=True):
    """An account after one charged plan.

    Attributes
    ----------
    at : str
        UTC, ISO 8601.
    epsilon : float or None
        Spent at the cap's delta by the rows that have paid most; None where it is infinite.
    cap : float or None
        The cap that was in force; None for public data.
    parties : dict
        The same by the party that pays, over all partitions.
    """

    at: str
    epsilon: float | None
    cap: float | None
    parties: dict[str, float | None]


class BudgetHistory(BaseModel, frozen=True):
    """An account's budget: spent against cap over time, and how many more runs fit.

    Attributes
    ----------
    account : str
    datasets : tuple of str
        The data sets that pay from it.
    delta : float
        At which epsilon is read: the cap's, or 1e-5 for public data.
    cap : float or None
        The epsilon of the cap in force.
    points : tuple of SpendingPoint
        Oldest first; of many, evenly chosen ones and the last.
    runs_left : int or None
        How many more runs like the last one fit; None for public data and before the first run.
    refused_from : str or None
        Day (UTC) of the first run that would be refused, if runs like the last one go on at the mean rate of the last
        ten; None where there is no rate.
    """

    account: str
    datasets: tuple[str, ...]
    delta: float
    cap: float | None
    points: tuple[SpendingPoint, ...]
    runs_left: int | None
    refused_from: str | None

    @property
    def spent(self) -> float | None:
        """Epsilon spent until now; None where it is infinite."""
        return self.points[-1].epsilon if self.points else 0.0

    @property
    def low(self) -> bool:
        """Whether more than :data:`tasks.accounts.budget.LOW` of the cap is spent."""
        return self.cap is not None and (self.spent is None or self.spent > LOW * self.cap)


def budget_history(account: str, datasets: Sequence[str] = ()) -> BudgetHistory:
    """Return how an account was spent, from its charges alone.

    A reading, like ``epsilon_spent`` of :func:`tasks.accounts.budget.budget_report`: what is guaranteed is the cap.

    Parameters
    ----------
    account : str
    datasets : sequence of str
        Those that pay from it.
    """
    ledger = open_ledger()
    terms, plans = ledger.account(account), ledger.history(account).plans
    cap = terms.cap
    step = max(1, -(-len(plans) // _MOST_POINTS))
    points: list[SpendingPoint] = []
    notes: dict[object, object] = {}
    for end in range(len(plans) - (len(plans) - 1) // step * step, len(plans) + 1, step):
        last = plans[end - 1]
        # Under the cap that was in force then.
        changes = tuple(change for change in terms.changes if change.sequence < last.sequence)
        in_force = terms.changes[len(changes)].before if len(changes) < len(terms.changes) else cap
        then = read_account(History(plans[:end], notes=notes), in_force, replace(terms, changes=changes))
        points.append(SpendingPoint(at=last.recorded_at, epsilon=then.epsilon, cap=then.cap, parties=then.parties))
    left = runs_left(account)
    return BudgetHistory(
        account=account,
        datasets=tuple(datasets),
        delta=PUBLIC_DELTA if cap is None else cap.delta,
        cap=None if cap is None else cap.epsilon,
        points=tuple(points),
        runs_left=left,
        refused_from=None if left is None else _forecast([plan.recorded_at for plan in plans], left),
    )


def budget_histories() -> list[BudgetHistory]:
    """Return the history of every account that a registered data set pays from, private ones first."""
    catalog = open_catalog()
    paying: dict[str, list[str]] = {}
    for dataset in catalog.datasets():
        paying.setdefault(dataset.account, []).append(dataset.name)
    histories = [budget_history(account, sorted(set(names))) for account, names in paying.items()]
    return sorted(histories, key=lambda one: (one.cap is None, one.account))


def _forecast(times: Sequence[str], left: int) -> str | None:
    recent = [datetime.fromisoformat(time) for time in times[-_RECENT:]]
    gap = (recent[-1] - recent[0]) / (len(recent) - 1) if len(recent) > 1 else timedelta()
    try:
        return (recent[-1] + (left + 1) * gap).date().isoformat() if gap else None
    except OverflowError:
        return None


# More lines than that nobody tells apart: those of the parties that have paid most.
_MOST_PARTIES, _MOST_ACCOUNTS = 8, 12


def budget_table(histories: Sequence[BudgetHistory]) -> list[dict[str, str]]:
    """Return a line an account: spent, cap, share, how many more runs fit, from when on runs are refused."""
    return [
        {
            "account": one.account,
            "data sets": ", ".join(one.datasets),
            "epsilon spent": _epsilon(one.spent),
            "cap": "none (public)" if one.cap is None else f"{one.cap:g}",
            "spent of it": "–" if one.cap is None else _share(one.spent, one.cap),
            "delta": f"{one.delta:g}",
            "more runs like the last": "–" if one.runs_left is None else str(one.runs_left),
            "refused from": one.refused_from or "–",
        }
        for one in histories
    ]


def _epsilon(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.4g}"


def _share(spent: float | None, cap: float) -> str:
    # Rounded up: a share is never shown smaller than it is.
    return "all" if spent is None else f"{math.ceil(100 * spent / cap)} %"


def draw_budgets(histories: Sequence[BudgetHistory]) -> bytes:
    """Return a PNG: for each account epsilon spent against its cap over time, a thin line a party.

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
        for axes, one in zip(grid.flat, chosen, strict=False):
            times = [datetime.fromisoformat(point.at) for point in one.points]
            for party in _parties(one):
                paid = np.array([point.parties.get(party, 0.0) for point in one.points], dtype=float)
                axes.step(times, paid, where="post", color=BLUE, linewidth=0.6, alpha=0.5)
            spent = np.array([point.epsilon for point in one.points], dtype=float)
            axes.step(times, spent, where="post", color=BLUE, marker=".")
            if one.cap is not None and times:
                axes.step(times, [point.cap for point in one.points], where="post", color=RED, linestyle="--")
                axes.set_ylim(0, 1.08 * max(one.cap, *(point.cap or 0.0 for point in one.points)))
            left = "" if one.runs_left is None else f"; {one.runs_left} more runs like the last"
            subtitle = (
                "nothing charged yet" if not one.points else f"ε = {_epsilon(one.spent)} at δ = {one.delta:g}{left}"
            )
            axes.set_title(f"{one.account}\n{subtitle}", fontsize=8.5, loc="left")
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
    """Return one self-contained HTML page over all accounts: the picture, and a table of where they stand."""
    lines = budget_table(histories)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in (lines[0] if lines else {"no account": ""}))
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line.values()) + "</tr>" for line in lines
    )
    shown = base64.b64encode(picture).decode()
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Budgets</title>'
        "<style>body{font:15px sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
        "td,th{border-bottom:1px solid #ddd;padding:.3em .8em;text-align:left}img{max-width:100%}</style>"
        "<h1>Budgets</h1><p>Spent of each account's cap: a reading of its charges. What is guaranteed is the cap.</p>"
        f'<table><tr>{head}</tr>{body}</table><p><img alt="epsilon spent against cap over time" '
        f'src="data:image/png;base64,{shown}"></p></html>\n'
    )
