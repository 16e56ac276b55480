"""Which root and which accounts the calls of a notebook work on."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from dpalgos.accounting.filters import RESERVED
from storage.errors import RefusedError
from storage.ledger.accounts import PERSON, ROW
from storage.ledger.charges import Cap
from tasks.accounts.budget import budget_report, open_ledger
from tasks.runtime.environment import restoring
from tasks.runtime.settings import ROOT_VARIABLE, isolated_root
from tasks.runtime.stores import open_catalog

PROCESS = secrets.token_hex(16)
"""Names this process, so that what was made in another one is known to be."""
# A root is the environment's, which belongs to the whole process.
_LOCK = threading.RLock()
_PROCESS_ROOTS: dict[int, Path] = {}


@contextmanager
def using_root(root: str | os.PathLike[str] | None) -> Iterator[None]:
    """Work on a root; where none is named, on ``UNITBALL_ROOT`` or the user's own.

    Calls of several threads wait for each other.
    """
    with _LOCK, restoring([ROOT_VARIABLE]):
        if root is not None:
            os.environ[ROOT_VARIABLE] = str(Path(root).expanduser().resolve())
        yield


@contextmanager
def process_root() -> Iterator[None]:
    """Work on the root of this process: its accounts hold for all who spend from them here, and end with it.

    Raises
    ------
    RefusedError
        In a process that another one has started: each would have a ledger of its own, and spend the same cap again.
    """
    if multiprocessing.parent_process() is not None or multiprocessing.current_process().name != "MainProcess":
        raise RefusedError(other_process("this one was started by another"))
    with _LOCK:
        number = os.getpid()
        if number not in _PROCESS_ROOTS:
            if _PROCESS_ROOTS:
                raise RefusedError(other_process("this one is a copy of another"))
            folder = Path(tempfile.mkdtemp(prefix="unitball-"))
            _PROCESS_ROOTS[number] = folder
            atexit.register(_remove, number, folder)
        with isolated_root(_PROCESS_ROOTS[number] / "root"):
            yield


def charged_root(root: str | os.PathLike[str] | None) -> AbstractContextManager[None]:
    """Return the root whose ledger is charged: the one that is named, or that of this process alone."""
    return process_root() if root is None else using_root(root)


def other_process(what: str) -> str:
    """Return why an account without a root is of one process, and the way out."""
    return (
        f"the budget of private rows is kept in one process, and {what}; give root=FOLDER, whose ledger all processes "
        "charge, or leave n_jobs at 1"
    )


def _remove(number: int, folder: Path) -> None:
    # A fork runs its parent's exit handlers, too.
    if os.getpid() == number:
        shutil.rmtree(folder, ignore_errors=True)


def open_account(
    name: str,
    *,
    epsilon: float,
    delta: float,
    root: str | os.PathLike[str] | None = None,
    allow_idealised: bool = False,
    people: bool = False,
    group_size: int = 1,
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
    people : bool
        What is protected is a person with all rows, and no single row, for good; ``fit(…, groups=…)`` or a schema's
        column of type ``person`` says whose they are.
    group_size : int
        The most rows that one person has, where rows are protected; the account then counts what a person loses.

    Raises
    ------
    storage.errors.InputError
        If it exists with another cap or unit, or the cap bounds nothing.
    """
    with charged_root(root):
        terms = {"allow_idealised": allow_idealised, "people": people}
        opened(name, Cap(epsilon=epsilon, delta=delta), **terms, group_size=group_size)


def opened(name: str, cap: Cap, *, allow_idealised: bool = False, people: bool = False, group_size: int = 1) -> None:
    """Open an account in the current root."""
    open_ledger().open_account(
        name,
        cap,
        idealised_allowed=allow_idealised,
        deltas={"reserved": RESERVED},
        unit=PERSON if people else ROW,
        group_size=group_size,
    )


def _report(name: str) -> Mapping[str, Any] | None:
    """Return what is said of an account by its name, in the current root; None where there is none."""
    catalog = open_catalog()
    account = catalog.account(name)
    if account is None:
        return None
    paying = [one.name for one in catalog.datasets() if one.account == name]
    if paying:
        return budget_report(paying[0])
    cap = account.cap and asdict(account.cap)
    left = None if cap is None else cap["epsilon"]
    return {"account": name, "cap": cap, "epsilon_spent": 0.0, "epsilon_left": left, "parties": []}


def budget(dataset: str, *, root: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """Return what an account has spent, a line a party.

    Parameters
    ----------
    dataset : str
        A registered data set, or an account, such as an estimator's.
    root : path, optional
        ``UNITBALL_ROOT`` or the user's own by default; for an account that is not there, the one of this process.

    Returns
    -------
    data frame
        ``party``, ``epsilon_spent`` (at ``delta``), ``releases``. Its ``attrs`` hold what is of the whole account:
        ``account``, ``cap``, ``epsilon_spent``, ``epsilon_left``, ``filter``, ``relation``, ``unit``.

    Raises
    ------
    storage.errors.InputError
        If there is no such data set or account.
    """
    report: Mapping[str, Any] | None = None
    if root is None and os.getpid() in _PROCESS_ROOTS:
        with process_root():
            report = _report(dataset)
    with using_root(root):
        # Otherwise it says which data sets there are.
        report = report or _report(dataset) or budget_report(dataset)
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
