"""An account's spending, charges and remaining budget, as objects."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import pandas as pd

from tasks.accounts.reports import BudgetReport, PlanLine, budget_report
from tasks.accounts.room import OneMore


@dataclass(frozen=True, kw_only=True)
class Charge:
    """Cost of one run or one fit.

    Attributes
    ----------
    name : str
        What was released, such as ``"model of all parties"``; of several releases all, in order.
    run : str
        The run's own key or name, as the ledger has it.
    date : datetime
        When it was charged, UTC.
    epsilon : float or None
        Of the party that paid most, at ``delta``, by itself; None where it is infinite. Charges do not add up: squares
        of mu do.
    delta : float
    mu : float or None
        Of Gaussian-DP, where all of it is; what adds up is its square.
    parties : mapping of str to float or None
        Epsilon by party.
    again : bool
        Whether what was released before was charged once more.
    """

    name: str
    run: str
    date: datetime
    epsilon: float | None
    delta: float
    mu: float | None
    parties: Mapping[str, float | None]
    again: bool = False

    @classmethod
    def of(cls, plan: PlanLine, releases: tuple[str, ...]) -> Self:
        """Return a charge from a line of a report, and the names of what it released."""
        return cls(
            name=", ".join(releases),
            run=plan["run"],
            date=datetime.fromisoformat(plan["recorded_at"]),
            epsilon=plan["epsilon"],
            delta=plan["delta"],
            mu=plan["mu"],
            parties=plan["parties"],
            again=plan["recharge"],
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class AccountBudget:
    """An account: its cap, its spending, its remaining budget, and its charges.

    Attributes
    ----------
    account : str
    datasets : tuple of str
        Data sets whose releases it pays for.
    epsilon_cap, delta_cap : float or None
        None for public rows.
    epsilon_spent : float or None
        ε of the rows that have been charged most, at ``delta_spent``; None if it is infinite.
    delta_spent : float
    left : OneMore or None
        The largest ``epsilon`` of one more ``run`` at ``delta`` that the cap allows now. None for public rows, and if
        nothing can be charged.
    charges : tuple of Charge
        Oldest first.
    parties : data frame
        ``party``, ``epsilon_spent`` (at ``delta``), ``releases``.
    unit, relation, filter : str
        What is protected, the neighbouring relation, and the composition of charges.
    group_size : int
    promised : mapping or None
        ``epsilon`` and ``delta`` of all releases under the cap together.
    disjoint : tuple of mapping
        Accounts whose people were declared to be different, with the reasons.
    reserved, restored : tuple of str
    behind : str or None
        Charges that the high-water marks show and the ledger lacks; nothing can then be charged.
    """

    account: str
    datasets: tuple[str, ...]
    epsilon_cap: float | None
    delta_cap: float | None
    epsilon_spent: float | None
    delta_spent: float
    left: OneMore | None
    charges: tuple[Charge, ...]
    parties: pd.DataFrame
    unit: str
    relation: str
    filter: str
    group_size: int
    promised: Mapping[str, float] | None
    disjoint: tuple[Mapping[str, Any], ...]
    reserved: tuple[str, ...]
    restored: tuple[str, ...]
    behind: str | None

    @property
    def left_epsilon(self) -> float | None:
        """The largest epsilon of one more run that would be admitted now; None of public rows."""
        return None if self.left is None else self.left.epsilon

    def to_frame(self) -> pd.DataFrame:
        """Return one line per charge: ``date``, ``name``, ``epsilon``, ``delta``, ``mu``, ``run``."""
        names = ("date", "name", "epsilon", "delta", "mu", "run")
        return pd.DataFrame([{name: getattr(one, name) for name in names} for one in self.charges], columns=names)

    @property
    def _said(self) -> str:
        if self.epsilon_cap is None:
            return "public rows (no cap)"
        return "nothing can be charged" if self.left is None else self.left.said

    def __repr__(self) -> str:
        frame = self.to_frame()
        return f"{self.account}: {self._said}" + ("" if frame.empty else f"\n{frame.to_string()}")

    def _repr_html_(self) -> str:
        return f"<p>{self.account}: {self._said}</p>{self.to_frame()._repr_html_()}"


def read_budget(name: str) -> AccountBudget:
    """Return what is said of an account, by its name or a data set's, in the current root.

    Raises
    ------
    storage.errors.InputError
        If there is neither.
    """
    report = budget_report(name)
    cap = report["cap"] or {}
    return AccountBudget(
        account=report["account"],
        datasets=tuple(report["datasets"]),
        epsilon_cap=cap.get("epsilon"),
        delta_cap=cap.get("delta"),
        epsilon_spent=report["epsilon_spent"],
        delta_spent=report["delta_spent"],
        left=None if report["left"] is None else OneMore(**report["left"]),
        charges=_charges(report),
        parties=_parties(report),
        unit=report["unit"],
        relation=report["relation"],
        filter=report["filter"],
        group_size=report["group_size"],
        promised=report["promised"],
        disjoint=tuple(dict(line) for line in report["disjoint"]),
        reserved=tuple(report["reserved"]),
        restored=tuple(report["restored"]),
        behind=report["behind"],
    )


def _charges(report: BudgetReport) -> tuple[Charge, ...]:
    released: dict[int, dict[str, None]] = {}
    for party in report["parties"]:
        for charge in party["charges"]:
            # A joint release is every party's.
            released.setdefault(charge["plan"], {})[charge["label"]] = None
    return tuple(Charge.of(plan, tuple(released.get(plan["plan"], ()))) for plan in report["plans"])


def _parties(report: BudgetReport) -> pd.DataFrame:
    lines = [
        {
            "party": party["party"],
            "epsilon_spent": party["epsilon_spent"],
            "delta": party["delta_spent"],
            "releases": len(party["charges"]),
        }
        for party in report["parties"]
    ]
    return pd.DataFrame(lines, columns=["party", "epsilon_spent", "delta", "releases"])
