"""Accounts of populations from a notebook: opening one, and what it has spent."""

from __future__ import annotations

import os

import pandas as pd

from dpalgos.accounting.successive import RESERVED
from storage.ledger.charges import Cap
from tasks.accounts.budget import budget_report, open_ledger
from unitball.roots import charged_root, using_root


def open_account(
    name: str,
    *,
    epsilon: float,
    delta: float,
    root: str | os.PathLike[str] | None = None,
    allow_idealised: bool = False,
) -> None:
    """Open the account of a population for estimators: what all fits on its rows together may spend.

    Called again with the same arguments, it changes nothing.

    Parameters
    ----------
    name : str
        Of the population, as estimators name it (``account=``).
    epsilon, delta : float
        The cap; delta below one over the number of rows.
    root : path, optional
        Whose ledger keeps the account. None: this process, and the account ends with it. That is for trying things
        out: rows whose account is forgotten have their whole budget again.
    allow_idealised : bool
        Admit algorithms that are proved in real arithmetic only.

    Raises
    ------
    storage.errors.InputError
        If it exists with another cap, or the cap bounds nothing.
    """
    with charged_root(root):
        opened(name, Cap(epsilon=epsilon, delta=delta), allow_idealised=allow_idealised)


def opened(name: str, cap: Cap, *, allow_idealised: bool = False) -> None:
    """Open an account in the current root."""
    open_ledger().open_account(name, cap, idealised_allowed=allow_idealised, deltas={"reserved": RESERVED})


def budget(dataset: str, *, root: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """Return what a data set's account has spent, a line a party.

    Parameters
    ----------
    dataset : str
        A registered data set.
    root : path, optional
        ``UNITBALL_ROOT`` or the user's own by default.

    Returns
    -------
    data frame
        ``party``, ``epsilon_spent`` (at ``delta``), ``releases``. Its ``attrs`` hold what is of the whole account:
        ``account``, ``cap``, ``epsilon_spent``, ``epsilon_left``, ``filter``, ``relation``.

    Raises
    ------
    storage.errors.InputError
        If there is no such data set.
    """
    with using_root(root):
        report = budget_report(dataset)
    table = pd.DataFrame(
        [
            {
                "party": party["party"],
                "epsilon_spent": party["epsilon_spent"],
                "delta": party["delta_spent"],
                "releases": len(party["charges"]),
            }
            for party in report["parties"]
        ],
        columns=["party", "epsilon_spent", "delta", "releases"],
    )
    table.attrs |= {name: value for name, value in report.items() if name not in ("parties", "dataset")}
    return table
